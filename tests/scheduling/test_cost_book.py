"""The cost book: what it notes, what it calls slow, and the file that it is kept in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minato_async.scheduling.cost_book import LEAST, SLOW, CostBook, CostFile, EpochCosts


def book_of(*costs: float) -> CostBook:
    """A book that knows these; 0 is unknown."""
    book = CostBook(len(costs))
    known = [cost for cost in costs if cost]
    book.restore({"costs": np.array(costs), "totals": (sum(known), len(known))})
    return book


class Key:
    """A key of the user's: whoever looks at it runs the user's code."""

    def __index__(self) -> int:
        raise AssertionError("looked at")

    __int__ = __eq__ = __hash__ = __index__  # type: ignore[assignment]


class TestNoting:
    def test_each_index_has_its_own_cost(self) -> None:
        book = CostBook(5)
        costs = book.begin_epoch()
        costs.observe([4, 0, 2], 1, 1, 0.5)
        costs.observe([4, 0, 2], 2, 1, 0.25)
        assert book.costs.tolist() == [0.5, 0, 0.25, 0, 0]

    def test_follows_costs_that_change(self) -> None:
        book = book_of(1.0)
        costs = book.begin_epoch()
        seen = []
        for _ in range(3):
            costs.observe([0], 0, 1, 3.0)
            seen.append(float(book.costs[0]))
        assert seen == [2.0, 2.5, 2.75]

    @pytest.mark.parametrize("key", [-1, 5, "3", 3.0, None, True, (1, 2), Key()])
    def test_only_integers_in_range_have_costs(self, key: Any) -> None:
        book = CostBook(5)
        costs = book.begin_epoch()
        costs.observe([key, key], 0, 1, 0.5)
        costs.observe([key, key], 0, 2, 0.5)
        assert not book.costs.any()
        known = book_of(1e-3, 1e-3, 1e-3, 1.0, 1.0).begin_epoch()
        assert known.slow_rows([key, 3]) == [(1, 1.0)]

    def test_integers_of_numpy_have_costs(self) -> None:
        book = CostBook(5)
        book.begin_epoch().observe([np.int64(3)], 0, 1, 0.5)
        assert book.costs[3] == 0.5

    def test_trivial_samples_timed_together_are_not_noted(self) -> None:
        book = CostBook(100)
        costs = book.begin_epoch()
        costs.observe(range(100), 0, 100, 1e-3)
        costs.observe(range(100), 0, 100, 3e-3)  # the worker had no core for a while
        assert not book.costs.any()
        assert book.begin_epoch().mean == pytest.approx(2e-5)

    def test_of_those_that_took_long_together_each_may_be_the_slow_one(self) -> None:
        book = CostBook(4)
        book.begin_epoch().observe([0, 1, 2, 3], 1, 2, 0.1)
        assert book.costs.tolist() == pytest.approx([0, 0.05, 0.05, 0])

    def test_what_is_known_of_single_ones_is_noted(self) -> None:
        book = CostBook(5)
        book.begin_epoch().observe([4, 3, 2, 1, 0], 1, 4, 0.13, [(3, 0.1), (0, 9.0)])
        assert book.costs.tolist() == pytest.approx([0.01, 0.1, 0.01, 0.01, 0])

    def test_what_was_slow_and_is_trivial_now_is_noted(self) -> None:
        book = book_of(1e-4, 1e-4, 1e-4, 1.0)
        book.begin_epoch().observe([3, 1], 0, 2, 2e-6)
        assert book.costs[3] == pytest.approx(0.5, abs=1e-5)


class TestSlow:
    def test_is_what_costs_twice_the_mean(self) -> None:
        costs = book_of(0.01, 0.01, 0.01, 0.05).begin_epoch()
        assert costs.limit == pytest.approx(SLOW * 0.02)
        assert costs.slow_rows([3, 0, 3]) == [(0, pytest.approx(0.05)), (2, pytest.approx(0.05))]

    def test_is_nothing_below_a_millisecond(self) -> None:
        costs = book_of(*[1e-6] * 9, LEAST / 2).begin_epoch()
        assert costs.slowest == 0
        assert costs.slow_rows([9]) == ()

    def test_is_nothing_if_it_does_not_matter(self) -> None:
        """A thread that waited for its core, in a trivial sample."""
        assert book_of(*[1e-6] * 5000, 4e-3).begin_epoch().slowest == 0
        assert book_of(*[1e-3] * 5000, 50e-3).begin_epoch().slowest == 0
        assert book_of(*[1e-3] * 5000, 200e-3).begin_epoch().slowest == pytest.approx(0.2)

    def test_is_nothing_among_the_uniform(self) -> None:
        assert book_of(*[0.01] * 9).begin_epoch().slowest == 0

    def test_is_nothing_in_a_new_book(self) -> None:
        costs = CostBook(3).begin_epoch()
        assert (costs.slowest, costs.lookahead(8, 2.0)) == (0, 0)

    def test_few_of_unknown_cost_are_to_be_tried_out(self) -> None:
        costs = book_of(0.01, 0.01, 0.01, 0.1, 0).begin_epoch()
        assert costs.slow_rows([0, 1, 2, 3, 4]) == [(3, pytest.approx(0.1)), (4, 0)]

    def test_many_of_unknown_cost_are_not(self) -> None:
        costs = book_of(0.01, 0.01, 0.01, 0.1, 0, 0).begin_epoch()
        assert costs.slow_rows([0, 3, 4, 5]) == [(1, pytest.approx(0.1))]

    def test_is_seen_as_far_ahead_as_the_slowest_asks_for(self) -> None:
        costs = book_of(*[0.01] * 99, 1.01).begin_epoch()
        # 8 workers make 400 samples a second, of 20 ms on average.
        assert costs.lookahead(8, 2.0) == pytest.approx(2.0 * 1.01 * 400, abs=1)

    def test_mean_follows_the_latest_epochs(self) -> None:
        book = CostBook(10)
        for cost in (1.0, 3.0, 3.0):
            costs = book.begin_epoch()
            for index in range(10):
                costs.observe([index], 0, 1, cost)
        assert book.begin_epoch().mean == pytest.approx((0.25 * 1 + 0.5 * 3 + 3) / 1.75)


KILLED = """
import sys
from minato_async.scheduling.cost_book import CostBook, CostFile
book = CostBook(100_000)
costs = book.begin_epoch()
file = CostFile(sys.argv[1], book, "Dataset")
print("ready", flush=True)
for value in range(1, 1_000_000):
    book.costs[:] = value
    file.save()
