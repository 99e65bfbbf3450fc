"""The arithmetic that figures rest on: limits, schedules, statistics, the line of figures."""

import math

import pytest

from benchmarks.figures import at_least, at_most, format_line, parse_line
from benchmarks.limits import cpu_limit, list_schedule, share, sleeping_limit
from benchmarks.workloads.costs import bimodal, rare_slow
from minato_async.cli.measure.epoch import Epoch, Receipt
from minato_async.cli.measure.statistics import paired, spread


def test_sleeping_limit_is_the_sum_over_the_workers() -> None:
    assert sleeping_limit([0.5, 1.0, 0.5], 4) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="workers"):
        sleeping_limit([1.0], 0)


def test_cpu_limit_counts_no_more_cores_than_workers() -> None:
    assert cpu_limit([1.0, 3.0], workers=2, cores=8) == pytest.approx(2.0)
    assert cpu_limit([1.0, 3.0], workers=8, cores=2) == pytest.approx(2.0)
    assert cpu_limit([3.0], workers=4, cores=1.5) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="cores"):
        cpu_limit([1.0], workers=1, cores=0)


def test_list_schedule_gives_each_free_worker_the_next_sample() -> None:
    assert list_schedule([], 3) == 0.0
    assert list_schedule([0.05] * 32, 12) == pytest.approx(0.15)
    # The slow one starts last and is run to its end alone.
    assert list_schedule([1.0, 1.0, 1.0, 1.0, 3.0], 2) == pytest.approx(5.0)
    assert list_schedule([3.0, 1.0, 1.0, 1.0, 1.0], 2) == pytest.approx(4.0)


def test_share_of_the_limit() -> None:
    assert share(2.0, 4.0) == pytest.approx(0.5)
    assert math.isnan(share(2.0, 0.0))


def test_costs_have_exact_shares_at_the_same_places_each_time() -> None:
    costs = bimodal(1000)
    assert costs.count(0.100) == 100
    assert sum(costs) / 1000 == pytest.approx(0.0136)
    assert costs == bimodal(1000)
    slow = rare_slow(3000)
    assert sum(slow) == pytest.approx(20.94)
    assert slow.index(0.500) != 0 or slow[1:].count(0.500) == 29


def test_ratios_are_paired_by_round() -> None:
    assert paired([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]).median == pytest.approx(2.0)
    assert math.isnan(paired([], [1.0]).median)
    assert spread([3.0, 1.0, 2.0]).text(1) == "2.0 [1.0–3.0]"


def test_steady_rate_leaves_out_the_first_tenth() -> None:
    arrivals = (1.0, *(1.0 + 0.1 * number for number in range(1, 20)))
    epoch = Epoch(arrivals, tuple(range(10, 210, 10)), 3.5, 1.0, Receipt(samples=200))
    assert epoch.first == 1.0
    assert epoch.rate == pytest.approx(200 / 3.5)
    assert epoch.steady_rate == pytest.approx(100.0)


def test_the_line_of_figures_reads_back() -> None:
    line = format_line("P1", [at_least("trivial", 1.12, 1.0), at_most("first_ms", 21.0, 20.0)])
    assert line == "P1 trivial 1.120 (>= 1.000) first_ms 21.000 (<= 20.000): missed"
    read = parse_line(line + "\n")
    assert read.name == "P1"
    assert not read.reached
    assert [figure.reached for figure in read.figures] == [True, False]
    assert parse_line("P4 trivial_ms 3.000 (<= 20.000): reached").reached
    with pytest.raises(ValueError, match="not a line of figures"):
        parse_line("P4 trivial_ms fast: reached")


def test_a_figure_that_is_not_a_number_is_missed() -> None:
    for figure in (at_least("a", float("nan"), 1.0), at_most("a", float("nan"), 1.0)):
        assert not figure.reached
        assert not parse_line(format_line("P", [figure])).reached
    assert not parse_line("P x nan (>= 1.000): missed").reached
