"""`assignment="batch"`: what a worker loads, and in which order, is as with torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from minato_async import MinatoLoader
from minato_async.engine.assigned_feed import AssignedFeed
from minato_async.engine.batch import Batch
from minato_async.iteration.order import choose_order
from tests.loaders import on_each_executor

from .support import PATIENCE, InThread, iterating

LENGTH, SIZE, WORKERS = 30, 4, 3


class Mosaic:
    """Mixes what it has loaded last into each sample, and tells which worker made it."""

    def __init__(self, failing: tuple[int, ...] = ()) -> None:
        self.recent: list[int] = []
        self.failing = failing

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        self.recent.append(index)
        del self.recent[:-4]
        if index in self.failing:
            raise LookupError(index)
        return torch.tensor([index, sum(self.recent), 0 if info is None else info.id])


class Signed:
    """Collates, and adds who did."""

    def __call__(self, samples: list[Any]) -> Any:
        info = get_worker_info()
        return default_collate(samples), 0 if info is None else info.id


def batched(**options: Any) -> MinatoLoader[Any]:
    made: Any = {"dataset": Mosaic(), "batch_size": SIZE, "num_workers": WORKERS, **options}
    return MinatoLoader(**{"assignment": "batch", "collate_fn": Signed(), **made})


def drain(iterator: Iterator[Any]) -> list[Any]:
    """All batches as lists, and the failures between them."""
    found: list[Any] = []
    while True:
        try:
            samples, worker = next(iterator)
        except StopIteration:
            return found
        except (LookupError, TimeoutError) as error:
            found.append(type(error))
        else:
            found.append((samples.tolist(), worker))


def by_hand(
    failing: tuple[int, ...] = (), skips: bool = False, forgets: Callable[[int], bool] | None = None
) -> list[Any]:
    """What one worker after the other makes; it begins batches anew for which it `forgets`."""
    found: list[Any] = []
    copies = [Mosaic(failing) for _ in range(WORKERS)]
    for number, first in enumerate(range(0, LENGTH, SIZE)):
        worker = number % WORKERS
        if forgets is not None and forgets(number):
            copies[worker] = Mosaic(failing)
        samples = []
        try:
            for index in range(first, min(first + SIZE, LENGTH)):
                try:
                    sample = copies[worker][index].tolist()
                except LookupError:
                    if not skips:
                        raise
                else:
                    samples.append([*sample[:2], worker])
        except LookupError:
            found.append(LookupError)
        else:
            found.append((samples, worker))
    return found


class TestAsTorch:
    @on_each_executor
    @pytest.mark.parametrize("persistent", [False, True])
    def test_batches_and_workers(self, persistent: bool) -> None:
        """In two epochs, the second of which goes on with what workers that persist have kept."""

        def epochs(cls: Any, **options: Any) -> list[Any]:
            torch.manual_seed(1)
            loader = cls(
                Mosaic((7,)),
                SIZE,
                shuffle=True,
                num_workers=WORKERS,
                persistent_workers=persistent,
                collate_fn=Signed(),
                **options,
            )
            found = [drain(iter(loader)) for _ in range(2)]
            if persistent:
                loader._iterator._shutdown_workers()
            return found

        expected = epochs(DataLoader)
        for _ in range(2):
            assert epochs(MinatoLoader, assignment="batch") == expected

    @on_each_executor
    @pytest.mark.parametrize("max_queue_size", [None, 1, 5, 9])
    @pytest.mark.parametrize("transforms", [None, [lambda x: x, lambda x: x]])
    def test_in_every_window(self, max_queue_size: int | None, transforms: Any) -> None:
        """With several steps, too, between which others could go first."""
        loader = batched(max_queue_size=max_queue_size, transforms=transforms)
        assert drain(iter(loader)) == by_hand()

    @on_each_executor
    def test_samples_one_by_one(self) -> None:
        loader = batched(batch_size=None, collate_fn=None)
        assert [sample[2].item() for sample in loader] == [n % WORKERS for n in range(LENGTH)]

    @on_each_executor
    def test_batches_that_the_dataset_fetches_and_empty_ones(self) -> None:
        class Fetches(Mosaic):
            def __getitems__(self, indices: list[int]) -> list[Any]:
                return [self[index] for index in indices]

        sampler = [[0, 1], [], [2], [3, 4], [5]]
        loader = batched(
            dataset=Fetches(),
            batch_size=1,
            batch_sampler=sampler,
            collate_fn=lambda samples: (samples, None),
        )
        owners = [[sample[2].item() for sample in samples] for samples, _ in loader]
        assert owners == [[0, 0], [], [2], [0, 0], [1]]

    def test_without_workers_there_is_one(self) -> None:
        found = drain(iter(batched(num_workers=0)))
        assert [worker for _, worker in found] == [0] * 8


@on_each_executor
class TestOrder:
    def test_batches_overtake_batches(self, executor: str) -> None:
        """And nothing else: each is made of the same samples, by the same worker."""
        released = multiprocessing.get_context("fork").Event()

        class Held(Mosaic):
            def __getitem__(self, index: int) -> Any:
                if index == 0:
                    assert released.wait(PATIENCE)
                return super().__getitem__(index)

        loader = batched(dataset=Held(), in_order=False)
        expected = by_hand()
        with iterating(loader) as iterator:
            early = [next(iterator) for _ in range(2)]
            assert 0 not in {worker for _, worker in early}
            released.set()
            found = [(s.tolist(), worker) for s, worker in early] + drain(iterator)
        assert sorted(found) == sorted(expected)
        assert found[-1] == expected[-1]  # the short one

    def test_a_break_and_another_epoch(self) -> None:
        loader = batched()
        for _ in range(2):
            with iterating(loader) as iterator:
                first = [(s.tolist(), w) for s, w in (next(iterator) for _ in range(3))]
            assert first == by_hand()[:3]
        assert drain(iter(loader)) == by_hand()

    def test_none_keeps_it(self) -> None:
        torch.seed()
        assert not choose_order(batched(shuffle=True, assignment="dynamic"), None).by_position
        assert choose_order(batched(shuffle=True), None).by_position


@on_each_executor
class TestFailures:
    FAILING = (5, 6, 12, 29)

    def test_raise(self) -> None:
        """The rest of the batch is not loaded, as with torch."""
        loader = batched(dataset=Mosaic(self.FAILING))
        assert drain(iter(loader)) == by_hand(self.FAILING)

    def test_skip(self) -> None:
        loader = batched(dataset=Mosaic(self.FAILING), on_error="skip")
        assert drain(iter(loader)) == by_hand(self.FAILING, skips=True)
        assert {index for index, _ in loader.stats.skipped} == set(self.FAILING)

    @pytest.mark.parametrize("max_queue_size", [None, 1])
    def test_replace(self, max_queue_size: int | None) -> None:
        def replacement(index: int, error: BaseException) -> Any:
            info = get_worker_info()
            assert info is not None
            return torch.tensor([index, -1, info.id])

        loader = batched(
            dataset=Mosaic(self.FAILING), on_error=replacement, max_queue_size=max_queue_size
        )
        found = drain(iter(loader))
        assert [i for samples, _ in found for i, _, _ in samples] == list(range(LENGTH))
        for number, (samples, worker) in enumerate(found):
            assert {worker, *(w for _, _, w in samples)} == {number % WORKERS}
            assert all((value == -1) == (i in self.FAILING) for i, value, _ in samples)

    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    def test_a_sample_that_takes_too_long(self, on_error: str, executor: str) -> None:
        """The worker is given up. Its replacement has its number and goes on with its batches,
        but knows nothing of what was loaded."""
        event = threading.Event()  # a process is killed in there

        class Stuck(Mosaic):
            def __getitem__(self, index: int) -> Any:
                if index == 17:  # of batch 4, the second one of worker 1
                    event.wait(PATIENCE)
                return super().__getitem__(index)

        loader = batched(dataset=Stuck(), on_error=on_error, sample_timeout=0.5)
        with iterating(loader) as iterator:
            found = drain(iterator)
            event.set()
        expected = by_hand()
        assert found[:4] + found[5:7] == expected[:4] + expected[5:7]
        # What a process had loaded of the batch is lost with it, and made again.
        known = [] if executor == "thread" else [16]
        if on_error == "raise":
            assert found[4] is TimeoutError
        else:
            samples, worker = found[4]
            assert [index for index, _, _ in samples] == [16, 18, 19]
            assert {worker, *(w for _, _, w in samples)} == {1}
            assert [value for _, value, _ in samples[1:]] == [sum(known) + 18, sum(known) + 18 + 19]
            known += [18, 19]
        samples, worker = found[7]
        assert samples == [[28, sum(known) + 28, 1], [29, sum(known[-2:]) + 28 + 29, 1]]
        assert worker == 1


def test_a_worker_process_that_is_killed() -> None:
    """Its replacement has its number, makes the batch anew, and goes on."""
    once = multiprocessing.get_context("fork").Semaphore(1)

    class Kills(Mosaic):
        def __getitem__(self, index: int) -> Any:
            if index == 17 and once.acquire(block=False):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    loader = batched(dataset=Kills(), executor="process")
    assert drain(iter(loader)) == by_hand(forgets=lambda number: number == 4)


@pytest.mark.usefixtures("threads_by_default")
class TestNothingGoesFirst:
    def test_slow_samples_stay_with_their_worker(self) -> None:
        """Neither diverted nor parked nor handed off."""
        from minato_async import checkpoint

        class Slow(Mosaic):
            def __getitem__(self, index: int) -> Any:
                threading.Event().wait(0.02 if index % 5 == 0 else 0.0)
                checkpoint()
                return super().__getitem__(index)

        loader = batched(
            dataset=Slow(), in_order=False, timeout_threshold=1e-3, transforms=[lambda x: x]
        )
        assert sorted(drain(iter(loader))) == sorted(by_hand())
        stats = loader.stats
        assert (stats.diverted, stats.parked, stats.handed_off) == (0, 0, 0)

    def test_a_worker_that_is_behind_is_waited_for(self) -> None:
        """The others make what is theirs, as far as the window goes, and nothing of its."""
        held = threading.Event()
        loaded: list[int] = []

        class Held(Mosaic):
            def __getitem__(self, index: int) -> Any:
                if index == 0:
                    assert held.wait(PATIENCE)
                loaded.append(index)
                return super().__getitem__(index)

        loader = batched(dataset=Held(), in_order=False, prefetch_factor=8)
        with iterating(loader) as iterator:
            consumer = InThread(lambda: drain(iterator))
            # Batches 0, 3 and 6 are worker 0's.
            theirs = [i for i in range(LENGTH) if i // SIZE % WORKERS]
            while len(loaded) < len(theirs):
                threading.Event().wait(0.01)
            assert sorted(loaded) == theirs
            held.set()
            assert sorted(consumer.result()) == sorted(by_hand())


class TestArguments:
    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match="assignment must be one of"):
            MinatoLoader(range(3), assignment="sample")

    def test_iterable_datasets(self) -> None:
        class Stream(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                return iter(range(3))

        with pytest.raises(ValueError, match="for map-style datasets"):
            MinatoLoader(Stream(), num_workers=2, assignment="batch")

    @pytest.mark.parametrize("scheduler", ["throughput", "paper"])
    def test_schedulers(self, scheduler: str) -> None:
        with pytest.raises(ValueError, match='needs scheduler="fixed"'):
            MinatoLoader(range(3), num_workers=2, assignment="batch", scheduler=scheduler)


class TestFeed:
    def feed(self, window: int, *sizes: int) -> AssignedFeed:
        feed = AssignedFeed(window, 2)
        for size in sizes:
            block = feed.add(range(size), 1)
            block.batch = Batch(size, 1, block.indices)
        return feed

    def test_the_places_of_those_before_are_kept(self) -> None:
        feed = self.feed(5, 3, 3, 2)
        assert feed.waited_for == {0}
        assert feed.claim_for(1) is None  # 3 + 3 are too many
        claim = feed.claim_for(0)
        assert claim is not None
        assert (claim.start, claim.stop) == (0, 3)
        assert feed.claim_for(0) is None
        feed.release(3, 3)
        assert feed.waited_for == {0, 1}  # 3 + 2 are not
        assert feed.claim_for(0) is not None
        assert feed.claim_for(1) is not None
        assert (feed.in_window, feed.unclaimed) == (5, 0)

    def test_one_that_is_larger_than_the_window_is_admitted_alone(self) -> None:
        feed = self.feed(2, 1, 5, 1)
        assert feed.claim_for(1) is None
        assert feed.claim_for(0) is not None
        assert feed.claim_for(1) is None
        feed.release(1, 1)
        assert feed.claim_for(0) is None
        assert feed.claim_for(1) is not None

    def test_what_is_put_back_comes_first_and_for_the_same_worker(self) -> None:
        feed = self.feed(9, 4, 1, 1)
        claim = feed.claim_for(0)
        assert claim is not None
        feed.put_back(claim.block, 3, 4)
        feed.put_back(claim.block, 1, 2)
        assert (feed.in_window, feed.waited_for) == (2, {0, 1})
        assert feed.claim_for(1) is not None
        assert feed.claim_for(1) is None
        for start in (1, 3):
            again = feed.claim_for(0)
            assert again is not None
            assert (again.block, again.start, again.stop) == (claim.block, start, start + 1)
        later = feed.claim_for(0)
        assert later is not None
        assert later.block is not claim.block

    def test_of_a_lost_batch_nothing_behind_the_failure(self) -> None:
        feed = self.feed(9, 4)
        claim = feed.claim_for(0)
        assert claim is not None
        batch = claim.block.batch
        assert batch is not None
        batch.lost, batch.failed_row = True, 1
        feed.put_back(claim.block, 2, 4)
        feed.put_back(claim.block, 0, 1)
        again = feed.claim_for(0)
        assert again is not None
        assert (again.start, again.stop) == (0, 1)
        assert feed.claim_for(0) is None
        assert feed.unclaimed == 0
