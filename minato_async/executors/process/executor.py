"""Processes: the executor for interpreters with the GIL.

Everything here runs on the engine's event loop, which watches the workers' sockets; only the
constructor, `size`, `starting`, `process_id`, `join` and the bells are for other threads. It sends
requests and hands the replies to the jobs that they belong to, without looking inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import pickle
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

from minato_async.engine.protocols import RemoteJob, RemoteJobSource, Worker, worker_name
from minato_async.errors import WorkerSetupError
from minato_async.executors.process.arenas import Arenas
from minato_async.executors.process.channel import LoopChannel
from minato_async.executors.process.fork_server import ForkServer, described
from minato_async.executors.process.fresh_fork_server import GUARD
from minato_async.executors.process.progress import Status
from minato_async.executors.process.transport.failures import PackedError
from minato_async.executors.process.transport.shared_memory import SharedMemory
from minato_async.lifecycle.descriptors import above_standard

#: Seconds that running steps get when the loader closes; then their processes are killed.
CLOSE_GRACE = 1.0
#: Workers that may die one after the other without having done anything.
_STILLBORN = 3
# Kinds of replies.
#: There is more to come.
MORE = "more"
#: The request is carried out.
DONE = "done"
#: The worker could not be set up; before its first request, if the reply is to none.
SETUP_FAILED = "setup failed"
#: The worker has a bug.
BROKEN = "broken"
#: The worker cannot unpickle the request.
UNREADABLE = "unreadable"
#: The number of what is no request, and only tells a worker what it may have back, or the parent
#: that a worker could not be set up.
NO_REQUEST = 0
#: The first message of a worker: it is there.
READY = b"ready"


class Hello(NamedTuple):
    """The first message to a worker."""

    name: str
    arena: int


class ProcessWorker:
    """One worker process, as the parent sees it."""

    def __init__(
        self,
        executor: ProcessExecutor,
        serial: int,
        number: int,
        name: str,
        arena: int,
        status: Status,
    ) -> None:
        self._executor = executor
        self.serial = serial
        self.number = number
        self.name = name
        self.aside = self.shares = False
        self.arena = arena
        self.status: Status | None = status
        self.retiring = False
        self.ended = False
        #: It is being killed.
        self.given_up = False
        #: 0 until the fork server has told it.
        self.pid = 0
        #: It has said that it is set up.
        self.there = False
        self.channel: LoopChannel | None = None
        self.job: RemoteJob | None = None
        self.request = 0
        #: The context that it was told of last.
        self.context = 0
        #: It has been told that there is no more.
        self.dismissed = False

    @property
    def native_id(self) -> int:
        return self.pid

    def ring(self) -> None:
        """There may be a job for it. Any thread."""
        self._executor.ring(self)


class SetupError(WorkerSetupError):
    """`worker_init_fn` has failed in a worker process, or unpickling what it is made of."""

    def __init__(self, packed: PackedError) -> None:
        Exception.__init__(self, packed)
        self._packed = packed

    @property
    def error(self) -> BaseException:  # type: ignore[override]
        return self._packed.unpack()


class ProcessExecutor:
    """A set of worker processes, each taking jobs from `source` until told to end.

    They come from `fork_server`, which ends with the executor. `on_all_ended` is called once, when
    the last worker has ended after `close`, and the fork server too.
    """

    def __init__(
        self,
        source: RemoteJobSource,
        on_all_ended: Callable[[], None],
        fork_server: ForkServer,
        memory: SharedMemory,
    ) -> None:
        self._source = source
        self._on_all_ended = on_all_ended
        #: None once all has ended: then only batches keep the memory.
        self._memory: SharedMemory | None = memory
        self._fork_server = fork_server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: dict[int, ProcessWorker] = {}
        self._serials = itertools.count(1)
        self._requests = itertools.count(1)
        self._arenas = Arenas(memory)
        self._closed = False
        #: What kills, some time after `close`, the workers that have not ended by then.
        self._killing: asyncio.TimerHandle | None = None
        #: Workers cannot be set up: there will be no more.
        self._hopeless = False
        self._size = 0
        self._stillborn = 0
        self._over = threading.Event()

    @property
    def size(self) -> int:
        return self._size

    @property
    def starting(self) -> str:
        if self._over.is_set():
            return ""
        if not self._fork_server.ready:
            return (
                "the start of the process that workers are forked from, which imports the main "
                "module and that of the dataset"
            )
        not_there = (worker.name for worker in self._snapshot() if not worker.there)
        return ", ".join(f"the start of {name}" for name in not_there)

    def process_id(self, number: int) -> int | None:
        pids = (worker.pid for worker in self._snapshot() if worker.number == number)
        return next(pids, 0) or None

    def _snapshot(self) -> list[ProcessWorker]:
        """The workers, for any thread: copied in one piece under the dictionary's own lock, for
        the loop changes it meanwhile."""
        return list(self._workers.values())

    # Workers

    def resize(self, size: int, numbers: int | None = None) -> None:
        """Grow or shrink to `size` workers; the newest retire first. No effect once closed."""
        if size < 0:
            raise ValueError(f"an executor cannot have {size} workers")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._fork_server.fileno(), self._fork_server_speaks)
        if self._closed or self._hopeless:
            return
        if not self._fork_server.ready:
            self._size = size
            return
        staying = [worker for worker in self._workers.values() if not worker.retiring]
        for worker in staying[size:]:
            worker.retiring = True
        for _ in range(size - len(staying)):
            self._start_worker()
        self._size = size
        if len(staying) > size:
            self._source.wake()

    def _start_worker(self) -> None:
        assert self._loop is not None
        there = self._workers.values()
        taken = {worker.number for worker in there if not worker.given_up}
        number = next(n for n in itertools.count() if n not in taken)
        serial, arena = next(self._serials), self._arenas.open()
        assert self._memory is not None
        status = Status(self._memory.status, arena)
        status.reset()
        name = worker_name(number, {worker.name for worker in there})
        worker = ProcessWorker(self, serial, number, name, arena, status)
        try:
            with above_standard():
                ours, theirs = socket.socketpair()
        except OSError as error:
            self._arenas.leave(arena)
            self._source.worker_failed(worker, _explained(error))
            return
        try:
            self._fork_server.spawn(serial, number, theirs)
        except OSError as error:
            ours.close()
            self._arenas.leave(arena)
            self._source.worker_failed(worker, _fork_server_is_gone(error))
            return
        finally:
            theirs.close()
        worker.channel = LoopChannel(self._loop, ours, lambda data: self._replied(worker, data))
        worker.channel.send(pickle.dumps(Hello(worker.name, arena)))
        self._workers[serial] = worker
        # It gets its first request when it is there. What is given to one that is still on its way,
        # another could have done already.

    def give_back_memory(self) -> None:
        # Those at work are told with their next request.
        for worker in self._workers.values():
            if worker.job is None and not worker.dismissed:
                freed = self._arenas.take_freed(worker.arena)
                if freed:
                    assert worker.channel is not None
                    message = (NO_REQUEST, worker.context, b"", freed, b"")
                    worker.channel.send(pickle.dumps(message, protocol=5))

    def give_up(self, worker: Worker) -> None:
        for mine in self._workers.values():
            if mine is worker:
                mine.retiring = mine.given_up = True
                # What becomes of its job is settled already.
                mine.job = None
                self._fork_server.kill(mine.serial)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._loop is None:  # it never came to the first worker
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._fork_server.fileno(), self._fork_server_speaks)
        for worker in self._workers.values():
            worker.retiring = True
        self._source.wake()
        if self._workers:
            self._killing = self._loop.call_later(CLOSE_GRACE, self._kill_all)
        else:
            self._fork_server.end()

    def _kill_all(self) -> None:
        for worker in self._workers.values():
            self._fork_server.kill(worker.serial)

    def join(self, timeout: float | None = None) -> bool:
        return self._over.wait(timeout)

    def when_ended(self, callback: Callable[[], None]) -> None:
        callback()  # whoever is left was killed

    def interrupt(self) -> None:
        """Nothing to do: after a moment, workers are killed."""

    # Jobs

    def ring(self, worker: ProcessWorker) -> None:
        assert self._loop is not None
        # By a consumer perhaps, and late: a loop that was closed meanwhile has nobody to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._feed, worker)

    def _feed(self, worker: ProcessWorker) -> None:
        """Give `worker`, which has none, something to do."""
        try:
            self._feed_now(worker)
        except BaseException as error:  # a bug: the consumer must hear of it, not wait
            self._source.worker_failed(worker, error)

    def _feed_now(self, worker: ProcessWorker) -> None:
        if worker.ended:
            # What was meant for it is for somebody else.
            if not self._over.is_set():
                self._source.wake()
            return
        if worker.job is not None or worker.dismissed:
            return
        job: RemoteJob | None = self._source.take_now(worker, worker)
        if job is not None:
            self._send(worker, job)
        elif worker.retiring:
            self._dismiss(worker)

    def _dismiss(self, worker: ProcessWorker) -> None:
        assert worker.channel is not None
        worker.retiring = worker.dismissed = True
        worker.channel.end()

    def _send(self, worker: ProcessWorker, job: RemoteJob) -> None:
        assert worker.channel is not None
        assert worker.status is not None
        worker.job, worker.request = job, next(self._requests)
        context, payload = job.context, b""
        if context.number != worker.context:
            payload, worker.context = context.payload(worker.context), context.number
        request = job.request(worker.status.expect(worker.request))
        freed = self._arenas.take_freed(worker.arena)
        # By itself: it has keys of the user's in it, which may raise anything, here and there. What
        # goes with every request, this worker has to be told all the same.
        content = b""
        try:
            content = pickle.dumps(request, protocol=5)
        except BaseException as error:
            worker.job = None
            job.cannot_be_sent(error)
        message = (worker.request, worker.context, payload, freed, content)
        worker.channel.send(pickle.dumps(message, protocol=5))

    def _replied(self, worker: ProcessWorker, data: bytes) -> None:
        try:
            self._read(worker, data)
        except BaseException as error:  # a bug: the consumer must hear of it, not wait
            self._source.worker_failed(worker, error)

    def _read(self, worker: ProcessWorker, data: bytes) -> None:
        if data == READY:
            worker.there = True
            self._feed(worker)
            return
        request, kind, content = pickle.loads(data)
        self._stillborn = 0
        if request == NO_REQUEST:
            if kind == SETUP_FAILED:
                self._hopeless = True
                self._source.worker_failed(worker, SetupError(content))
                self._dismiss(worker)
            return
        job = worker.job
        if job is None or request != worker.request:
            # It was given up, or its request could not be sent.
            self._feed(worker)
            return
        if kind == MORE:
            self._arenas.adopt(worker.arena, content)
            job.reply(worker, content)
            return
        worker.job = None
        if kind == DONE:
            self._arenas.adopt(worker.arena, content)
            job.reply(worker, content)
            job.finished()
            # Only the engine has it from now on: it is freed by whoever may free the user's keys.
            del job
            self._feed(worker)
            return
        if kind == UNREADABLE:
            job.cannot_be_read(worker, content)
            del job
            self._feed(worker)
            return
        job.finished()
        failed = SetupError(content) if kind == SETUP_FAILED else content.unpack()
        self._source.worker_failed(worker, failed)
        self._dismiss(worker)

    # Ends

    def _fork_server_speaks(self) -> None:
        news = self._fork_server.read()
        if news is None:
            self._fork_server_ended()
            return
        kind, serial, value = news
        if kind == "ready":
            try:
                self.resize(self._size)
            except BaseException as failure:  # the consumer must hear of it, not wait
                self._source.worker_failed(_Nobody(), failure)
            return
        worker = self._workers.get(serial)
        if worker is None:
            return
        if kind == "started":
            worker.pid = value
        elif kind == "ended":
            self._worker_ended(worker, described(os.waitstatus_to_exitcode(value)))
        else:
            error = OSError(value, f"no worker process could be started: {os.strerror(value)}")
            self._worker_ended(worker, "could not be started")
            self._source.worker_failed(worker, _explained(error))

    def _worker_ended(self, worker: ProcessWorker, how: str) -> None:
        self._part_from(worker)
        del self._workers[worker.serial]
        self._arenas.leave(worker.arena)
        if (job := worker.job) is not None:
            worker.job = None
            job.died(worker, how)
        del job
        self._source.worker_ended(worker, how)
        if self._closed:
            if not self._workers:
                self._fork_server.end()
            return
        if not worker.dismissed:
            self._stillborn += not worker.retiring
            if self._stillborn > _STILLBORN:
                error = RuntimeError(f"worker processes die as soon as they start: each {how}")
                self._source.worker_failed(worker, error)
                return
        self._source.wake()
        self.resize(self._size)

    def _part_from(self, worker: ProcessWorker) -> None:
        assert worker.channel is not None
        # First: what it has sent before it died is read now, and is not to get it another job.
        worker.ended = True
        worker.channel.close()
        worker.channel = worker.status = None

    def _fork_server_ended(self) -> None:
        assert self._loop is not None
        self._loop.remove_reader(self._fork_server.fileno())
        how = self._fork_server.reap()
        if self._killing is not None:
            self._killing.cancel()
        if not self._closed:
            ready = self._fork_server.ready
            error = _fork_server_is_gone(None) if ready else WorkerSetupError(_never_came_up(how))
            self._source.worker_failed(_Nobody(), error)
        for worker in self._workers.values():
            self._part_from(worker)
        self._workers.clear()
        self._closed = True
        # The engine and this executor refer to each other: the memory is not to wait until a
        # collector finds them.
        self._arenas.close()
        self._memory = None
        self._over.set()
        self._on_all_ended()


class _Nobody:
    name = "the process that starts workers"
    number = native_id = -1
    retiring = True
    aside = shares = False


def _explained(error: OSError) -> OSError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        error.add_note(
            "minato_async: each worker process takes a file descriptor: raise the limit "
            "(ulimit -n), or use fewer workers"
        )
    return error


def _fork_server_is_gone(cause: BaseException | None) -> RuntimeError:
    error = RuntimeError(
        "the process from which workers are started has ended; was it killed, out of memory? "
        "Call iter() on the loader again"
    )
    error.__cause__ = cause
    return error


def _never_came_up(how: str) -> RuntimeError:
    return RuntimeError(
        f"the process from which workers are started {how} before it had come up; what it has "
        f"printed says why. {GUARD}"
    )
