"""The lanes: which samples are slow, and how many workers serve them.

The fast lane takes tickets from the feed. The slow lane takes diverted samples, partly
transformed, from the temp queue. Workers belong to neither: each asks for its next job, and the
lanes decide which one it is. So an idle worker of either helps the other, and no core idles while
any sample waits.

Everything here is plain state: the caller holds the engine's lock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from minato_async.engine.bell import Bell, DueBells
from minato_async.engine.feed import Block
from minato_async.engine.protocols import Worker
from minato_async.engine.slots import Slots


@dataclass(slots=True, eq=False)
class Sample:
    """A sample on its way through the steps."""

    block: Block
    row: int
    #: What the last step returned; before the first one, the index.
    value: Any
    #: The step to run next.
    step: int = 0
    #: Seconds spent inside steps so far.
    cost: float = 0.0
    #: The same, step by step.
    costs: list[float] = field(default_factory=list)
    #: Random state, while no worker runs the sample.
    stream: Any = None


class Parked:
    """A worker that waits, inside a slow sample, for a place in the slow lane."""

    __slots__ = ("bell", "granted", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.bell = Bell()
        #: It has its slot back.
        self.granted = False


class Lanes:
    """The temp queue and the share of the workers that serve it."""

    def __init__(self, slots: Slots, due: DueBells) -> None:
        self._slots = slots
        self._due = due
        #: Slow samples that no worker is running, oldest first: parts of samples, and workers
        #: parked inside one.
        self.temp_queue: deque[Sample | Parked] = deque()
        #: Workers running a sample that is known to be slow.
        self.slow_running = 0

    def wants_worker(self, in_flight: int) -> bool:
        """Whether the next idle worker should serve the slow lane, though tickets wait too.

        The lane has 1 + (workers - 2) * backlog / min(2 * workers, in_flight / 4) places, at most
        one less than there are workers. So the share settles where
        slow samples are finished as fast as they come, with few of them waiting, and the window
        keeps room for fast ones.
        """
        return bool(self.temp_queue) and self.has_place(in_flight, self.slow_running + 1)

    def has_place(self, in_flight: int, slow_running: int) -> bool:
        """Whether the slow lane has places for `slow_running` workers."""
        workers = self._slots.wanted + self._slots.handed_off
        most = max(1.0, min(2.0 * workers, in_flight / 4.0))
        fraction = min(1.0, len(self.temp_queue) / most)
        return slow_running <= 1 + int(max(0, workers - 2) * fraction)

    def divert(self, sample: Sample) -> None:
        """`sample` is slow: it waits for the slow lane, its worker is free."""
        self.temp_queue.append(sample)

    def next_due(self) -> Sample | Parked | None:
        """The oldest slow sample that can go on; None: there is none. A parked worker cannot while
        another runs with its number."""
        for entry in self.temp_queue:
            if isinstance(entry, Sample) or not self._slots.runs_as(entry.worker.number):
                return entry
        return None

    def resume(self, entry: Sample | Parked) -> Sample | None:
        """Let `entry` of the temp queue go on: a sample is returned for the calling worker to run,
        a parked worker gets the slot and None is returned."""
        self.slow_running += 1
        self.temp_queue.remove(entry)
        if isinstance(entry, Sample):
            return entry
        self._grant(entry)
        return None

    def park(self, worker: Worker) -> Parked:
        """The calling worker gives its slot up; `slow_running` counts it again once granted."""
        parked = Parked(worker)
        worker.aside = True
        self.temp_queue.append(parked)
        self.slow_running -= 1
        self._slots.parked += 1
        return parked

    def unpark(self, parked: Parked) -> None:
        """`parked` goes on without having been granted a slot: what it holds may be what others
        wait for, so it does though its number may be another's for the moment."""
        if not parked.granted:
            self.temp_queue.remove(parked)
            self.slow_running += 1
            self._grant(parked)

    def _grant(self, parked: Parked) -> None:
        parked.granted = True
        parked.worker.aside = False
        self._slots.parked -= 1
        self._due.add(parked.bell)

    def clear(self) -> None:
        """Drop the parts, and let parked workers find out that nobody waits for their sample."""
        queue, self.temp_queue = self.temp_queue, deque()
        self._due.drop(queue)
        for entry in queue:
            if isinstance(entry, Parked):
                self.slow_running += 1
                self._grant(entry)
