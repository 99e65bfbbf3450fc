"""With ready samples first, a short last batch is delivered last: metrics count on it."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import pytest
from torch.utils.data import BatchSampler, SequentialSampler, default_collate

from minato_async import MinatoLoader
from minato_async.scheduling.claim_size import WORTH
from tests.loaders import on_each_executor

from .support import PATIENCE, iterating, lists, once_each, samples_in

pytestmark = on_each_executor


class Gate:
    """Something that happens once, told to all workers, whatever they are."""

    def __init__(self) -> None:
        self._event = multiprocessing.get_context("fork").Event()

    def open(self) -> None:
        self._event.set()

    def wait(self) -> None:
        assert self._event.wait(PATIENCE)


class ShortIsFaster:
    """Ten samples. Full batches are collated only after the short one, on threads, or after the
    last sample is loaded: where a worker has a batch for itself, what is left over is known when
    it has made it."""

    def __init__(self, executor: str) -> None:
        self.gate = Gate()
        self.last_sample_opens = executor == "process"

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        # So dear that a worker claims one at a time. The end of a larger claim may complete a full
        # batch and the short one, for the same worker to collate: it would wait for itself.
        time.sleep(2 * WORTH)
        if index == 9 and self.last_sample_opens:
            self.gate.open()
        return index

    def collate(self, samples: list[Any]) -> Any:
        if len(samples) < 4:
            self.gate.open()
            return default_collate(samples)
        self.gate.wait()
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass
        return default_collate(samples)

    def loader(self, **options: Any) -> MinatoLoader[Any]:
        made: Any = {"batch_size": 4, **options}
        return MinatoLoader(
            self,  # type: ignore[arg-type]
            num_workers=3,
            prefetch_factor=3,
            in_order=False,
            collate_fn=self.collate,
            **made,
        )


class FailsLast:
    """One sample fails, after those of all other batches are loaded: a worker may have claimed its
    own batch."""

    def __init__(self, n: int, failing: int) -> None:
        self.n = n
        self.failing = failing
        self.loaded = multiprocessing.get_context("fork").Semaphore(0)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        others = set(range(self.n)) - set(range(self.failing // 4 * 4, self.failing // 4 * 4 + 4))
        if index in others:
            self.loaded.release()
        if index == self.failing:
            for _ in others:
                assert self.loaded.acquire(timeout=PATIENCE)
            raise LookupError(index)
        return index


def items(loader: MinatoLoader[Any]) -> list[int | str]:
    """How large the batches are, in turn, and where a failure stands between them."""
    found: list[int | str] = []
    with iterating(loader) as iterator:
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return found
            except LookupError:
                found.append("failure")
            else:
                found.append(len(batch))


def test_full_ones_that_are_still_collated_come_first(executor: str) -> None:
    assert items(ShortIsFaster(executor).loader()) == [4, 4, 2]


@pytest.mark.parametrize("max_displacement", [0, 1])
def test_also_where_it_is_bounded_how_many_may_overtake(
    max_displacement: int, executor: str
) -> None:
    loader = ShortIsFaster(executor).loader(max_displacement=max_displacement)
    assert items(loader) == [4, 4, 2]


def test_batches_of_a_batch_sampler_of_ones_own(executor: str) -> None:
    class Mine(BatchSampler):
        pass

    sampler = Mine(SequentialSampler(range(10)), 4, False)
    found = lists(ShortIsFaster(executor).loader(batch_sampler=sampler, batch_size=1))
    assert sorted(found) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert found[-1] == [8, 9]


def test_batches_that_the_dataset_fetches() -> None:
    class Fetches:
        gate = Gate()

        def __len__(self) -> int:
            return 10

        def __getitems__(self, indices: list[int]) -> list[int]:
            if len(indices) == 4:
                self.gate.wait()
            self.gate.open()
            return indices

    loader: MinatoLoader[Any] = MinatoLoader(Fetches(), 4, num_workers=3, in_order=False)  # type: ignore[arg-type]
    assert items(loader) == [4, 4, 2]


@pytest.mark.parametrize("failing", [0, 5, 10])
def test_a_failure_comes_before_it(failing: int) -> None:
    loader: MinatoLoader[Any] = MinatoLoader(
        FailsLast(11, failing),  # type: ignore[arg-type]
        4,
        num_workers=3,
        in_order=False,
        prefetch_factor=3,
    )
    found = items(loader)
    assert found[-1] == 2
    assert sorted(found[:-1], key=str) == [4, 4, "failure"]


@pytest.mark.parametrize("failing", [0, 5, 8])
def test_there_is_no_more_than_one_whatever_is_skipped(failing: int) -> None:
    loader: MinatoLoader[Any] = MinatoLoader(
        FailsLast(10, failing),  # type: ignore[arg-type]
        4,
        num_workers=3,
        in_order=False,
        on_error="skip",
        prefetch_factor=3,
    )
    assert items(loader) == [4, 4, 1]


def test_all_may_be_in_one() -> None:
    loader = MinatoLoader(range(3), 4, num_workers=2, in_order=False)
    assert items(loader) == [3]


@pytest.mark.parametrize("max_queue_size", [None, 1, 4, 25])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_in_every_window(max_queue_size: int | None, num_workers: int) -> None:
    loader = MinatoLoader(
        range(203), 10, num_workers=num_workers, max_queue_size=max_queue_size, in_order=False
    )
    found = list(loader)
    assert [len(batch) for batch in found] == [10] * 20 + [3]
    assert samples_in(found) == once_each(range(203))
