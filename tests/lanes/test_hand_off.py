"""Hand-off: a worker that is stuck inside opaque code is replaced.

Workers are stuck on events here, so nothing hangs on how fast the machine is: only what comes
after a while, not when.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from minato_async import MinatoLoader

from .support import PATIENCE, Tally, busy, flat, until, wait_for, worker_threads


class Stuck:
    """Samples of which some wait for `let_go`; counts who is inside."""

    def __init__(self, n: int, stuck: set[int]) -> None:
        self.n, self.stuck = n, stuck
        self.let_go = threading.Event()
        self.tally = Tally()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.tally.add(index)
        with self.tally.inside():
            if index in self.stuck:
                wait_for(self.let_go)
            else:
                busy(0.0005)
        return index


@pytest.fixture
def release() -> Iterator[list[Stuck]]:
    """Datasets put in here are let go at the end, whatever happens."""
    datasets: list[Stuck] = []
    yield datasets
    for dataset in datasets:
        dataset.let_go.set()


def loader_of(dataset: Any, **options: Any) -> MinatoLoader[Any]:
    usual = {
        "batch_size": 4,
        "num_workers": 2,
        "max_workers": 6,
        "scheduler": "throughput",
        "in_order": False,
        "collate_fn": list,
        "max_queue_size": 64,
        "timeout_threshold": 0.01,
        "timeout": PATIENCE,
    }
    return MinatoLoader(dataset, **(usual | options))


@pytest.fixture(autouse=True)
def scheduler_keeps_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads are to come from hand-off alone."""
    name = "minato_async.scheduling.schedulers.ThroughputScheduler.decide"
    monkeypatch.setattr(name, lambda self, reading: self.start())


