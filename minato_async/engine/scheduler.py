"""Worker schedulers: how many workers should run steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Reading:
    """What a worker scheduler is told about the time since it was last asked."""

    #: Seconds since then.
    seconds: float
    #: Workers wanted then.
    workers: int
    #: Workers that were inside steps, on average.
    active: float
    #: Samples finished.
    finished: int
    #: Batches complete and not taken by the consumer, now, and how many there may be.
    queued: int
    queue_limit: int
    #: CPU seconds of the whole process, for each second.
    cpu: float
    #: CPUs that the process may use, and how many of them were idle.
    quota: float
    idle_cores: float
    #: Workers that there may be.
    most: int


class WorkerScheduler(Protocol):
    """Chooses the number of workers that run steps."""

    #: Seconds between two calls of `decide`.
    interval: float

    def start(self) -> int:
        """Workers to begin with."""

    def decide(self, reading: Reading) -> int:
        """Workers wanted from now on; held between 1 and `reading.most`."""


class FixedScheduler:
    """Keeps the number of workers."""

    interval = 1.0

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def start(self) -> int:
        return self._workers

    def decide(self, reading: Reading) -> int:
        return self._workers


class PaperScheduler:
    """The worker scheduler of the MinatoLoader paper (Nouaji et al., EuroSys 2026):

        delta = alpha * (1 - Q / Qmax) + beta * (C - theta), clipped to [-2, 2]

    with Q the batches queued, Qmax the most there may be, C the share of the CPUs in use. The
    constants are alpha = 1, beta = 2, theta = 0.75 here.

    Kept for comparison, with its faults: with full queues and all CPUs in use it still adds
    workers, since C > theta; and work that waits leaves C near 0, so that it takes workers away
    where more of them would pay.
    """

    interval = 0.5

    def __init__(
        self, workers: int, alpha: float = 1.0, beta: float = 2.0, theta: float = 0.75
    ) -> None:
        self._start = workers
        self._workers = float(workers)
        self._alpha, self._beta, self._theta = alpha, beta, theta

    def start(self) -> int:
        return self._start

    def decide(self, reading: Reading) -> int:
        emptiness = 1.0 - reading.queued / max(1, reading.queue_limit)
        load = min(1.0, reading.cpu / reading.quota) - self._theta
        delta = self._alpha * emptiness + self._beta * load
        self._workers += min(2.0, max(-2.0, delta))
        self._workers = min(float(reading.most), max(1.0, self._workers))
        return round(self._workers)


class ThroughputScheduler:
    """Adds workers as long as that makes samples finish faster.

    A worker that computes needs a core, and one that waits does not: how much of a core the
    running workers use on average tells how many would fill the cores, so the number is moved
    towards that, by a third at a time, and stays only if samples finish faster for it. When the
    consumer is the slower one, workers find nothing to do: those that were idle are let go.
    """

    interval = 0.1
    #: A step up must bring this part of what it would bring if all workers were equally useful.
    _WORTH = 0.25
    #: Readings in which a number of workers is measured.
    _MEASURED = 3

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._recent: deque[Reading] = deque(maxlen=self._MEASURED)
        #: What was measured before the last step up: workers and samples a second.
        self._before: tuple[int, float] | None = None
        #: Numbers of workers from which a step up was no use, are not tried again for a while.
        self._pause = 0

    def start(self) -> int:
        return self._workers

    def decide(self, reading: Reading) -> int:
        self._recent.append(reading)
        self._pause = max(0, self._pause - 1)
        if len(self._recent) < self._MEASURED:
            return self._workers
        seconds = sum(r.seconds for r in self._recent)
        rate = sum(r.finished for r in self._recent) / seconds
        active = sum(r.active * r.seconds for r in self._recent) / seconds
        if self._before is not None:
            workers, rate_before = self._before
            self._before = None
            gain = rate / max(rate_before, 1e-9) - 1.0
            if gain < self._WORTH * (self._workers / workers - 1.0):
                self._pause = 50
                return self._move(workers)
        if active < 0.8 * self._workers - 0.5:
            # Not the number of workers limits what is loaded, but the work that they are given.
            return self._move(max(1, round(active + 0.5)))
        wanted = self._to_fill_cores(active)
        if wanted > self._workers and not self._pause:
            self._before = (self._workers, rate)
            return self._move(min(wanted, self._workers + max(1, self._workers // 3)))
        if wanted < self._workers:
            return self._move(wanted)
        return self._workers

    def _to_fill_cores(self, active: float) -> int:
        cpu = sum(r.cpu for r in self._recent) / len(self._recent)
        quota, most = self._recent[-1].quota, self._recent[-1].most
        share = cpu / max(active, 1e-9)
        return max(1, min(most, round(quota / max(share, 1e-3))))

    def _move(self, workers: int) -> int:
        if workers != self._workers:
            # What was measured with another number of workers tells nothing about this one.
            self._recent.clear()
        self._workers = workers
        return workers


def make_scheduler(name: str, workers: int) -> WorkerScheduler:
    """The worker scheduler called `name`, starting from `workers`."""
    kinds: dict[str, Callable[[int], WorkerScheduler]] = {
        "fixed": FixedScheduler,
        "paper": PaperScheduler,
        "throughput": ThroughputScheduler,
    }
    return kinds[name](workers)
