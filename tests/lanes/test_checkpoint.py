"""`checkpoint()`: user code lets the loader step in."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from minato_async import MinatoLoader, SampleCancelled, checkpoint
from minato_async.checkpoint import current
from minato_async.executors.thread import jobs as thread_jobs
from minato_async.replicas.composed_transforms import Parts, add_checkpoints
from minato_async.replicas.replica import Code, Replica

from .support import PATIENCE, Made, Tally, busy, flat, until, wait_for


def loader_of(dataset: Any, **options: Any) -> MinatoLoader[Any]:
    usual = {
        "batch_size": 2,
        "num_workers": 2,
        "in_order": False,
        "collate_fn": list,
        "timeout": PATIENCE,
    }
    return MinatoLoader(dataset, **(usual | options))


class TestOutsideWorkers:
    def test_it_does_nothing(self) -> None:
        assert checkpoint() is None  # type: ignore[func-returns-value]

    def test_without_workers_too(self) -> None:
        dataset = Made(4, lambda index: checkpoint() or index)
        assert flat(MinatoLoader(dataset, batch_size=2, collate_fn=list)) == [0, 1, 2, 3]

    def test_while_a_batch_is_collated_too(self) -> None:
        def collate(samples: list[int]) -> list[int]:
            checkpoint()
            return samples

        loader = loader_of(Made(8), collate_fn=collate, timeout_threshold=1e-9)
        assert sorted(flat(loader)) == list(range(8))

    def test_in_a_thread_of_the_dataset_too(self) -> None:
        def load(index: int) -> int:
            thread = threading.Thread(target=checkpoint)
            thread.start()
            thread.join()
            return index

        loader = loader_of(Made(8, load), timeout_threshold=1e-9)
        assert sorted(flat(loader)) == list(range(8))


class Endless:
    """Samples that, from index `first` on, come to a checkpoint over and over."""

    def __init__(self, first: int = 2) -> None:
        self.first = first
        self.inside = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.endless = True

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index < self.first or not self.endless:
            return index
        self.inside.release()
        pause = threading.Event()
        try:
            while True:
                try:
                    pause.wait(0.001)
                    checkpoint()
                except Exception:
                    continue  # as code that thinks it knows better: this must not catch it
        except SampleCancelled:
            self.cancelled.release()
            raise


class TestCancelled:
    def wait_for(self, semaphore: threading.Semaphore, count: int) -> None:
        for _ in range(count):
            assert semaphore.acquire(timeout=PATIENCE)

    @pytest.mark.parametrize("in_order", [True, False])
    def test_when_the_iterator_is_dropped(self, in_order: bool) -> None:
        dataset = Endless()
        iterator = iter(loader_of(dataset, in_order=in_order))
        assert sorted(next(iterator)) == [0, 1]
        self.wait_for(dataset.inside, 2)
        del iterator
        self.wait_for(dataset.cancelled, 2)

    def test_when_it_is_closed(self) -> None:
        dataset = Endless()
        iterator = iter(loader_of(dataset))
        self.wait_for(dataset.inside, 2)
        iterator.close()
        self.wait_for(dataset.cancelled, 2)
        assert list(iterator) == []

    @pytest.mark.parametrize("in_order", [True, False])
    def test_when_the_next_epoch_begins_and_its_workers_live(self, in_order: bool) -> None:
        dataset = Endless()
        loader = loader_of(dataset, in_order=in_order, persistent_workers=True)
        iterator = iter(loader)
        next(iterator)
        self.wait_for(dataset.inside, 2)
        before = {t for t in threading.enumerate() if t.name.startswith("minato-worker")}
        dataset.endless = False
        again = iter(loader)
        self.wait_for(dataset.cancelled, 2)
        assert sorted(flat(again)) == list(range(8))
        after = {t for t in threading.enumerate() if t.name.startswith("minato-worker")}
        assert after == before

    def test_raised_by_the_user_it_is_an_error_like_others(self) -> None:
        def load(index: int) -> int:
            raise SampleCancelled

        with pytest.raises(SampleCancelled):
            list(loader_of(Made(4, load)))


class Slow:
    """Samples below `slow` wait for `go_on`, then come to a checkpoint, and go on."""

    def __init__(self, n: int, slow: int) -> None:
        self.n, self.slow = n, slow
        self.here = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.stay = threading.Event()
        #: Cleared, it holds the others.
        self.fast = threading.Event()
        self.fast.set()
        self.passed = Tally()
        self.runs = Tally()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.runs.add(index)
        if index < self.slow:
            self.here.release()
            wait_for(self.go_on)
            checkpoint()
            self.passed.add(index)
            wait_for(self.stay)
        else:
            wait_for(self.fast)
        return index


@pytest.mark.usefixtures("no_core_idles")
class TestParking:
    """Two workers, both inside a slow sample. The slow lane has one place: at their checkpoints
    one goes on, and the other waits while others run in its place."""

    def start(self, monkeypatch: pytest.MonkeyPatch, hold_others: bool = False) -> Any:
        monkeypatch.setattr(thread_jobs, "PARKING", PATIENCE)
        dataset = Slow(16, slow=2)
        if hold_others:
            dataset.fast.clear()
        # Hand-off is not what is tested: the threshold is far from where workers are stuck.
        loader = loader_of(dataset, scheduler="fixed", max_queue_size=16, timeout_threshold=0.001)
        monkeypatch.setattr("minato_async.scheduling.threshold.STUCK", 1e9)
        iterator = iter(loader)
        for _ in range(2):
            assert dataset.here.acquire(timeout=PATIENCE)
        busy(0.005)  # both are past their threshold now
        dataset.go_on.set()
        return dataset, iterator

    def test_it_lets_others_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset, iterator = self.start(monkeypatch)
        # Both workers are held, so whoever loads these runs in the place of the parked one.
        seen = flat(next(iterator) for _ in range(7))
        assert sorted(seen) == list(range(2, 16))
        dataset.stay.set()
        assert sorted(flat(iterator)) == [0, 1]
        assert dataset.runs.counts == dict.fromkeys(range(16), 1)

    def test_it_goes_on_when_there_is_nothing_else_to_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset, iterator = self.start(monkeypatch)
        flat(next(iterator) for _ in range(7))
        until(lambda: dataset.passed.counts == {0: 1, 1: 1})
        assert iterator.stats.parked == 0
        dataset.stay.set()
        flat(iterator)

    def test_never_more_than_the_workers_are_inside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tally = Tally()
        monkeypatch.setattr("minato_async.scheduling.threshold.STUCK", 1e9)

        def load(index: int) -> int:
            with tally.inside():
                busy(0.002)
            checkpoint()
            with tally.inside():
                busy(0.001)
            return index

        loader = loader_of(Made(60, load), num_workers=3, max_queue_size=24, timeout_threshold=1e-6)
        iterator = iter(loader)
        assert sorted(flat(iterator)) == list(range(60))
        assert tally.most_inside <= 3

    def test_it_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sample that goes on needs what the parked one has to do first."""
        monkeypatch.setattr(thread_jobs, "PARKING", 0.05)
        monkeypatch.setattr("minato_async.scheduling.threshold.STUCK", 1e9)
        here, both, first_done = threading.Semaphore(0), threading.Event(), threading.Event()
        order: list[int] = []

        def load(index: int) -> int:
            if index < 2:
                here.release()
                wait_for(both)
                checkpoint()
                order.append(index)
                if len(order) == 1:
                    wait_for(first_done)
                first_done.set()
            elif not first_done.is_set():
                wait_for(first_done)
            return index

        iterator = iter(loader_of(Made(16, load), max_queue_size=16, timeout_threshold=0.001))
        for _ in range(2):
            assert here.acquire(timeout=PATIENCE)
        busy(0.005)
        both.set()
        assert sorted(flat(iterator)) == list(range(16))

    def test_being_parked_costs_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset, iterator = self.start(monkeypatch, hold_others=True)
        engine = iterator._engine
        until(lambda: iterator.stats.parked == 1)
        (going_on,) = dataset.passed.counts

        def costs() -> dict[str, float]:
            with engine._lock:
                running = engine._slots.running.values()
                return {entry.job.describe(): entry.job.elapsed for entry in running}

        before = costs()
        busy(0.1)
        after = costs()
        passed, parked = f"sample index {going_on}", f"sample index {1 - going_on}"
        assert after[passed] >= before[passed] + 0.1
        assert after[parked] == before[parked]
        dataset.fast.set()
        until(lambda: len(dataset.passed.counts) == 2)
        dataset.stay.set()
        flat(iterator)

    def test_a_parked_sample_is_cancelled_at_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset, iterator = self.start(monkeypatch, hold_others=True)
        slots, epoch = iterator._engine._slots, iterator._epoch
        until(lambda: slots.parked == 1)
        del iterator
        until(lambda: epoch.abandoned)
        dataset.stay.set()
        dataset.fast.set()
        until(lambda: not any(t.name.startswith("minato") for t in threading.enumerate()))
        assert sum(dataset.passed.counts.values()) == 1


