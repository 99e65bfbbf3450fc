"""The online threshold, as plain state."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minato_async.scheduling.threshold import (
    HYSTERESIS,
    MARGIN,
    STUCK,
    STUCK_EARLY,
    WINDOW,
    Threshold,
)

#: Costs apart enough that neither the margin nor the least threshold decides.
SPREAD = [0.1 * 2**power for power in range(8)]


def following(costs: Iterable[float], warmup: int = 0, percentile: float = 75.0) -> Threshold:
    threshold = Threshold(percentile, warmup)
    for cost in costs:
        threshold.observe(cost)
    return threshold


class TestWarmup:
    def test_nothing_is_slow_before_the_warmup_is_over(self) -> None:
        threshold = Threshold(75.0, 40)
        for _ in range(39):
            threshold.observe(1.0)
            assert threshold.seconds == math.inf
        threshold.observe(1.0)
        assert threshold.seconds == MARGIN * 1.0

    def test_without_a_warmup_the_first_sample_counts(self) -> None:
        assert following([1.0]).seconds == MARGIN

    def test_samples_claimed_together_count_each(self) -> None:
        threshold = Threshold(75.0, 40)
        threshold.observe(1.0, samples=40)
        assert threshold.observed == 40
        assert math.isfinite(threshold.seconds)

    def test_nothing_is_observed_yet(self) -> None:
        assert math.isnan(Threshold(75.0, 10).percentile(50.0))


class TestPercentile:
    @pytest.mark.parametrize(("percentile", "power"), [(75.0, 5), (87.5, 6), (100.0, 7)])
    def test_it_follows_the_percentile(self, percentile: float, power: int) -> None:
        threshold = following(SPREAD * 20, percentile=percentile)
        assert threshold.seconds == SPREAD[power]

    @given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=200), st.floats(1.0, 100.0))
    def test_as_many_as_it_says_do_not_exceed_it(self, costs: list[float], percent: float) -> None:
        value = following(costs, warmup=len(costs)).percentile(percent)
        below = sum(cost <= value for cost in costs)
        assert below >= len(costs) * percent / 100.0 - 1e-6
        less = sum(cost < value for cost in costs)
        assert less <= len(costs) * percent / 100.0 + 1e-6

    def test_only_the_window_counts(self) -> None:
        threshold = following([100.0] * WINDOW + [1.0] * WINDOW)
        assert threshold.percentile(100.0) == 1.0
        assert threshold.seconds == MARGIN * 1.0

    @settings(max_examples=10)
    @given(st.lists(st.sampled_from([0.1, 0.2, 0.2, 5.0]), min_size=1100, max_size=1200))
    def test_the_window_is_that_of_the_latest(self, costs: list[float]) -> None:
        latest = sorted(costs[-WINDOW:])
        threshold = following(costs)
        assert threshold.percentile(100.0) == latest[-1]
        assert threshold.percentile(50.0) == latest[WINDOW // 2 - 1]

    def test_trivial_samples_are_never_slow(self) -> None:
        assert following([1e-6] * 100).seconds >= 1e-3


class TestJitterTrap:
    """The speech workload: every fifth sample takes 3008 ms, the others 508, and the 75th
    percentile lies inside the fast mode."""

    @pytest.mark.parametrize("seed", range(5))
    def test_only_the_slow_mode_is_slow(self, seed: int) -> None:
        rng = random.Random(seed)
        threshold = Threshold(75.0, 50)
        for number in range(3000):
            slow = number % 5 == 4
            cost = (3.008 if slow else 0.508) + rng.uniform(-1e-3, 1e-3)
            if math.isfinite(threshold.seconds):
                assert (cost > threshold.seconds) == slow
            threshold.observe(cost)
        assert math.isfinite(threshold.seconds)

    def test_one_mode_alone_has_no_slow_samples(self) -> None:
        rng = random.Random(1)
        costs = [0.508 + rng.uniform(-1e-3, 1e-3) for _ in range(500)]
        assert max(costs) < following(costs).seconds


class TestHysteresis:
    def test_it_stays_while_the_percentile_moves_a_little(self) -> None:
        threshold = following([1.0] * 100)
        before = threshold.seconds
        for _ in range(3 * WINDOW):
            threshold.observe(1.0 + 0.9 * HYSTERESIS)
        assert threshold.seconds == before

    def test_it_moves_when_the_percentile_does(self) -> None:
        threshold = following([1.0] * 100)
        for _ in range(3 * WINDOW):
            threshold.observe(1.0 + 1.2 * HYSTERESIS)
        assert threshold.seconds == pytest.approx(MARGIN * (1.0 + 1.2 * HYSTERESIS))

    @pytest.mark.parametrize("cost", [0.01, 100.0])
    def test_it_follows_far_up_and_far_down(self, cost: float) -> None:
        threshold = following([1.0] * 100 + [cost] * WINDOW)
        assert threshold.seconds == MARGIN * cost


class TestFixed:
    def test_it_holds_from_the_beginning_and_stays(self) -> None:
        threshold = Threshold(75.0, 1000, fixed=0.25)
        assert threshold.seconds == 0.25
        for _ in range(3 * WINDOW):
            threshold.observe(9.0)
        assert threshold.seconds == 0.25

    def test_it_counts_all_the_same(self) -> None:
        threshold = Threshold(75.0, 0, fixed=0.25)
        threshold.observe(9.0, samples=3)
        assert threshold.observed == 3
        assert threshold.percentile(50.0) == 9.0


class TestStuckAfter:
    def test_it_is_a_multiple_of_the_threshold(self) -> None:
        assert Threshold(75.0, 0, fixed=0.25).stuck_after == STUCK * 0.25

    def test_it_is_not_less_than_the_watch_can_see(self) -> None:
        assert Threshold(75.0, 0, fixed=1e-6).stuck_after == 0.03

    def test_nobody_is_stuck_before_costs_are_known(self) -> None:
        assert following([1.0] * 31, warmup=1000).stuck_after == math.inf

    def test_before_the_threshold_it_is_told_by_the_median(self) -> None:
        threshold = following([1.0] * 30 + [50.0] * 2, warmup=1000)
        assert threshold.seconds == math.inf
        assert threshold.stuck_after == STUCK_EARLY * 1.0