class TestReplacement:
    @pytest.mark.parametrize("idle", ["cores_idle", "no_core_idles"])
    def test_the_others_keep_coming(
        self, idle: str, request: pytest.FixtureRequest, release: list[Stuck]
    ) -> None:
        """Every worker that the loader began with is stuck. Where no core is idle, the watch
        has to find that their threads wait."""
        request.getfixturevalue(idle)
        dataset = Stuck(64, {0, 1})
        release.append(dataset)
        iterator = iter(loader_of(dataset))
        seen = flat(next(iterator) for _ in range(15))
        assert not {0, 1} & set(seen)
        # The one that took the first one's place may have loaded all that before. On a busy machine
        # others look stuck for a moment, too.
        until(lambda: iterator.stats.handed_off >= 2 and iterator.stats.slow_active == 2)
        dataset.let_go.set()
        assert sorted(seen + flat(iterator)) == list(range(64))
        assert dataset.tally.counts == dict.fromkeys(range(64), 1)

    @pytest.mark.usefixtures("cores_idle")
    def test_what_stood_behind_the_stuck_one_is_loaded_by_others(
        self, release: list[Stuck], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Claims of sixteen; the stuck one is in the middle of its claim."""
        name = "minato_async.scheduling.claim_size.ClaimSize.next"
        monkeypatch.setattr(name, lambda self: 16)
        dataset = Stuck(64, {5, 21})
        release.append(dataset)
        iterator = iter(loader_of(dataset, batch_size=16))
        seen = flat(next(iterator) for _ in range(3))
        assert not {5, 21} & set(seen)
        # The rest of the last batch is loaded too: it lacks the two.
        until(lambda: len(dataset.tally.counts) == 64)
        dataset.let_go.set()
        assert sorted(seen + flat(iterator)) == list(range(64))
        assert dataset.tally.counts == dict.fromkeys(range(64), 1)

    @pytest.mark.usefixtures("cores_idle")
    @pytest.mark.parametrize("most", [2, 3, 4])
    def test_max_workers_bounds_them(self, most: int, release: list[Stuck]) -> None:
        dataset = Stuck(64, set(range(12)))
        release.append(dataset)
        iterator = iter(loader_of(dataset, max_workers=most))
        until(lambda: sum(dataset.tally.counts.values()) == most)
        busy(0.3)  # several looks of the watch
        assert sum(dataset.tally.counts.values()) == most
        assert len(worker_threads()) == most
        if most == 2:  # nobody could be started in their place
            assert iterator.stats.handed_off == 0
        dataset.let_go.set()
        assert sorted(flat(iterator)) == list(range(64))
        assert dataset.tally.most_inside <= most

    @pytest.mark.usefixtures("cores_idle")
    def test_the_number_goes_back_when_they_come_back(self, release: list[Stuck]) -> None:
        dataset = Stuck(400, {0, 1})
        release.append(dataset)
        iterator = iter(loader_of(dataset))
        until(lambda: iterator.stats.handed_off >= 2)
        next(iterator)
        dataset.let_go.set()
        until(lambda: iterator._engine._slots.handed_off == 0)
        flat(iterator)
        assert iterator._engine._slots.threads == 2

    @pytest.mark.usefixtures("cores_idle")
    def test_a_stuck_diverted_sample_is_replaced_too(self, release: list[Stuck]) -> None:
        last_step = Stuck(0, {0, 1})
        release.append(last_step)

        def load(index: int) -> int:
            return last_step[index]

        first = Stuck(64, set())
        loader = loader_of(first, transforms=[load], timeout_threshold=1e-6)
        iterator = iter(loader)
        seen = flat(next(iterator) for _ in range(15))
        assert not {0, 1} & set(seen)
        last_step.let_go.set()
        assert sorted(seen + flat(iterator)) == list(range(64))
        assert last_step.tally.counts == dict.fromkeys(range(64), 1)

    @pytest.mark.usefixtures("cores_idle")
    def test_in_strict_order_too(self, release: list[Stuck]) -> None:
        """All that fits the window is loaded while the first sample is stuck."""
        dataset = Stuck(64, {0})
        release.append(dataset)
        iterator = iter(loader_of(dataset, in_order=True, num_workers=1))
        until(lambda: len(dataset.tally.counts) == 64)
        dataset.let_go.set()
        assert flat(iterator) == list(range(64))
        assert dataset.tally.counts == dict.fromkeys(range(64), 1)

    @pytest.mark.usefixtures("cores_idle")
    def test_the_window_bounds_what_is_loaded(self, release: list[Stuck]) -> None:
        dataset = Stuck(64, {0})
        release.append(dataset)
        iterator = iter(loader_of(dataset, in_order=True, num_workers=1, max_queue_size=8))
        until(lambda: len(dataset.tally.counts) == 8)
        busy(0.1)
        assert len(dataset.tally.counts) == 8
        dataset.let_go.set()
        assert flat(iterator) == list(range(64))


class TestWhereNot:
    @pytest.mark.usefixtures("no_core_idles")
    def test_a_thread_that_computes_while_no_core_idles(self) -> None:
        stop = threading.Event()

        class Computing(Stuck):
            def __getitem__(self, index: int) -> int:
                if index == 0:
                    while not stop.is_set():
                        pass
                return index

        iterator = iter(loader_of(Computing(16, set()), timeout_threshold=0.02))
        clocks = iterator._engine._coordinator.watch
        until(lambda: clocks._clocks)  # it is suspected
        busy(0.2)
        stop.set()
        assert sorted(flat(iterator)) == list(range(16))

    @pytest.mark.usefixtures("cores_idle")
    def test_fixed_is_fixed(self, release: list[Stuck]) -> None:
        dataset = Stuck(64, {0, 1, 2})
        release.append(dataset)
        loader = loader_of(dataset, scheduler="fixed", num_workers=4, max_workers=None)
        iterator = iter(loader)
        seen = flat(next(iterator) for _ in range(15))
        assert dataset.tally.most_inside <= 4
        dataset.let_go.set()
        assert sorted(seen + flat(iterator)) == list(range(64))
        assert dataset.tally.most_inside <= 4
        assert iterator.stats.handed_off == 0
        assert len(worker_threads()) <= 4

    @pytest.mark.usefixtures("cores_idle")
    def test_fixed_with_all_stuck_waits(self, release: list[Stuck]) -> None:
        dataset = Stuck(64, {0, 1})
        release.append(dataset)
        iterator = iter(loader_of(dataset, scheduler="fixed", max_workers=None))
        until(lambda: len(dataset.tally.counts) == 2)
        busy(0.2)
        assert len(dataset.tally.counts) == 2
        dataset.let_go.set()
        assert sorted(flat(iterator)) == list(range(64))
        assert dataset.tally.most_inside == 2