"""


class TestFile:
    def costs_in(self, path: Path, length: int = 3, dataset: str = "Dataset") -> list[float]:
        book = CostBook(length)
        CostFile(path, book, dataset).load()
        found: Sequence[float] = book.costs.tolist()
        return list(found)

    def test_keeps_costs_and_mean(self, tmp_path: Path) -> None:
        book = book_of(0.5, 0, 1.5)
        CostFile(tmp_path / "book.npz", book, "Dataset").save()
        found = CostBook(3)
        CostFile(tmp_path / "book.npz", found, "Dataset").load()
        assert found.costs.tolist() == [0.5, 0, 1.5]
        assert found.begin_epoch().mean == 1.0
        assert os.listdir(tmp_path) == ["book.npz"]

    def test_that_is_not_there_yet_is_no_matter(self, tmp_path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert self.costs_in(tmp_path / "book.npz") == [0, 0, 0]

    @pytest.mark.parametrize(
        ("length", "dataset", "names"),
        [(4, "Dataset", "3 samples"), (3, "Other", "of another dataset: Dataset")],
    )
    def test_of_another_dataset_is_ignored_and_left_as_it_is(
        self, tmp_path: Path, length: int, dataset: str, names: str
    ) -> None:
        path = tmp_path / "book.npz"
        CostFile(path, book_of(0.5, 1, 1.5), "Dataset").save()
        before = path.read_bytes()
        file = CostFile(path, book_of(*[9.0] * length), dataset)
        with pytest.warns(RuntimeWarning, match=names):
            file.load()
        file.save()
        assert path.read_bytes() == before

    @pytest.mark.parametrize("content", [b"", b"not a book", b"PK\x03\x04"])
    def test_that_is_no_book_is_ignored_and_left_as_it_is(
        self, tmp_path: Path, content: bytes
    ) -> None:
        path = tmp_path / "book.npz"
        path.write_bytes(content)
        with pytest.warns(RuntimeWarning, match="cannot be read as a cost book"):
            assert self.costs_in(path) == [0, 0, 0]
        assert path.read_bytes() == content

    def test_of_another_version_is_ignored(self, tmp_path: Path) -> None:
        path = tmp_path / "book.npz"
        np.savez(path, version=99, dataset="Dataset", costs=np.ones(3), totals=np.ones(2))
        with pytest.warns(RuntimeWarning, match="version 99"):
            assert self.costs_in(path) == [0, 0, 0]

    def test_cut_short_is_ignored(self, tmp_path: Path) -> None:
        path = tmp_path / "book.npz"
        CostFile(path, book_of(0.5, 1, 1.5), "Dataset").save()
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.warns(RuntimeWarning, match="cannot be read"):
            assert self.costs_in(path) == [0, 0, 0]

    def test_damaged_in_any_byte_is_ignored_or_read(self, tmp_path: Path) -> None:
        path = tmp_path / "book.npz"
        CostFile(path, book_of(0.5, 1, 1.5), "Dataset").save()
        whole = path.read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert self.costs_in(path) in ([0, 0, 0], [0.5, 1, 1.5])

    @pytest.mark.parametrize(
        "other",
        [
            {"costs": np.ones((3, 2))},
            {"costs": np.array(["a", "b", "c"])},
            {"costs": np.array([1, np.inf, 1])},
            {"costs": np.array([1, np.nan, 1])},
            {"costs": np.array([1, -1.0, 1])},
            {"totals": np.array([np.nan, 1])},
            {"totals": np.ones((2, 2))},
            {"totals": np.ones(3)},
        ],
    )
    def test_whose_costs_are_no_seconds_is_ignored(
        self, tmp_path: Path, other: dict[str, Any]
    ) -> None:
        path = tmp_path / "book.npz"
        whole = {"version": 1, "dataset": "Dataset", "costs": np.ones(3), "totals": np.ones(2)}
        np.savez(path, **{**whole, **other})
        with pytest.warns(RuntimeWarning, match="cannot be read as a cost book"):
            assert self.costs_in(path) == [0, 0, 0]

    def test_that_cannot_be_written_warns_once(self, tmp_path: Path) -> None:
        file = CostFile(tmp_path / "nowhere" / "book.npz", CostBook(3), "Dataset")
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            file.save()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            file.save()

    def test_ranks_of_one_training_add_to_it(self, tmp_path: Path) -> None:
        ranks = [book_of(1.0, 0, 0), book_of(0, 2.0, 0)]
        for book in ranks:
            CostFile(tmp_path / "book.npz", book, "Dataset").save()
        assert self.costs_in(tmp_path / "book.npz") == [1, 2, 0]

    def test_survives_a_kill_at_any_moment(self, tmp_path: Path) -> None:
        path = tmp_path / "book.npz"
        for delay in (0.0, 0.02, 0.1):
            writer = subprocess.Popen(
                [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
            )
            assert writer.stdout is not None
            with writer.stdout:
                writer.stdout.readline()
                while not path.exists():
                    time.sleep(0.001)
                time.sleep(delay)
                writer.send_signal(signal.SIGKILL)
                writer.wait()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = set(self.costs_in(path, 100_000))
            assert len(found) == 1
            assert found != {0.0}


def test_what_an_epoch_finds_out_is_used_by_the_next() -> None:
    book = CostBook(10)
    first: EpochCosts = book.begin_epoch()
    for index in range(10):
        first.observe([index], 0, 1, 0.1 if index == 7 else 0.001)
    assert first.slow_rows(range(10)) == ()
    assert book.begin_epoch().slow_rows(range(10)) == [(7, pytest.approx(0.1))]
