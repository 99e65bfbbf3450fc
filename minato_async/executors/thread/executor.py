"""Threads: the executor for interpreters without the GIL."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from minato_async.checkpoint import SampleCancelled
from minato_async.engine.protocols import JobSource, Worker, worker_name
from minato_async.lifecycle.interrupt import interrupt


class ThreadWorker:
    """One worker thread and the flag that ends it.

    The thread is a daemon: the interpreter joins non-daemon threads before any exit hook may
    run, so one stuck step would hold the exit for ever. `minato_async.lifecycle.shutdown` does the
    joining.
    """

    def __init__(self, number: int, name: str, main: Callable[[ThreadWorker], None]) -> None:
        self.number = number
        self.name = name
        self.aside = False
        self.shares = False
        self.retiring = False
        self.ended = False
        #: Nobody waits for its end: it is stuck.
        self.given_up = False
        self.thread = threading.Thread(target=main, args=(self,), name=self.name, daemon=True)

    @property
    def native_id(self) -> int:
        return self.thread.native_id or 0


class ThreadExecutor:
    """A set of threads, each taking jobs from `source` until told to end.

    `setup` gives the context in which a worker's thread runs. `on_all_ended` is called once, by
    the last worker to end after `close`, or by `close` itself when no worker is left.
    """

    def __init__(
        self,
        source: JobSource,
        on_all_ended: Callable[[], None],
        setup: Callable[[ThreadWorker], AbstractContextManager[None]] = nullcontext,  # type: ignore[assignment]
    ) -> None:
        self._source = source
        self._setup = setup
        self._on_all_ended = on_all_ended
        # Guards the four fields below. Never held while a job runs or the source is called.
        self._lock = threading.Lock()
        self._workers: list[ThreadWorker] = []
        self._closed = False
        self._over = False
        #: To be called when the last thread has ended.
        self._when_ended: Callable[[], None] | None = None

    #: A thread is there at once.
    starting = ""

    def process_id(self, number: int) -> int | None:
        return None

    @property
    def size(self) -> int:
        with self._lock:
            return len(self._staying())

    def _staying(self) -> list[ThreadWorker]:
        return [w for w in self._workers if not (w.retiring or w.ended)]

    def resize(self, size: int, numbers: int | None = None) -> None:
        """Grow or shrink to `size` workers; the newest retire first. No effect once closed."""
        if size < 0:
            raise ValueError(f"an executor cannot have {size} workers")
        starting: list[ThreadWorker] = []
        with self._lock:
            if self._closed:
                return
            self._workers = [w for w in self._workers if not w.ended or w.thread.is_alive()]
            staying = self._staying()
            for worker in staying[size:]:
                worker.retiring = True
            for _ in range(size - len(staying)):
                worker = self._new_worker()
                if numbers is not None and worker.number >= numbers:
                    break  # one that was aside is back
                self._workers.append(worker)
                starting.append(worker)
        if len(staying) > size:
            self._source.wake()
        for worker in starting:
            # Registered before it starts, so that a concurrent close() sees it. The interpreter
            # refuses new threads while it shuts down: then the worker must not stay registered.
            try:
                worker.thread.start()
            except RuntimeError as error:
                self._end(worker)
                self._source.worker_failed(worker, error)

    def _new_worker(self) -> ThreadWorker:
        there = [worker for worker in self._workers if not worker.ended]
        taken = {worker.number for worker in there if not (worker.given_up or worker.aside)}
        number = next(number for number in itertools.count() if number not in taken)
        name = worker_name(number, {worker.name for worker in there})
        worker = ThreadWorker(number, name, self._main)
        for other in there:
            if other.number == number:
                worker.shares = other.shares = True
        return worker

    def give_back_memory(self) -> None:
        """Nothing to do: threads have no memory of their own."""

    def give_up(self, worker: Worker) -> None:
        with self._lock:
            for mine in self._workers:
                if mine is worker:
                    mine.retiring = mine.given_up = True
            last = self._is_last()
        if last:
            self._on_all_ended()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for worker in self._workers:
                worker.retiring = True
            last = self._is_last()
        self._source.wake()
        if last:
            self._on_all_ended()

    def _is_last(self) -> bool:
        """Whether, for the first time, nobody is left to wait for."""
        if self._over or not (self._closed and all(w.ended or w.given_up for w in self._workers)):
            return False
        self._over = True
        return True

    def join(self, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        for worker in self._running():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            worker.thread.join(left)
        return not self._running()

    def _running(self) -> list[ThreadWorker]:
        with self._lock:
            return [worker for worker in self._workers if worker.thread.is_alive()]

    def interrupt(self) -> None:
        """Raise `SampleCancelled` at the next bytecode of every running thread.

        Code that does not come back to Python (a sleep, a long operator) is not interrupted
        before it returns.
        """
        for worker in self._running():
            interrupt(worker.thread)

    def _main(self, worker: ThreadWorker) -> None:
        try:
            # For the result of a sample that is cancelled.
            nobody_waits = contextlib.suppress(SampleCancelled)
            with self._setup(worker):
                while (job := self._source.take(worker)) is not None:
                    with nobody_waits:
                        job.run(worker)
                    # A finished job holds its samples: an idle worker must not keep them.
                    del job
        except SampleCancelled:
            pass  # `interrupt` hit between two jobs
        except BaseException as error:
            self._source.worker_failed(worker, error)
        finally:
            self._end(worker)

    def _end(self, worker: ThreadWorker) -> None:
        with self._lock:
            worker.ended = True
            last = self._is_last()
            callback = self._take_callback()
        if last:
            self._on_all_ended()
        if callback is not None:
            callback()

    def when_ended(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self._when_ended = callback
            due = self._take_callback()
        if due is not None:
            due()

    def _take_callback(self) -> Callable[[], None] | None:
        if not all(worker.ended for worker in self._workers):
            return None
        callback, self._when_ended = self._when_ended, None
        return callback
