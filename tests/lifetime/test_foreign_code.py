"""Nothing of the user's runs under the engine's lock: no finalizer, no `repr`, no comparison of
keys, no handler of a log. Each may wait for what a worker holds that waits for that lock."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from minato_async import MinatoLoader, checkpoint
from minato_async.engine import coordinator
from minato_async.engine.bell import DueBells
from minato_async.scheduling import advice
from tests.foreign import FREED_ANYWHERE, Failure, Foreign, Key, LockCheck, Made, Value, check
from tests.lifetime.support import PATIENCE, eventually, in_thread, no_collector, our_threads

__all__ = ["check"]

LENGTH = 48
#: More than what each worker would have a copy of.
MANY = 4000


class Samples:
    """Samples, of keys that are objects. Those in `bad` fail; those in `stuck` wait for `go_on`."""

    def __init__(self, bad: set[int], stuck: set[int]) -> None:
        self.bad, self.stuck = bad, stuck
        #: A sample is stuck; those that are may go on.
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.values, self.failures = Made(Value, MANY), Made(Failure, MANY)

    def __getitem__(self, key: Key) -> Any:
        if key.number in self.bad:
            raise self.failures.take()
        if key.number in self.stuck:
            self.inside.set()
            assert self.go_on.wait(PATIENCE)
        checkpoint()
        value = self.values.take()
        value.number = key.number
        return value

    def __len__(self) -> int:
        return LENGTH


class Batches:
    """A collate function whose batches are objects, too."""

    def __init__(self) -> None:
        self.made = Made(Value, MANY)

    def __call__(self, samples: list[Any]) -> Any:
        batch = self.made.take()
        batch.parts = list(samples)
        return batch


class Doubled:
    """A transform without a name of its own, and that fails to say so."""

    check: Callable[[str], None] = staticmethod(lambda what: None)

    def __getattr__(self, name: str) -> Any:
        self.check(f"Doubled.{name}")
        raise AttributeError(name)

    def __call__(self, value: Any) -> Any:
        return value


class Keys:
    """A sampler that keeps none of the keys that it yields."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Key]:
        keys = Made(Key, self.length)
        return (keys.take() for _ in range(self.length))

    def __len__(self) -> int:
        return self.length


class Numbers(IterableDataset[Any]):
    def __init__(self, bad: set[int]) -> None:
        self.bad, self.values, self.failures = bad, Made(Value, MANY), Made(Failure, MANY)

    def __iter__(self) -> Iterator[Any]:
        for number in range(LENGTH):
            if number in self.bad:
                raise self.failures.take()
            yield self.values.take()


@pytest.fixture(autouse=True)
def checked(check: LockCheck, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Foreign, "check", staticmethod(check))
    monkeypatch.setattr(Doubled, "check", staticmethod(check))
    # What only the collector frees it may free anywhere.
    with no_collector():
        yield
        assert eventually(lambda: not our_threads())


def consume(iterator: Any, most: int = 1000) -> int:
    """Take up to `most` batches, or failures; returns how many came."""
    for count in range(most):
        try:
            next(iterator)
        except StopIteration:
            return count
        except (Failure, TimeoutError):
            pass
    return most


in_any_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "any order"])
diverting = pytest.mark.parametrize("diverting", [False, True], ids=["one step", "diverting"])


def replace_by_key(key: Any, error: BaseException) -> Any:
    return 0


