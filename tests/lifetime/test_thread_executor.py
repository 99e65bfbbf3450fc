"""The thread executor alone, with a source of jobs that knows nothing of batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minato_async.checkpoint import SampleCancelled
from minato_async.engine.protocols import Worker
from minato_async.executors.thread.executor import ThreadExecutor
from tests.lifetime.support import (
    PATIENCE,
    all_ours_end,
    eventually,
    in_thread,
    our_threads,
    wait_for_end,
)


class FunctionJob:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def describe(self) -> str:
        return repr(self.function)

    def run(self, worker: Worker) -> None:
        self.function()


class Source:
    """A queue of jobs, as simple as can be."""

    def __init__(self) -> None:
        self.jobs: deque[FunctionJob] = deque()
        self.failures: list[tuple[str, BaseException]] = []
        self.waiting = 0
        self.changed = threading.Condition()

    def put(self, *functions: Callable[[], Any]) -> None:
        with self.changed:
            self.jobs.extend(map(FunctionJob, functions))
            self.changed.notify_all()

    def take(self, worker: Worker) -> FunctionJob | None:
        with self.changed:
            self.waiting += 1
            self.changed.notify_all()
            try:
                self.changed.wait_for(lambda: worker.retiring or self.jobs)
                return None if worker.retiring else self.jobs.popleft()
            finally:
                self.waiting -= 1
                self.changed.notify_all()

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def worker_failed(self, worker: Worker, error: BaseException) -> None:
        with self.changed:
            self.failures.append((worker.name, error))
            self.changed.notify_all()

    def wait_until(self, what: Callable[[Source], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what(self), PATIENCE)


class Crew:
    """An executor with its source, and how often it told that all workers have ended."""

    def __init__(self, size: int = 0) -> None:
        self.source = Source()
        self.ends: list[float] = []
        self.ended = threading.Event()
        self.executor = ThreadExecutor(self.source, self._all_ended)
        self.executor.resize(size)

    def _all_ended(self) -> None:
        self.ends.append(time.monotonic())
        self.ended.set()

    def meet(self, count: int) -> None:
        """Let `count` jobs run at once: each waits for all the others."""
        barrier = threading.Barrier(count + 1)
        self.source.put(*[lambda: barrier.wait(PATIENCE)] * count)
        barrier.wait(PATIENCE)

    def names(self) -> set[str]:
        return {thread.name for thread in our_threads()}


@contextmanager
def crew_of(size: int) -> Iterator[Crew]:
    crew = Crew(size)
    try:
        yield crew
    finally:
        crew.executor.close()
        all_ours_end()


def test_as_many_jobs_run_at_once_as_there_are_workers() -> None:
    with crew_of(4) as crew:
        crew.meet(4)
        assert crew.executor.size == 4
        assert crew.names() == {f"minato-worker-{number}" for number in range(4)}


def test_no_more_jobs_run_at_once_than_there_are_workers() -> None:
    with crew_of(3) as crew:
        inside, most = 0, 0
        lock = threading.Lock()
        meeting = threading.Barrier(3)

        def job() -> None:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            meeting.wait(PATIENCE)
            with lock:
                inside -= 1

        crew.source.put(*[job] * 30)
        crew.source.wait_until(lambda source: not source.jobs and source.waiting == 3)
        assert most == 3


def test_it_grows_while_jobs_run() -> None:
    with crew_of(2) as crew:
        meeting = threading.Barrier(6)
        crew.source.put(*[lambda: meeting.wait(PATIENCE)] * 5)
        crew.source.wait_until(lambda source: len(source.jobs) == 3)
        assert crew.executor.size == 2
        crew.executor.resize(5)
        meeting.wait(PATIENCE)
        assert crew.executor.size == 5


def test_it_shrinks_at_once_by_workers_that_are_idle() -> None:
    with crew_of(5) as crew:
        crew.meet(5)
        crew.source.wait_until(lambda source: source.waiting == 5)
        threads = our_threads()
        crew.executor.resize(2)
        wait_for_end([thread for thread in threads if thread.name > "minato-worker-1"])
        assert crew.names() == {"minato-worker-0", "minato-worker-1"}
        assert crew.executor.size == 2
        crew.meet(2)


def test_it_shrinks_by_workers_that_are_busy_once_their_job_is_done() -> None:
    with crew_of(4) as crew:
        release = threading.Event()
        done: list[bool] = []
        threads = our_threads()
        crew.source.put(*[lambda: done.append(release.wait(PATIENCE))] * 4)
        crew.source.wait_until(lambda source: not source.jobs)
        crew.executor.resize(1)
        assert crew.executor.size == 1
        assert len(our_threads()) == 4
        crew.source.put(*[lambda: done.append(True)] * 3)
        release.set()
        wait_for_end([thread for thread in threads if thread.name != "minato-worker-0"])
        crew.source.wait_until(lambda source: source.waiting == 1)
        assert done == [True] * 7, "a job was dropped, or its worker"
        assert crew.names() == {"minato-worker-0"}


def test_to_nothing_and_up_again() -> None:
    with crew_of(3) as crew:
        crew.meet(3)
        threads = our_threads()
        crew.executor.resize(0)
        wait_for_end(threads)
        assert crew.executor.size == 0
        assert not crew.ends, "it is empty, not closed"
        ran = threading.Event()
        crew.source.put(ran.set)
        crew.executor.resize(1)
        assert ran.wait(PATIENCE)
        crew.executor.resize(4)
        crew.meet(4)
        assert not crew.ends


def test_names_are_unique_among_those_that_run() -> None:
    with crew_of(3) as crew:
        release, busy = threading.Event(), threading.Barrier(4)

        def job() -> None:
            busy.wait(PATIENCE)
            release.wait(PATIENCE)

        crew.source.put(*[job] * 3)
        busy.wait(PATIENCE)
        crew.executor.resize(1)  # two of them are on their way out, and still run
        crew.executor.resize(3)
        crew.meet(2)
        names = [thread.name for thread in our_threads()]
        assert len(names) == len(set(names)) == 5
        release.set()


def test_a_negative_size_is_refused() -> None:
    with crew_of(1) as crew:
        with pytest.raises(ValueError, match="-1"):
            crew.executor.resize(-1)
        assert crew.executor.size == 1


def test_resized_by_several_threads_at_once() -> None:
    with crew_of(0) as crew:
        start = threading.Barrier(4)

        def resize(size: int) -> None:
            start.wait(PATIENCE)
            for step in range(30):
                crew.executor.resize((size + step) % 7)

        wait_for_end([in_thread(lambda size=size: resize(size)) for size in range(4)])
        crew.executor.resize(5)
        crew.meet(5)
        crew.executor.resize(2)
        crew.source.wait_until(lambda source: source.waiting <= 2)
        # Those beyond the two have been told to end, and end.
        staying = {"minato-worker-0", "minato-worker-1"}
        crew.meet(2)
        assert crew.executor.size == 2
        threads = [thread for thread in our_threads() if thread.name not in staying]
        crew.executor.close()
        wait_for_end(threads)


def test_close_lets_running_jobs_finish_and_drops_the_rest() -> None:
    crew = Crew(2)
    release = threading.Event()
    done: list[int] = []

    def job() -> None:
        release.wait(PATIENCE)
        done.append(1)

    crew.source.put(*[job] * 5)
    crew.source.wait_until(lambda source: len(source.jobs) == 3)
    crew.executor.close()
    crew.executor.close()
    assert crew.executor.size == 0
    assert not crew.executor.join(timeout=0)
    assert not crew.ended.is_set()
    release.set()
    assert crew.executor.join(PATIENCE)
    assert crew.ended.is_set()
    assert done == [1, 1]
    assert len(crew.ends) == 1


def test_close_of_idle_workers() -> None:
    crew = Crew(3)
    crew.source.wait_until(lambda source: source.waiting == 3)
    crew.executor.close()
    assert crew.ended.wait(PATIENCE)
    assert crew.executor.join(PATIENCE)
    assert len(crew.ends) == 1


@pytest.mark.parametrize("size", [0, 2])
def test_close_when_no_worker_is_left(size: int) -> None:
    crew = Crew(size)
    threads = our_threads()
    crew.executor.resize(0)
    wait_for_end(threads)
    crew.executor.close()
    assert len(crew.ends) == 1
    assert crew.executor.join()


def test_resize_after_close_has_no_effect() -> None:
    crew = Crew(1)
    crew.executor.close()
    crew.executor.resize(3)
    assert crew.executor.size == 0
    assert crew.executor.join(PATIENCE)
    assert len(crew.ends) == 1
    assert not our_threads()


def test_close_and_resize_at_once_leave_no_worker() -> None:
    for _ in range(50):
        crew = Crew(1)
        start = threading.Barrier(2)

        def grow(crew: Crew = crew, start: threading.Barrier = start) -> None:
            start.wait(PATIENCE)
            crew.executor.resize(4)

        growing = in_thread(grow)
        start.wait(PATIENCE)
        crew.executor.close()
        wait_for_end([growing])
        assert crew.ended.wait(PATIENCE)
        assert crew.executor.join(PATIENCE)
        assert len(crew.ends) == 1


def test_an_error_that_escapes_a_job_is_reported_and_ends_its_worker_alone() -> None:
    with crew_of(2) as crew:
        error = ZeroDivisionError()

        def fail() -> None:
            raise error

        crew.source.put(fail)
        crew.source.wait_until(lambda source: bool(source.failures))
        assert [failure for _, failure in crew.source.failures] == [error]
        assert crew.source.failures[0][0] in {"minato-worker-0", "minato-worker-1"}
        ran = threading.Event()
        crew.source.put(ran.set)
        assert ran.wait(PATIENCE)
        crew.executor.resize(3)
        crew.meet(3)


def test_an_error_in_take_is_reported() -> None:
    class Broken(Source):
        def take(self, worker: Worker) -> FunctionJob | None:
            raise ZeroDivisionError

    source = Broken()
    ended = threading.Event()
    executor = ThreadExecutor(source, ended.set)
    executor.resize(1)
    source.wait_until(lambda source: bool(source.failures))
    executor.close()
    assert ended.wait(PATIENCE)
    assert executor.join(PATIENCE)


def test_a_thread_that_cannot_start_is_reported_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    crew = Crew(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        crew.executor.resize(3)
    assert [str(error) for _, error in crew.source.failures] == ["can't start new thread"] * 2
    assert crew.executor.size == 1
    crew.executor.close()
    assert crew.ended.wait(PATIENCE)
    assert crew.executor.join(PATIENCE)


def test_a_cancelled_job_does_not_end_its_worker() -> None:
    with crew_of(1) as crew:

        def cancel() -> None:
            raise SampleCancelled

        crew.source.put(cancel)
        crew.meet(1)
        assert crew.source.failures == []
        assert crew.names() == {"minato-worker-0"}


def test_interrupt_ends_jobs_that_run_python_code() -> None:
    crew = Crew(3)
    begun = threading.Barrier(4)
    cleaned_up: list[int] = []

    def spin() -> None:
        try:
            begun.wait(PATIENCE)
            while True:
                pass
        finally:
            cleaned_up.append(1)

    crew.source.put(*[spin] * 3)
    begun.wait(PATIENCE)
    crew.executor.close()
    assert not crew.executor.join(timeout=0)
    crew.executor.interrupt()
    assert crew.executor.join(PATIENCE)
    assert cleaned_up == [1, 1, 1]
    assert crew.source.failures == []
    assert len(crew.ends) == 1


def test_interrupt_reaches_a_job_that_sleeps_when_it_comes_back() -> None:
    crew = Crew(1)
    release, after = threading.Event(), threading.Event()

    def wait() -> None:
        release.wait(PATIENCE)
        after.set()

    crew.source.put(wait)
    crew.source.wait_until(lambda source: not source.jobs)
    crew.executor.close()
    crew.executor.interrupt()
    assert not crew.executor.join(timeout=0)
    release.set()
    assert crew.executor.join(PATIENCE)
    assert not after.is_set()


def test_join_waits_no_longer_than_it_may() -> None:
    crew = Crew(1)
    release = threading.Event()
    crew.source.put(lambda: release.wait(PATIENCE))
    crew.source.wait_until(lambda source: not source.jobs)
    crew.executor.close()
    assert not crew.executor.join(timeout=0.01)
    release.set()
    assert crew.executor.join()


def test_a_worker_that_was_given_up_is_not_waited_for() -> None:
    crew = Crew(2)
    release = threading.Event()
    stuck: list[Worker] = []

    class Stuck(FunctionJob):
        def run(self, worker: Worker) -> None:
            stuck.append(worker)
            release.wait(PATIENCE)

    with crew.source.changed:
        crew.source.jobs.append(Stuck(release.wait))
        crew.source.changed.notify_all()
    crew.source.wait_until(lambda source: not source.jobs and source.waiting == 1 and bool(stuck))
    crew.executor.give_up(stuck[0])
    assert crew.executor.size == 1
    crew.executor.close()
    assert crew.ended.wait(PATIENCE)
    assert not crew.executor.join(timeout=0), "its thread is still there"
    release.set()
    assert crew.executor.join(PATIENCE)
    assert len(crew.ends) == 1


def test_an_idle_worker_keeps_no_job_alive() -> None:
    """A job holds samples."""
    with crew_of(1) as crew:
        gone = threading.Event()

        class Watched:
            def __call__(self) -> None:
                pass

            def __del__(self) -> None:
                gone.set()

        crew.source.put(Watched())
        # Not `gone.wait`: on free-threaded Python it is for this thread, which has made it, to
        # free it, between two bytecodes.
        assert eventually(gone.is_set)
        crew.source.wait_until(lambda source: source.waiting == 1)