@pytest.mark.usefixtures("cores_idle")
def test_with_a_core_to_spare_nobody_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minato_async.scheduling.threshold.STUCK", 1e9)
    dataset = Slow(16, slow=2)
    iterator = iter(loader_of(dataset, max_queue_size=16, timeout_threshold=0.001))
    for _ in range(2):
        assert dataset.here.acquire(timeout=PATIENCE)
    until(lambda: iterator._engine._slots.cores_idle)
    dataset.go_on.set()
    until(lambda: dataset.passed.counts == {0: 1, 1: 1})
    dataset.stay.set()
    assert sorted(flat(iterator)) == list(range(16))


@pytest.mark.usefixtures("no_core_idles")
def test_strict_order_parks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Slow(16, slow=2)
    loader = loader_of(dataset, in_order=True, max_queue_size=16, timeout_threshold=0.001)
    iterator = iter(loader)
    for _ in range(2):
        assert dataset.here.acquire(timeout=PATIENCE)
    busy(0.005)
    dataset.go_on.set()
    until(lambda: dataset.passed.counts == {0: 1, 1: 1})
    dataset.stay.set()
    assert flat(iterator) == list(range(16))


class Compose:
    """As torchvision's."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value


class Plus(torch.nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, value: int) -> int:
        return value + self.n


class Transformed:
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.transform, list):
            for transform in self.transform:
                index = transform(index)
            return index
        return self.transform(index)


def with_checkpoints(transform: Any) -> Any:
    """`transform` after its dataset, a worker's own copy, got its checkpoints."""
    dataset = Transformed(copy.deepcopy(transform))
    add_checkpoints(dataset)
    add_checkpoints(dataset)  # of the next epoch
    return dataset.transform