@in_any_order
class TestMapStyle:
    def loader(
        self, dataset: Samples, in_order: bool, executor: str = "thread", **options: Any
    ) -> MinatoLoader[Any]:
        usual: dict[str, Any] = {
            "batch_size": 4,
            "sampler": Keys(),
            "num_workers": 3,
            "collate_fn": Batches() if executor == "thread" else len,
            "on_error": "raise",
            "timeout": PATIENCE,
        }
        return MinatoLoader(
            dataset,  # type: ignore[arg-type]
            in_order=in_order,
            executor=executor,
            **(usual | options),
        )

    @diverting
    @pytest.mark.parametrize("on_error", ["raise", "skip", replace_by_key])
    def test_epochs_to_their_end(self, in_order: bool, diverting: bool, on_error: Any) -> None:
        options = {"transforms": [Doubled()], "timeout_threshold": 1e-9} if diverting else {}
        dataset = Samples({3, 17, 18}, set())
        loader = self.loader(dataset, in_order, on_error=on_error, drop_last=True, **options)
        for _ in range(2):
            consume(iter(loader))
            assert len(loader.stats.skipped) == (3 if on_error == "skip" else 0)

    @diverting
    @pytest.mark.parametrize("persistent", [False, True])
    def test_epochs_left_early(self, in_order: bool, diverting: bool, persistent: bool) -> None:
        options = {"transforms": [Doubled()], "timeout_threshold": 1e-9} if diverting else {}
        loader = self.loader(
            Samples({3, 9, 17}, set()),
            in_order,
            persistent_workers=persistent,
            prefetch_factor=4,
            **options,
        )
        for taken in range(6):
            consume(iter(loader), taken)

    @diverting
    @pytest.mark.parametrize("on_error", ["raise", "skip", replace_by_key])
    def test_samples_that_take_too_long(
        self, in_order: bool, diverting: bool, on_error: Any
    ) -> None:
        options = {"transforms": [Doubled()], "timeout_threshold": 1e-9} if diverting else {}
        dataset = Samples({3}, {5, 22})
        loader = self.loader(dataset, in_order, sample_timeout=0.05, on_error=on_error, **options)
        consume(iter(loader))
        dataset.go_on.set()

    def test_what_is_running_when_the_consumer_gives_up(self, in_order: bool) -> None:
        dataset = Samples(set(), set(range(LENGTH)))
        iterator = iter(self.loader(dataset, in_order, timeout=0.05))
        assert dataset.inside.wait(PATIENCE)
        with pytest.raises(RuntimeError, match=r"sample index <0>"):
            next(iterator)
        dataset.go_on.set()

        def ends() -> bool:
            try:
                consume(iterator)
            except RuntimeError as late:
                if "timed out" not in str(late):
                    raise
                return False
            return True

        # On a busy machine others may be late, too.
        assert any(ends() for _ in range(round(PATIENCE / 0.05)))

    def test_batches_that_belong_to_workers(self, in_order: bool) -> None:
        dataset = Samples({3, 17, 18}, {26})
        loader = self.loader(
            dataset, in_order, assignment="batch", sample_timeout=0.1, prefetch_factor=4
        )
        for taken in (1000, 3, 1, 1000):
            consume(iter(loader), taken)
        dataset.go_on.set()

    def test_stats_while_loading(self, in_order: bool) -> None:
        loader = self.loader(
            Samples({3, 17}, set()), in_order, transforms=[Doubled()], on_error="skip"
        )
        for _ in range(3):
            iterator = iter(loader)
            while consume(iterator, 1):
                assert loader.stats.in_window >= 0
            del iterator

    def test_large_tensors_that_go_into_rows(self, in_order: bool, check: LockCheck) -> None:
        class Large(Samples):
            def __getitem__(self, key: Key) -> Any:
                if key.number in self.bad:
                    raise self.failures.take()
                return torch.zeros(3, 128, 128)

        loader = self.loader(Large({3, 4, 20}, set()), in_order, collate_fn=None)
        consume(iter(loader))
        consume(iter(loader), 2)

    def test_processes(self, in_order: bool, check: LockCheck) -> None:
        """Here it is the keys, which the parent has."""
        # The loop pickles them; what else there is of the user's it is not to touch.
        dataset = Samples({3, 17, 18}, set())
        loader = self.loader(dataset, in_order, "process", on_error="skip")
        consume(iter(loader))
        assert len(loader.stats.skipped) == 3
        for taken in range(2):
            consume(iter(loader), taken)
        dataset.stuck |= {5}
        loader = self.loader(dataset, in_order, "process", sample_timeout=0.1)
        consume(iter(loader))

    def test_processes_that_die(self, in_order: bool) -> None:
        dataset = Samples(set(), set())
        loader = self.loader(dataset, in_order, "process", transforms=[partial(kill, 7)])
        with pytest.raises(RuntimeError, match="each time over sample index <7>"):
            for _ in iter(loader):
                pass
        # What was drawn and not received is kept for the loader's state, until the next epoch.
        consume(iter(loader), 0)


def kill(number: int, value: Value) -> Value:
    if value.number == number:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    return value


@in_any_order
@pytest.mark.parametrize("mode", ["sharded", "shared"])
def test_iterable(in_order: bool, mode: str) -> None:
    loader = MinatoLoader(
        Numbers({31}),
        batch_size=4,
        num_workers=3,
        collate_fn=Batches(),
        executor="thread",
        in_order=in_order,
        iterable_mode=mode,
        persistent_workers=True,
        timeout=PATIENCE,
    )
    for taken in (1000, 2, 5, 0, 1000):
        consume(iter(loader), taken)
    loader._iterator.close()  # type: ignore[union-attr]


def test_an_epoch_that_is_dropped_with_its_dataset() -> None:
    """The loader, dataset and all that it has go while workers are inside samples."""

    class Whole(Samples, Foreign):
        def __init__(self) -> None:
            Samples.__init__(self, {3}, set(range(8, 12)))
            Foreign.__init__(self)

    for _ in range(3):
        dataset = Made(lambda _: Whole(), 1).take()
        go_on = dataset.go_on
        iterator = iter(TestMapStyle().loader(dataset, False))
        del dataset
        consume(iterator, 2)
        del iterator
        go_on.set()


