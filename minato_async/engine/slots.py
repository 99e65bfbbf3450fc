"""How many workers may run steps at once, and which do."""

from __future__ import annotations

import time
from dataclasses import dataclass

from minato_async.engine.protocols import Job, Worker


@dataclass(slots=True, eq=False)
class Running:
    """A worker and the job it is running."""

    worker: Worker
    job: Job
    #: `time.monotonic()` when the job began.
    started: float
    #: It is stuck in one step: another worker was started in its place.
    handed_off: bool = False

    @property
    def since(self) -> float:
        """`time.monotonic()` when the clock of what it is doing began to run. That of a diverted
        sample has run before this job did, and is not set back."""
        elapsed = self.job.elapsed
        return time.monotonic() - elapsed if elapsed else self.started


class Slots:
    """Counts the workers that run steps against the number wanted.

    There may be more threads than slots: those that wait for a slot, those parked inside a slow
    sample, which have given theirs up, and those that were handed off, which brought an extra one.

    The caller holds the engine's lock.
    """

    def __init__(self, wanted: int, most: int) -> None:
        #: Workers that the worker scheduler wants.
        self.wanted = wanted
        #: Threads that may run at once, handed off or not.
        self.most = most
        self.parked = 0
        #: A core has nothing to do, as of the last look.
        self.cores_idle = False
        self.handed_off = 0
        self.running: dict[str, Running] = {}
        #: Seconds that those jobs took which are over, all together.
        self._took = 0.0

    @property
    def active(self) -> int:
        """Workers inside steps."""
        return len(self.running) - self.parked

    @property
    def _places(self) -> int:
        """Workers that may run steps at once."""
        return min(self.wanted + self.handed_off, self.most)

    @property
    def free(self) -> bool:
        """Whether one more worker may run steps."""
        return self.active < self._places

    @property
    def threads(self) -> int:
        """Threads needed for that."""
        return self._places + self.parked

    def runs_as(self, number: int) -> bool:
        """Whether a worker of this `number` is inside a step, and not aside."""
        workers = (entry.worker for entry in self.running.values())
        return any(worker.number == number and not worker.aside for worker in workers)

    def enter(self, worker: Worker, job: Job) -> None:
        self.running[worker.name] = Running(worker, job, time.monotonic())

    def leave(self, worker: Worker) -> Job | None:
        """`worker` has no job any more: the one that it had is returned."""
        entry = self.running.pop(worker.name, None)
        if entry is None:
            return None
        self._took += time.monotonic() - entry.started
        if entry.handed_off:
            self.handed_off -= 1
        return entry.job

    def go_on(self, worker: Worker) -> bool:
        """The job of `worker` goes on as if it had just begun; False: its place is needed."""
        entry = self.running.get(worker.name)
        if entry is None or entry.handed_off:
            return False
        if self.active > self._places:
            return False
        now = time.monotonic()
        self._took += now - entry.started
        entry.started = now
        return True

    def busy_seconds(self, now: float) -> float:
        """Seconds that workers have had jobs until `now`, all together."""
        return self._took + sum(now - entry.started for entry in self.running.values())

    def hand_off(self, entry: Running) -> None:
        entry.handed_off = True
        self.handed_off += 1
