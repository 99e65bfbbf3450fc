"""The seam between the engine and whatever runs its steps."""

from __future__ import annotations

from typing import Protocol


class Worker(Protocol):
    """One worker, as the engine sees it."""

    @property
    def name(self) -> str:
        """Name shown in errors and in debuggers, unique within its loader."""

    @property
    def number(self) -> int:
        """Told to user code as the worker's id: the smallest that no other worker has."""

    @property
    def native_id(self) -> int:
        """The operating system's id of the thread, or of the process."""

    @property
    def retiring(self) -> bool:
        """True once the executor has asked this worker to end after its current job."""


class Job(Protocol):
    """A piece of work that one worker runs from beginning to end."""

    @property
    def elapsed(self) -> float:
        """Seconds of cost of the running sample so far; 0 if there is none. Any thread."""

    def hand_off(self) -> bool:
        """Its worker is stuck in one step: give away what stands behind it. False if it is not
        stuck after all. The caller holds the engine's lock."""

    def expire(self, seconds: float) -> bool:
        """The running sample has failed, having cost more than `seconds`. False if it has come
        to an end after all. The caller holds the engine's lock."""

    def describe(self) -> str:
        """What is being done now, in a few words. Any thread, while the job runs."""

    def conclude(self) -> None:
        """Called once after `run`, when its worker comes for the next job: what is left to be done
        under the engine's lock, which the caller holds."""

    def run(self, worker: Worker) -> None:
        """Do the work. Errors of user code are recorded, not raised: what escapes is a bug."""


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


class Executor(Protocol):
    """A set of workers whose size can be changed while they run."""

    @property
    def size(self) -> int:
        """Workers wanted now; those still finishing a last job are not counted."""

    def resize(self, size: int) -> None:
        """Start workers, or let surplus ones end after their current job. Any thread."""

    def give_up(self, worker: Worker) -> None:
        """Do not count on `worker` any more: it ends after its current job, whenever that is."""

    def close(self) -> None:
        """Let every worker end after its current job, without waiting. Idempotent, any thread."""

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: no limit) for all workers to have ended."""

    def interrupt(self) -> None:
        """Raise `SampleCancelled` inside the workers that still run, where that is possible."""