def test_advice_is_logged_by_the_consumer(
    check: LockCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            check("a handler of the log")
            threads.append(threading.current_thread())
            # It may look at the loader, which takes the lock.
            texts.append(f"{record.getMessage()} {loader.stats.ready_batches}")

    monkeypatch.setattr(advice, "_PERIOD", 0.2)
    monkeypatch.setattr(coordinator, "_ADVICE_INTERVAL", 0.05)
    monkeypatch.setattr(advice, "_given", {topic: threading.Lock() for topic in advice._given})
    threads: list[threading.Thread] = []
    texts: list[str] = []
    handler = Handler()
    advice.logger.addHandler(handler)
    pause = threading.Event()
    loader: MinatoLoader[Any] = MinatoLoader(
        list(range(10**6)),  # type: ignore[arg-type]
        num_workers=1,
        executor="thread",
        transforms=[lambda value: pause.wait(0.01) or value],
        timeout=PATIENCE,
    )
    try:
        for _ in loader:
            if texts:
                break
    finally:
        advice.logger.removeHandler(handler)
    assert threads == [threading.current_thread()]
    assert "the consumer waits for data" in texts[0]


@pytest.mark.skipif(FREED_ANYWHERE, reason="it can be told only where it is freed at once")
def test_the_check_itself(check: LockCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing waits for the lock's release, it finds what is freed too early."""
    monkeypatch.setattr(DueBells, "drop", lambda self, *things: None)
    loader = TestMapStyle().loader(Samples({3}, set()), False, prefetch_factor=4)
    for taken in range(6):
        consume(iter(loader), taken)
    assert eventually(lambda: not our_threads())
    assert any("Key.__del__ under the lock" in found for found in check.found)
    assert any("Value.__del__ under the lock" in found for found in check.found)
    check.found.clear()


@in_any_order
def test_finalizers_that_wait_for_what_a_worker_holds_at_a_checkpoint(in_order: bool) -> None:
    """Samples that go back to their pool when they are dropped, and some that hold it for long."""
    pool, pause = threading.RLock(), threading.Event()

    class Buffer:
        def __del__(self) -> None:
            with pool:
                pass

    class Buffers(Samples):
        def __getitem__(self, key: Key) -> Any:
            if key.number % 7 == 0:
                with pool:
                    pause.wait(0.005)
                    checkpoint()
            return Buffer()

    Foreign.check("this test")
    loader = TestMapStyle().loader(
        Buffers(set(), set()),
        in_order,
        collate_fn=list,
        sampler=Keys(4000),
        timeout_threshold=0.002,
        persistent_workers=True,
        prefetch_factor=8,
    )
    for _ in range(12):
        assert consume(iter(loader), 8) == 8
    loader._iterator.close()  # type: ignore[union-attr]


def test_a_worker_at_a_checkpoint_does_not_wait_for_ever_for_the_lock(
    check: LockCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing prevents Python from running a finalizer under the lock, in the middle of a line: the
    collector does, and where Python is free-threaded the thread that made an object."""
    mine, waits = threading.Lock(), threading.Event()
    engines: list[Any] = []

    class Locked(Samples):
        def __getitem__(self, key: Key) -> Any:
            if key.number == 4:
                with mine:
                    in_thread(lambda: finalizer(engines[0]))
                    assert waits.wait(PATIENCE)
                    checkpoint()
            return key.number

    def finalizer(engine: Any) -> None:
        with engine._lock:
            waits.set()
            with mine:
                pass

    check("this test")
    loader = TestMapStyle().loader(
        Locked(set(), set()), False, collate_fn=list, num_workers=1, timeout_threshold=1e-9
    )
    iterator = iter(loader)
    engines.append(iterator._engine)  # type: ignore[attr-defined]
    assert len(list(iterator)) == LENGTH / 4
    with contextlib.suppress(IndexError):
        engines.pop()


def test_a_worker_that_was_parked_does_not_wait_for_ever_for_the_lock(
    check: LockCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, after it was parked: it goes on, and is counted as parked until its step ends."""
    monkeypatch.setattr(coordinator.IdleCores, "look", lambda self: 0.0)
    monkeypatch.setattr("minato_async.scheduling.threshold.STUCK", 1e9)
    mine, slow, over = threading.Lock(), threading.Event(), threading.Event()
    held = threading.Event()
    engines: list[Any] = []
    got_mine: list[bool] = []

    class Locked(Samples):
        def __getitem__(self, key: Key) -> Any:
            if key.number == 3:  # takes the only place in the slow lane
                checkpoint()
                slow.set()
                assert over.wait(PATIENCE)
            if key.number == 5:
                assert slow.wait(PATIENCE)
                with mine:
                    thread = in_thread(lambda: finalizer(engines[0]))
                    checkpoint()
                thread.join(PATIENCE)
                over.set()
            if key.number > 5:  # else an idle worker would let the parked one go on
                assert held.wait(PATIENCE)
            return key.number

    def finalizer(engine: Any) -> None:
        eventually(lambda: engine._slots.parked == 1)
        with engine._lock:
            held.set()
            assert engine._slots.parked == 1
            got_mine.append(mine.acquire(timeout=PATIENCE / 2))
        mine.release()

    check("this test")
    loader = TestMapStyle().loader(
        Locked(set(), set()), False, collate_fn=list, num_workers=2, timeout_threshold=1e-9
    )
    iterator = iter(loader)
    engines.append(iterator._engine)  # type: ignore[attr-defined]
    assert len(list(iterator)) == LENGTH / 4
    engine = engines.pop()
    assert got_mine == [True]
    assert (engine._slots.parked, loader.stats.slow_active) == (0, 0)
