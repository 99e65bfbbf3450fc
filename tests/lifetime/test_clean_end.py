"""Contract C4: whatever ends an iteration, its threads, descriptors and memory go with it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from minato_async import MinatoLoader
from tests.lifetime.support import (
    PATIENCE,
    Gate,
    Samples,
    all_ours_end,
    as_list,
    child_processes,
    eventually,
    in_thread,
    no_collector,
    open_files,
    our_threads,
    started_threads,
    wait_for_end,
)


def make_loader(dataset: Any, **options: Any) -> MinatoLoader[Any]:
    # Whose worker scheduler neither adds nor ends threads: they are counted.
    defaults: dict[str, Any] = {
        "batch_size": 2,
        "num_workers": 3,
        "collate_fn": as_list,
        "scheduler": "fixed",
    }
    return MinatoLoader(dataset, **(defaults | options))


@pytest.fixture(params=[True, False], ids=["in_order", "any_order"])
def in_order(request: pytest.FixtureRequest) -> bool:
    value: bool = request.param
    return value


# What ends an iteration


def test_after_the_end_of_an_epoch_no_thread_runs(in_order: bool) -> None:
    for _ in make_loader(Samples(20), in_order=in_order):
        assert len(started_threads(4)) == 4  # three workers and the event loop
    assert not our_threads()


def test_a_break_ends_the_threads(in_order: bool) -> None:
    with no_collector():
        for _ in make_loader(Samples(20), in_order=in_order):
            started_threads(4)
            break
        all_ours_end()


def test_an_exception_in_the_loop_body_ends_the_threads(in_order: bool) -> None:
    def train() -> None:
        for _ in make_loader(Samples(20), in_order=in_order):
            started_threads(4)
            raise ZeroDivisionError

    with no_collector():
        with pytest.raises(ZeroDivisionError) as caught:
            train()
        del caught  # its traceback holds the frame, and that the iterator
        all_ours_end()


def test_close_ends_the_threads_and_the_iteration(in_order: bool) -> None:
    iterator = iter(make_loader(Samples(20), in_order=in_order))
    next(iterator)
    iterator.close()
    assert not our_threads()
    assert list(iterator) == []
    iterator.close()


def test_close_before_the_first_batch() -> None:
    iterator = iter(make_loader(Samples(20)))
    iterator.close()
    assert not our_threads()
    assert list(iterator) == []


def test_close_after_the_end() -> None:
    iterator = iter(make_loader(Samples(20)))
    assert len(list(iterator)) == 10
    iterator.close()
    assert list(iterator) == []


def test_close_ends_the_wait_of_other_consumers() -> None:
    gate = Gate()
    dataset = Samples(20, gate)
    iterator = iter(make_loader(dataset))
    ended: list[int] = []
    consumers = [in_thread(lambda: ended.append(len(list(iterator)))) for _ in range(3)]
    gate.wait_until(lambda gate: gate.inside == 3)
    closing = in_thread(iterator.close)
    wait_for_end(consumers)
    assert ended == [0, 0, 0]
    gate.let_go()
    wait_for_end([closing])
    all_ours_end()


def test_an_iterator_that_is_dropped_ends_its_threads(in_order: bool) -> None:
    with no_collector():
        iterator = iter(make_loader(Samples(20), in_order=in_order))
        next(iterator)
        started_threads(4)
        del iterator
        all_ours_end()


def test_an_iterator_that_is_dropped_by_another_thread(in_order: bool) -> None:
    """Free-threaded Python leaves it to the thread that made an object to free it."""
    with no_collector():
        holder = [iter(make_loader(Samples(20), in_order=in_order))]
        wait_for_end([in_thread(holder.clear)])
        all_ours_end()


class Ring:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator = iterator
        self.ring = self


class ClosingRing(Ring):
    def __del__(self) -> None:
        self.iterator.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ring", [Ring, ClosingRing])
def test_an_iterator_in_a_reference_cycle_is_collected(ring: type[Ring]) -> None:
    with no_collector():
        ring(iter(make_loader(Samples(20))))
        started_threads(4)
        gc.collect()
        all_ours_end()


@pytest.mark.parametrize("ring", [Ring, ClosingRing])
def test_an_iterator_is_collected_by_one_of_its_own_workers(ring: type[Ring]) -> None:
    dropped = threading.Event()
    collected_in: list[str] = []

    def collect(index: int) -> int:
        assert dropped.wait(PATIENCE)
        if gc.collect():
            collected_in.append(threading.current_thread().name)
        return index

    with no_collector():
        ring(iter(make_loader(Samples(20, collect))))
        dropped.set()
        all_ours_end()
    assert any(name.startswith("minato-worker") for name in collected_in)


@pytest.mark.parametrize("ring", [Ring, ClosingRing])
def test_an_iterator_is_collected_by_its_own_event_loop(ring: type[Ring]) -> None:
    """The collector may start anywhere; the loop must end all the same."""
    with no_collector():
        iterator: Any = iter(make_loader(Samples(20)))
        call_soon = iterator._engine._loop.call_soon
        cycle = ring(iterator)
        del cycle, iterator
        call_soon(gc.collect)
        del call_soon
        all_ours_end()


def test_a_persistent_loader_keeps_its_threads_and_ends_them_when_it_is_dropped() -> None:
    with no_collector():
        loader = make_loader(Samples(20), persistent_workers=True)
        assert len(list(loader)) == 10
        threads = started_threads(4)
        assert len(list(loader)) == 10
        assert our_threads() == threads
        del loader
        all_ours_end()


def test_a_persistent_loader_dropped_in_the_middle_of_an_epoch() -> None:
    with no_collector():
        loader = make_loader(Samples(20), persistent_workers=True)
        for _ in loader:
            break
        del loader
        all_ours_end()


def test_a_persistent_loader_goes_on_with_new_threads_after_close() -> None:
    loader = make_loader(Samples(20), persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    assert not our_threads()
    assert len(list(loader)) == 10


def test_a_cancelled_task_ends_the_threads(in_order: bool) -> None:
    gate = Gate(free=range(2))
    dataset = Samples(20, gate)

    async def train() -> None:
        async for _ in make_loader(dataset, in_order=in_order):
            pass

    async def cancel() -> None:
        task = asyncio.create_task(train())
        await asyncio.to_thread(gate.wait_until, lambda gate: gate.inside == 3)
        started_threads(4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with no_collector():
        asyncio.run(cancel())
        gate.let_go()
        all_ours_end()


def test_a_cancelled_wait_loses_no_batch() -> None:
    gate = Gate()
    dataset = Samples(8, gate)

    async def read() -> list[Any]:
        iterator = aiter(make_loader(dataset))
        for _ in range(5):
            waiting = asyncio.ensure_future(anext(iterator))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        gate.let_go()
        return [sample async for batch in iterator for sample in batch]

    assert asyncio.run(read()) == list(range(8))


def test_a_loop_that_is_gone_before_the_batch_comes() -> None:
    """A worker finishes a batch for which a coroutine waited whose event loop is closed."""
    gate = Gate()
    dataset = Samples(8, gate)
    iterator = iter(make_loader(dataset))

    async def wait_briefly() -> None:
        waiting = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(wait_briefly())
    gate.let_go()
    assert [sample for batch in iterator for sample in batch] == list(range(8))


# What is left


def test_a_hundred_loaders_leave_nothing(in_order: bool) -> None:
    list(make_loader(Samples(4)))
    files, children = open_files(), child_processes()
    with no_collector():
        for made in range(100):
            iterator = iter(make_loader(Samples(20), in_order=in_order))
            if made % 2:
                next(iterator)
            del iterator
            all_ours_end()
    assert not our_threads()
    assert open_files() <= files
    assert child_processes() == children == 0


def test_a_hundred_loaders_alive_at_once_leave_nothing() -> None:
    files = open_files()
    iterators = [iter(make_loader(Samples(20), num_workers=1)) for _ in range(100)]
    assert [next(iterator) for iterator in iterators] == [[0, 1]] * 100
    started_threads(200)
    with no_collector():
        iterators.clear()
        all_ours_end()
    assert open_files() <= files


def test_the_engine_itself_is_freed() -> None:
    """It holds itself in a cycle while it runs; afterwards nothing else may hold it."""
    iterator: Any = iter(make_loader(Samples(20)))
    engine = weakref.ref(iterator._engine)
    next(iterator)
    iterator.close()
    del iterator
    gc.collect()
    assert engine() is None


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_no_thread_refers_to_the_iterator(batches: int, in_order: bool) -> None:
    gate = Gate(free=range(2 * batches))
    dataset = Samples(40, gate)
    with no_collector():
        iterator = iter(make_loader(dataset, in_order=in_order))
        for _ in range(batches):
            next(iterator)
        gate.wait_until(lambda gate: gate.inside == 3)
        gone = weakref.ref(iterator)
        del iterator
        assert gone() is None
        gate.let_go()
        all_ours_end()


def test_no_thread_refers_to_the_loader_or_the_dataset_of_a_finished_epoch() -> None:
    with no_collector():
        loader = make_loader(Samples(20), persistent_workers=True)
        list(loader)
        iterator = iter(loader)
        assert len(list(iterator)) == 10
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
        iterator.close()


def test_a_failed_set_up_ends_the_threads() -> None:
    """Whoever keeps the error keeps the iterator, by its traceback."""

    def fail(worker: int) -> None:
        raise ZeroDivisionError

    with no_collector():
        iterator = iter(make_loader(Samples(20), worker_init_fn=fail))
        with pytest.raises(ZeroDivisionError) as kept:
            next(iterator)
        all_ours_end()
        assert kept.value.__traceback__ is not None


def test_a_kept_error_does_not_keep_the_threads() -> None:
    def fail(index: int) -> int:
        raise ZeroDivisionError(index)

    with no_collector():
        iterator = iter(make_loader(Samples(20, fail)))
        try:
            next(iterator)
        except ZeroDivisionError as error:
            # As a user might who reports it later: with the traceback of the worker, but
            # without this frame, which refers to the iterator.
            kept = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        del iterator
        all_ours_end()
        assert kept.args == (0,)


# Steps that are stuck


def test_close_returns_while_a_step_is_stuck() -> None:
    gate = Gate()
    dataset = Samples(20, gate)
    iterator = iter(make_loader(dataset))
    gate.wait_until(lambda gate: gate.inside == 3)
    closing = in_thread(iterator.close)
    wait_for_end([closing])
    assert gate.inside == 3, "somebody let go of the samples"
    assert list(iterator) == []
    gate.let_go()
    all_ours_end()
    assert gate.started == 3, "a closed loader went on loading"


def test_the_end_of_an_epoch_comes_while_a_step_of_a_lost_batch_is_stuck() -> None:
    stuck = Gate(free=[0, 2, 3])

    def make(index: int) -> int:
        if index == 0:
            stuck.wait_for_calls(1)
            raise ZeroDivisionError
        return stuck(index)

    iterator = iter(make_loader(Samples(4, make), in_order=True))
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    rest: list[Any] = []
    wait_for_end([in_thread(lambda: rest.extend(iterator))])
    assert rest == [[2, 3]]
    stuck.let_go()
    all_ours_end()


def test_a_new_epoch_of_persistent_workers_does_not_wait_for_a_stuck_step() -> None:
    gate = Gate(free=range(1, 20))
    dataset = Samples(20, gate)
    loader = make_loader(dataset, persistent_workers=True, in_order=False)
    iterator = iter(loader)
    next(iterator)
    gate.wait_for_calls(0)
    again = iter(loader)
    gate.let_go()
    assert sorted(sample for batch in again for sample in batch) == list(range(20))
    assert gate.calls[0] == 2


def test_two_live_iterators_do_not_disturb_each_other() -> None:
    loader = make_loader(Samples(20))
    first, second = iter(loader), iter(loader)
    assert next(first) == next(second) == [0, 1]
    first.close()
    assert [sample for batch in second for sample in batch] == list(range(2, 20))


def test_a_finalizer_of_a_sample_does_not_hold_up_other_samples() -> None:
    """Samples are user objects; what their finalizers do must not happen under a lock."""
    begun, release = threading.Event(), threading.Event()

    class Sample:
        def __init__(self, index: int) -> None:
            self.index = index

        def __del__(self) -> None:
            if self.index == 0:
                begun.set()
                assert release.wait(PATIENCE)

    def indices(samples: list[Sample]) -> list[int]:
        return [sample.index for sample in samples]

    loader = make_loader(
        Samples(6, Sample), batch_size=1, in_order=False, collate_fn=indices, num_workers=2
    )
    iterator = iter(loader)
    assert begun.wait(PATIENCE)
    others: list[Any] = []
    wait_for_end([in_thread(lambda: others.extend(next(iterator) for _ in range(5)))])
    assert sorted(others) == [[1], [2], [3], [4], [5]]
    release.set()
    assert next(iterator) == [0]
    iterator.close()


def test_what_is_not_the_main_thread_may_load_and_drop() -> None:
    def load() -> None:
        for _ in make_loader(Samples(20)):
            break

    with no_collector():
        wait_for_end([in_thread(load) for _ in range(8)])
        all_ours_end()
    assert sys.exc_info() == (None, None, None)


# Several threads at once


def test_an_epoch_that_begins_when_another_thread_has_just_closed_is_at_its_end() -> None:
    loader = make_loader(Samples(20), persistent_workers=True, timeout=PATIENCE)
    iterator: Any = iter(loader)
    iterator.close()
    all_ours_end()
    # What `iter()` does after it has found the iterator fit for another epoch.
    iterator._start_epoch(loader, first=False)
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_interrupt_in_the_middle_of_things_is_told_to_all_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    iterator: Any = iter(make_loader(Samples(20, gate)))
    errors: list[RuntimeError] = []

    def wait() -> None:
        with pytest.raises(RuntimeError, match="engine has failed") as caught:
            next(iterator)
        errors.append(caught.value)

    def interrupted(consumer: int | None) -> None:
        raise KeyboardInterrupt

    waiting = in_thread(wait)
    assert eventually(lambda: bool(iterator._epoch.delivery._waiting))
    monkeypatch.setattr(iterator._epoch, "pop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    wait_for_end([waiting])
    assert "KeyboardInterrupt" in str(errors[0].__cause__)
    gate.let_go()
    iterator.close()


def test_a_forked_child_is_refused_whoever_held_the_lock() -> None:
    iterator: Any = iter(make_loader(Samples(20)))
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with iterator._engine._lock:
            held.set()
            assert forked.wait(PATIENCE)

    holder = in_thread(hold)
    assert held.wait(PATIENCE)
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE))
        refused = 0
        for ask in (next, next, lambda iterator: iterator.stats):
            try:
                ask(iterator)
            except RuntimeError as error:
                refused += "belongs to the parent" in str(error)
        os._exit(refused)
    forked.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    wait_for_end([holder])
    assert [sample for batch in iterator for sample in batch] == list(range(20))