PARTS = [Plus(10), Plus(100), Plus(1000)]
COMPOSED = [Compose(list(PARTS)), torch.nn.Sequential(*PARTS), list(PARTS)]


class Counting:
    def __init__(self) -> None:
        self.checkpoints = 0

    def checkpoint(self) -> None:
        self.checkpoints += 1


class TestComposed:
    @pytest.mark.parametrize("transform", COMPOSED, ids=lambda t: type(t).__name__)
    def test_there_is_a_checkpoint_between_two_parts(
        self, transform: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counting = Counting()
        monkeypatch.setattr(current, "job", counting)
        copied = with_checkpoints(transform)
        assert Transformed(copied)[1] == 1111
        assert counting.checkpoints == 2

    @pytest.mark.parametrize("transform", COMPOSED, ids=lambda t: type(t).__name__)
    def test_the_user_s_objects_stay_as_they_are(self, transform: Any) -> None:
        parts = getattr(transform, "transforms", transform)
        dataset = Transformed(transform)
        loader = loader_of(dataset, timeout_threshold=1e-9)
        assert sorted(flat(loader)) == [1110 + index for index in range(8)]
        assert dataset.transform is transform
        assert list(parts) == PARTS

    @pytest.mark.parametrize(
        "transform",
        [Compose([abs]), [abs], abs, None, [1, 2], "ab", (abs, abs)],
    )
    def test_anything_else_stays_what_it_is(self, transform: Any) -> None:
        changed = with_checkpoints(transform)
        assert getattr(changed, "transforms", changed) == getattr(
            transform, "transforms", transform
        )

    def test_a_sequential_keeps_its_mode(self) -> None:
        composed = torch.nn.Sequential(*PARTS).eval()
        assert with_checkpoints(composed).training is False
        assert with_checkpoints(composed.train()).training is True

    def test_a_tuple_of_parts_stays_one(self) -> None:
        changed = with_checkpoints(Compose((abs, round)))  # type: ignore[arg-type]
        assert isinstance(changed.transforms, tuple)
        assert changed.transforms == (abs, round)

    @pytest.mark.parametrize(
        "transform", [*COMPOSED, Compose(tuple(PARTS))], ids=lambda t: type(t).__name__
    )
    def test_checkpoints_are_no_parts(self, transform: Any) -> None:
        """Libraries count the parts and ask for the first of a class, as MONAI's caches do."""
        changed = with_checkpoints(transform)
        parts = getattr(changed, "transforms", changed)
        assert len(parts) == 3
        assert [part.n for part in parts] == [10, 100, 1000]
        assert [parts[n].n for n in range(3)] == [10, 100, 1000]
        assert [part.n for part in parts[1:]] == [100, 1000]
        again = copy.deepcopy(parts)
        assert type(again) in (list, tuple, torch.nn.Sequential)

    @pytest.mark.parametrize("transform", COMPOSED, ids=lambda t: type(t).__name__)
    def test_parts_that_are_added_between_two_epochs_run(self, transform: Any) -> None:
        dataset = Transformed(copy.deepcopy(transform))
        loader = loader_of(dataset, persistent_workers=True, executor="thread")
        assert sorted(flat(loader)) == [1110 + index for index in range(8)]
        parts = getattr(dataset.transform, "transforms", dataset.transform)
        parts.append(Plus(10_000))
        assert sorted(flat(loader)) == [11_110 + index for index in range(8)]

    def test_a_copy_of_a_replica_gets_checkpoints_and_the_parts_that_are_there(self) -> None:
        replica = Replica(Code(Transformed(Compose([Plus(1)])), [], len, None, "raise"), 0)
        replica.code.dataset.transform.transforms.append(Plus(2))
        theirs, mine = replica.fork().code.dataset.transform, replica.code.dataset.transform
        assert [part.n for part in theirs.transforms] == [1, 2]
        assert type(theirs.transforms) is type(mine.transforms) is Parts
        assert theirs.transforms[0] is not mine.transforms[0]

    def test_an_endless_composition_is_cancelled(self) -> None:
        inside, never = threading.Event(), threading.Event()

        def first(index: int) -> int:
            if index == 2:
                inside.set()
                never.wait(0.2)
            return index

        second = Tally()

        def count(index: int) -> int:
            second.add(index)
            return index

        iterator = iter(loader_of(Transformed(Compose([first, count])), num_workers=1))
        wait_for(inside)
        iterator.close()
        assert second.counts[2] == 0
