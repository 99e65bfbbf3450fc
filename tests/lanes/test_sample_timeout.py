"""`sample_timeout=`: a sample that takes too long has failed, and its thread is given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from minato_async import MinatoLoader, checkpoint

from .support import PATIENCE, Made, Tally, busy, flat, until, wait_for, worker_threads

#: Far more than anything but a stuck sample takes.
TIMEOUT = 0.5


class Stuck:
    """Samples of which some wait for `let_go`, in the step that is told."""

    def __init__(self, n: int, stuck: set[int]) -> None:
        self.n, self.stuck = n, stuck
        self.let_go = threading.Event()
        self.runs = Tally()
        self.came_back = Tally()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.runs.add(index)
        if index in self.stuck:
            wait_for(self.let_go)
            self.came_back.add(index)
        return index


@pytest.fixture
def dataset() -> Iterator[Stuck]:
    stuck = Stuck(24, {5})
    yield stuck
    stuck.let_go.set()


def loader_of(dataset: Any, **options: Any) -> MinatoLoader[Any]:
    usual = {
        "batch_size": 4,
        "num_workers": 2,
        "collate_fn": list,
        "sample_timeout": TIMEOUT,
        "timeout": PATIENCE,
    }
    return MinatoLoader(dataset, **(usual | options))


both_orders = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "any order"])


@both_orders
class TestPolicies:
    """None of them lets the stuck sample come back before the epoch has ended."""

    def test_raise(self, dataset: Stuck, in_order: bool) -> None:
        iterator = iter(loader_of(dataset, in_order=in_order))
        seen, errors = [], []
        while True:
            try:
                seen += next(iterator)
            except StopIteration:
                break
            except TimeoutError as error:
                errors.append(error)
        (error,) = errors
        assert "index 5 " in str(error)
        assert f"sample_timeout={TIMEOUT}" in str(error)
        assert "sample index 5" in "".join(error.__notes__)
        lost = {4, 5, 6, 7} if in_order else {5}
        assert sorted(seen) == sorted(set(range(24)) - lost)
        assert iterator.stats.failed == 1
        assert dataset.came_back.counts == {}

    def test_skip(self, dataset: Stuck, in_order: bool) -> None:
        iterator = iter(loader_of(dataset, in_order=in_order, on_error="skip"))
        batches = list(iterator)
        assert sorted(flat(batches)) == sorted(set(range(24)) - {5})
        if in_order:
            assert batches[1] == [4, 6, 7]
        ((index, error),) = iterator.stats.skipped
        assert index == 5
        assert isinstance(error, TimeoutError)
        assert dataset.came_back.counts == {}

    def test_replace(self, dataset: Stuck, in_order: bool) -> None:
        handled = []

        def replace(index: int, error: BaseException) -> int:
            handled.append((index, type(error)))
            return 100 + index

        loader = loader_of(dataset, in_order=in_order, on_error=replace)
        assert sorted(flat(loader)) == sorted({*range(24), 105} - {5})
        assert handled == [(5, TimeoutError)]
        assert dataset.came_back.counts == {}

    def test_a_late_result_is_dropped(self, dataset: Stuck, in_order: bool) -> None:
        """It comes while the epoch is still being loaded, with the failure settled."""
        dataset.stuck.add(23)
        loader = loader_of(dataset, in_order=in_order, num_workers=3, on_error="skip")
        iterator = iter(loader)
        until(lambda: len(iterator.stats.skipped) >= 1)
        dataset.let_go.set()
        until(lambda: dataset.came_back.counts[5] == 1)
        samples = flat(iterator)
        assert 5 not in samples
        assert len(samples) == len(set(samples))
        assert {*samples} >= set(range(23)) - {5}

    def test_the_late_result_does_not_come_before_the_replacement(
        self, dataset: Stuck, in_order: bool
    ) -> None:
        """It comes back while the handler is still at work on the replacement."""

        def replace(index: int, error: BaseException) -> int:
            stuck = [t for t in worker_threads() if t is not threading.current_thread()]
            dataset.let_go.set()
            until(lambda: dataset.came_back.counts[5] == 1)
            until(lambda: sum(t.is_alive() for t in stuck) < len(stuck))
            return 100 + index

        loader = loader_of(dataset, in_order=in_order, on_error=replace)
        assert sorted(flat(loader)) == sorted({*range(24), 105} - {5})

    def test_every_sample_may_be_stuck(self, in_order: bool) -> None:
        dataset = Stuck(6, set(range(6)))
        loader = loader_of(dataset, in_order=in_order, on_error="skip", sample_timeout=0.05)
        iterator = iter(loader)
        assert list(iterator) == []
        assert sorted(index for index, _ in iterator.stats.skipped) == list(range(6))
        dataset.let_go.set()

    def test_diverted_samples_have_their_time_in_all(self, in_order: bool) -> None:
        go_on = threading.Event()

        def second(index: int) -> int:
            if index == 3:
                wait_for(go_on)
            return index

        loader = loader_of(
            Made(12),
            transforms=[second],
            in_order=in_order,
            timeout_threshold=1e-9,
            on_error="skip",
        )
        iterator = iter(loader)
        assert sorted(flat(iterator)) == sorted(set(range(12)) - {3})
        assert [index for index, _ in iterator.stats.skipped] == [3]
        go_on.set()


class TestThreads:
    def test_the_thread_is_replaced(self, dataset: Stuck) -> None:
        """One worker, and the sample that follows the stuck one is loaded."""
        loader = loader_of(dataset, num_workers=1, on_error="skip", scheduler="fixed")
        assert flat(loader) == sorted(set(range(24)) - {5})

    def test_it_ends_when_it_comes_back(self, dataset: Stuck) -> None:
        loader = loader_of(dataset, on_error="skip")
        assert len(flat(loader)) == 23
        until(lambda: len(worker_threads()) == 1)
        dataset.let_go.set()
        until(lambda: not worker_threads())

    def test_persistent_workers_are_as_many_in_the_next_epoch(self, dataset: Stuck) -> None:
        loader = loader_of(dataset, on_error="skip", persistent_workers=True)
        assert len(flat(loader)) == 23
        dataset.stuck.clear()
        assert sorted(flat(loader)) == list(range(24))
        assert loader.stats.threads == 2
        dataset.let_go.set()
        until(lambda: len(worker_threads()) == 2)
        assert sorted(flat(loader)) == list(range(24))

    def test_a_late_result_of_an_earlier_epoch_changes_nothing(self, dataset: Stuck) -> None:
        loader = loader_of(dataset, on_error="skip", persistent_workers=True)
        assert len(flat(loader)) == 23
        iterator = iter(loader)
        dataset.let_go.set()
        assert sorted(flat(iterator)) == list(range(24))
        assert iterator.stats.failed == 0

    def test_what_stood_behind_it_is_loaded_once(self, dataset: Stuck) -> None:
        loader = loader_of(dataset, num_workers=1, batch_size=24, on_error="skip")
        assert sorted(flat(loader)) == sorted(set(range(24)) - {5})
        assert set(dataset.runs.counts.values()) == {1}

    def test_samples_that_are_claimed_together_have_their_time_each(self) -> None:
        """So cheap at first that many are claimed at once; then they take a while."""

        def sample(index: int) -> int:
            if index >= 2000:
                busy(TIMEOUT / 4)
            return index

        loader = loader_of(
            Made(2016, sample),
            num_workers=1,
            batch_size=16,
            in_order=True,
            sample_timeout=2 * TIMEOUT,
        )
        assert flat(loader) == list(range(2016))

    def test_one_of_many_that_are_claimed_together_is_given_up(self) -> None:
        dataset = Stuck(2032, {2010})
        loader = loader_of(dataset, num_workers=1, batch_size=32, on_error="skip")
        assert sorted(flat(loader)) == sorted(set(range(2032)) - {2010})
        dataset.let_go.set()

    def test_nothing_fails_that_is_in_time(self) -> None:
        dataset = Stuck(24, {5})
        iterator = iter(loader_of(dataset, sample_timeout=PATIENCE))
        until(lambda: dataset.runs.counts[5] == 1)
        dataset.let_go.set()
        assert flat(iterator) == list(range(24))
        assert iterator.stats.failed == 0


class TestGivenUp:
    """What a thread does that comes back in the epoch from a sample that was given up."""

    @pytest.fixture(params=["checkpoint", "next step", "failure"])
    def way_back(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_it_ends_with_nothing_done(self, way_back: str) -> None:
        let_go, went_on, replaced = threading.Event(), Tally(), Tally()
        given_up: list[threading.Thread] = []

        def first(index: int) -> int:
            if index == 0:
                given_up.append(threading.current_thread())
                wait_for(let_go)
                if way_back == "checkpoint":
                    checkpoint()
                    went_on.add(index)
                elif way_back == "failure":
                    raise ValueError
            return index

        def second(index: int) -> int:
            went_on.add(index)
            return index

        def replace(index: int, error: BaseException) -> int:
            replaced.add(index)
            return 100

        loader = loader_of(
            Made(12, first),
            num_workers=1,
            in_order=False,
            scheduler="fixed",
            transforms=[second] if way_back == "next step" else None,
            on_error=replace,
            timeout_threshold=1e-9,
            max_queue_size=12,
        )
        iterator = iter(loader)
        until(lambda: iterator.stats.ready_batches == 3)
        let_go.set()
        (thread,) = given_up
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert iterator.stats.temp_queue == 0
        assert sorted(flat(iterator)) == [*range(1, 12), 100]
        assert went_on.counts[0] == 0
        assert replaced.counts == {0: 1}
