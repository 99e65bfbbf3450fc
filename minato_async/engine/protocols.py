"""The seam between the engine and whatever runs its steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any, Protocol


class Worker(Protocol):
    """One worker, as the engine sees it."""

    @property
    def name(self) -> str:
        """Name shown in errors and in debuggers, unique within its loader."""

    @property
    def number(self) -> int:
        """Told to user code as the worker's id: the smallest that is free when it starts. The
        number of a worker that was given up, or that is parked, goes to its replacement."""

    #: It waits, inside a sample, for others to go first: meanwhile another may have its number.
    aside: bool
    #: Another worker has, or had, the same number.
    shares: bool

    @property
    def native_id(self) -> int:
        """The operating system's id of the thread, or of the process."""

    @property
    def retiring(self) -> bool:
        """True once the executor has asked this worker to end after its current job."""


def worker_name(number: int, taken: Collection[str]) -> str:
    """The name of a worker of this number, while others have the names `taken`: one that was given
    up may still be there."""
    name = f"minato-worker-{number}"
    later = (f"{name}-{again}" for again in itertools.count(2))
    return name if name not in taken else next(n for n in later if n not in taken)


class Job(Protocol):
    """A piece of work that one worker runs from beginning to end."""

    @property
    def elapsed(self) -> float:
        """Seconds of cost of the running sample so far; 0 if there is none. Any thread."""

    def hand_off(self) -> bool:
        """Its worker is stuck in one step: give away what stands behind it. False if it is not
        stuck after all, or it takes a second call to be certain. The caller holds the engine's
        lock."""

    def expire(self, seconds: float) -> bool:
        """The running sample has failed, having cost more than `seconds`. False if it has come
        to an end after all, or it takes a second call to be certain. The caller holds the engine's
        lock."""

    def describe(self) -> str:
        """What is being done now, in a few words. Any thread, while the job runs."""

    def conclude(self) -> None:
        """Called once after `run`, when its worker comes for the next job: what is left to be done
        under the engine's lock, which the caller holds."""

    def run(self, worker: Worker) -> None:
        """Do the work. Errors of user code are recorded, not raised: what escapes is a bug."""


class Progress(Protocol):
    """What a worker process tells of the request that it runs, without being asked."""

    @property
    def row(self) -> int:
        """The row whose step it is in, or was in last; -1 before the first. The one behind the last
        while it collates what they have become."""

    @property
    def elapsed(self) -> float:
        """Seconds of cost of the running sample so far; 0 if there is none."""

    def stop(self) -> None:
        """Ask it to begin no more rows. It sees the request a moment later; `row` may still be
        about to change until then, and tells from then on what it has begun last."""


class RemoteContext(Protocol):
    """What requests have in common: sent to each worker once, before the first of them."""

    @property
    def number(self) -> int:
        """Larger than that of every context before it."""

    @property
    def payload(self) -> Callable[[int], bytes]:
        """What to tell a worker that was told of the context with this number last, 0: of none."""


class RemoteJob(Job, Protocol):
    """A job for a worker elsewhere: a request that can be sent, and what becomes of the replies."""

    @property
    def context(self) -> RemoteContext: ...

    def request(self, progress: Progress) -> Any:
        """What the worker is to do."""

    def reply(self, worker: Worker, events: Any) -> None:
        """What it did; there may be more to come."""

    def finished(self) -> None:
        """There is no more to come."""

    def cannot_be_sent(self, error: BaseException) -> None:
        """Pickling the request has raised `error`."""

    def cannot_be_read(self, worker: Worker, error: Any) -> None:
        """Unpickling the request has raised `error`, as the worker packed it."""

    def died(self, worker: Worker, how: str) -> None:
        """The worker has died over it."""


class Ringable(Protocol):
    def ring(self) -> None:
        """Wake who waits, without waiting. Any thread; once too often does no harm."""


class RemoteJobSource(Protocol):
    """Where an executor without threads gets jobs: it asks, and never waits."""

    def take_now(self, worker: Worker, bell: Ringable) -> Any | None:
        """A job for `worker`, which has none. None: there is none to be had now, `bell` is rung
        when it is worth asking again; or it is to end, as `retiring` tells."""

    def wake(self) -> None: ...

    def worker_failed(self, worker: Worker, error: BaseException) -> None: ...

    def worker_ended(self, worker: Worker, how: str) -> None:
        """`worker` is no more, and asks for no other job: killed, say, as `how` tells."""


class JobSource(Protocol):
    """Where workers get their jobs: the engine."""

    def take(self, worker: Worker) -> Job | None:
        """Block until there is a job for `worker`; None tells it to end.

        It must return None soon after `worker.retiring` became true and `wake` was called.
        """

    def wake(self) -> None:
        """Make every worker that blocks in `take` look again."""

    def worker_failed(self, worker: Worker, error: BaseException) -> None:
        """Called when `error` escaped a job: the worker is gone and its job with it."""


class AnyJobSource(JobSource, RemoteJobSource, Protocol):
    """Jobs for whatever executor."""


class Executor(Protocol):
    """A set of workers whose size can be changed while they run."""

    @property
    def size(self) -> int:
        """Workers wanted now; those still finishing a last job are not counted."""

    @property
    def starting(self) -> str:
        """What is still to come up before all workers are there, in a few words; "" if nothing.
        Any thread."""

    def process_id(self, number: int) -> int | None:
        """The process that worker `number` has to itself; None: there is none, or not yet. Any
        thread."""

    def resize(self, size: int, numbers: int | None = None) -> None:
        """Start workers, or let surplus ones end after their current job. On the event loop. None
        is started whose number would be `numbers` or more."""

    def give_back_memory(self) -> None:
        """Called now and then, on the event loop: give back memory that nobody uses."""

    def give_up(self, worker: Worker) -> None:
        """Do not count on `worker` any more: it ends after its current job, whenever that is."""

    def close(self) -> None:
        """Let every worker end after its current job, without waiting. Idempotent. On the event
        loop."""

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: no limit) for all workers to have ended."""

    def when_ended(self, callback: Callable[[], None]) -> None:
        """After `close`: have `callback` called, once and by any thread, when all workers have
        ended, including those that were given up."""

    def interrupt(self) -> None:
        """Raise `SampleCancelled` inside the workers that still run, where that is possible."""


class NoWorkers:
    """The executor of an engine that has ended."""

    size = 0
    starting = ""

    def process_id(self, number: int) -> int | None:
        return None

    def resize(self, size: int, numbers: int | None = None) -> None:
        """No worker starts any more."""

    def give_back_memory(self) -> None:
        """It uses none."""

    def give_up(self, worker: Worker) -> None:
        """There is none."""

    def close(self) -> None:
        """It is closed."""

    def join(self, timeout: float | None = None) -> bool:
        return True

    def when_ended(self, callback: Callable[[], None]) -> None:
        callback()

    def interrupt(self) -> None:
        """Nobody is there to be interrupted."""
