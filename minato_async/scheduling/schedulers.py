"""Worker schedulers: how many workers should run steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

#: Those of a reading's fields that take system calls to measure.
MEASURED = frozenset(["cpu", "delayed", "idle_cores"])


@dataclass(frozen=True)
class Reading:
    """What a worker scheduler is told about the time since it was last asked. Of `MEASURED`, what
    cannot be measured here is nan, and what the scheduler does not need."""

    #: Seconds since then.
    seconds: float
    #: Workers wanted then.
    workers: int
    #: Workers that were inside steps, on average, and how many of them waited for a core.
    active: float
    delayed: float
    #: Samples finished.
    finished: int
    #: Batches complete and not taken by the consumer, now, and how many there may be.
    queued: int
    queue_limit: int
    #: The batch that is due next is not ready: the consumer waits, or would if it asked now.
    starved: bool
    #: CPU seconds that workers used, for each second.
    cpu: float
    #: CPUs that the process may count on, and how many of those that it may use were idle.
    quota: float
    idle_cores: float
    #: Workers that there may be.
    most: int


@runtime_checkable
class WorkerScheduler(Protocol):
    """Chooses the number of workers that run steps.

    One of your own may be passed to the loader. It is asked on the loader's event loop, so it must
    be quick and not wait; what it raises ends the epoch. It serves every iterator of its loader.

    It may have an attribute `needs`: the names of those among "cpu", "delayed" and "idle_cores"
    that it looks at, each of which takes system calls to measure. Without it, all are measured.
    """

    #: Seconds between two calls of `decide`.
    interval: float

    def start(self) -> int:
        """Workers to begin with."""

    def decide(self, reading: Reading) -> int:
        """Workers wanted from now on; held between 1 and `reading.most`."""


class FixedScheduler:
    """Keeps the number of workers."""

    interval = 1.0
    needs: frozenset[str] = frozenset()

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
    needs = frozenset(["cpu"])

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
        load = min(1.0, _known(reading).cpu / reading.quota) - self._theta
        delta = self._alpha * emptiness + self._beta * load
        self._workers += min(2.0, max(-2.0, delta))
        self._workers = min(float(reading.most), max(1.0, self._workers))
        return round(self._workers)


class _Pause:
    """Seconds in which a step is not tried, since the last one was taken back: twice as many each
    time, so that trying costs less and less where nothing changes."""

    _FIRST, _LONGEST = 2.0, 32.0

    def __init__(self) -> None:
        self._next = self._FIRST
        self.left = 0.0

    def begin(self) -> None:
        self.left, self._next = self._next, min(self._LONGEST, 2.0 * self._next)

    def forget(self) -> None:
        self.left, self._next = 0.0, self._FIRST


@dataclass(frozen=True)
class _Trial:
    """A step up that is being tried."""

    before: int
    #: Samples a second that are required of it.
    goal: float


class ThroughputScheduler:
    """Finds the number of workers that finish most samples, and runs as many of them as the
    consumer needs.

    How many would fill the cores is told by what a worker does with its time, that in which it
    waits for a core left out: if it computes, as many as there are CPUs; if it computes a tenth of
    it, ten times as many. While all workers are busy:

    - There are more than fill the cores: the others go. They would only wait for a core.
    - There are fewer, and the consumer waits: a step up, to twice the workers, but to no more than
      fill the cores. It is kept if samples finish faster, by a quarter of what it could have
      brought: a disk or a lock may be what limits them.

    A step taken back is not tried again for a while. Where the next batch has been ready for a
    whole second, the consumer is the slower one: workers that were idle are let go, except one. As
    soon as it waits again all are back, and it takes longer until they are let go again.
    """

    interval = 0.1
    needs = frozenset(["cpu", "delayed"])
    #: Readings that a step up is based on, and one down, which is not tried first.
    _FEW = 3
    _SEVERAL = 5
    #: Samples that each worker has finished, about, before a rate is known.
    _SAMPLES = 3
    #: Readings after which a step up is taken back that has shown nothing until then.
    _PATIENCE = 6
    #: Readings, a second of them, after which a consumer that never waited is the slower one.
    _CALM = 10
    #: What a step up must show of its possible gain.
    _WORTH = 0.25
    #: CPUs in use by the workers, as a part of the quota, from which on there is nothing to gain.
    _FULL = 0.9
    #: Workers that wait do not do so in turn: to fill the cores takes more of them than on
    #: average. And how many more there may be before some go.
    _SPARE = 1.25
    _TOO_MANY = 1.25

    def __init__(self, workers: int) -> None:
        self._start = workers
        #: The best number as far as is known, and how many of them run.
        self._found = self._running = workers
        #: Since that changed: some readings, for samples that take seconds.
        self._recent: deque[Reading] = deque(maxlen=100)
        self._settling = True
        self._trial: _Trial | None = None
        self._up, self._rest = _Pause(), _Pause()

    def start(self) -> int:
        return self._start

    def decide(self, reading: Reading) -> int:
        reading = _known(reading)
        self._up.left -= reading.seconds
        self._rest.left -= reading.seconds
        let_go = self._running < self._found and self._trial is None
        if let_go and reading.starved and self._busy([reading]):
            self._rest.begin()
            self._run(self._found)
        elif self._settling:
            # Part of it was measured with the number before.
            self._settling = False
        else:
            self._recent.append(reading)
            if len(self._recent) >= self._FEW:
                self._judge()
                self._step()
        return self._running

    def _judge(self) -> None:
        """Keep the step that is being tried or take it back, if it can be told already."""
        if self._trial is None:
            return
        rate = self._rate()
        # With a step after which the consumer need not wait there is nothing more to gain.
        good = not any(r.starved for r in self._last(self._FEW))
        if good or (rate is not None and rate > self._trial.goal):
            self._found = self._running
            self._up.forget()
            self._trial = None
        elif rate is not None and len(self._recent) >= self._PATIENCE:
            self._up.begin()
            self._run(self._trial.before)
            self._trial = None

    def _step(self) -> None:
        # One more than the rate is taken from: the load may have changed within the first.
        few, several = self._last(self._FEW + 1), self._last(self._SEVERAL)
        if self._trial is not None or not few:
            return
        if not self._busy(few):
            self._let_go(self._last(self._CALM))
        elif len(several) == self._SEVERAL and self._running > self._TOO_MANY * (
            fitting := self._fitting(several)
        ):
            self._found = fitting
            self._run(fitting)
        elif all(r.cpu < self._FULL * r.quota for r in few) and any(r.starved for r in few):
            self._try(few)

    def _try(self, few: Sequence[Reading]) -> None:
        running, rate = self._running, self._rate()
        most = min(few[-1].most, self._fitting(few))
        # All the way, if otherwise a step would be left that is too small to be measured.
        wanted = most if most < 3 * running else 2 * running
        if wanted > running and rate is not None and self._up.left <= 0.0:
            gain = min(wanted / running, few[-1].quota / max(1e-9, _mean(few, lambda r: r.cpu)))
            self._trial = _Trial(running, rate * (1.0 + self._WORTH * (gain - 1.0)))
            self._run(wanted)

    def _fitting(self, readings: Sequence[Reading]) -> int:
        """Workers that fill the cores."""
        quota, cpu = readings[-1].quota, _mean(readings, lambda r: r.cpu)
        inside = max(cpu, _mean(readings, lambda r: r.active - r.delayed))
        waits = (inside - cpu) / max(1e-3, cpu)
        return max(math.ceil(quota), round(quota * (1.0 + self._SPARE * waits)))

    def _let_go(self, calm: Sequence[Reading]) -> None:
        if len(calm) < self._CALM or any(r.starved for r in calm) or self._rest.left > 0.0:
            return
        needed = math.ceil(_mean(calm, lambda r: r.active)) + 1
        if needed < self._running:
            self._run(needed)

    def _run(self, workers: int) -> None:
        self._running = workers
        # What was measured with another number of workers tells nothing about this one.
        self._recent.clear()
        self._settling = True

    def _last(self, count: int) -> Sequence[Reading]:
        return list(self._recent)[-count:]

    def _busy(self, readings: Sequence[Reading]) -> bool:
        """All workers were inside steps, but for moments."""
        return _mean(readings, lambda r: r.active) > 0.9 * self._running - 0.2

    def _rate(self) -> float | None:
        """Samples finished a second, in as little time as tells it; None: not yet."""
        seconds, finished = 0.0, 0
        for count, reading in enumerate(reversed(self._recent), 1):
            seconds += reading.seconds
            finished += reading.finished
            if count >= self._FEW and finished >= self._SAMPLES * self._running:
                return finished / seconds
        return None


def _known(reading: Reading) -> Reading:
    """`reading`, where what could not be measured is nothing."""
    if math.isnan(reading.cpu):
        reading = replace(reading, cpu=0.0)
    if math.isnan(reading.delayed):
        reading = replace(reading, delayed=0.0)
    return reading


def _mean(readings: Sequence[Reading], value: Callable[[Reading], float]) -> float:
    """Of `value`, over the time of the readings."""
    return sum(r.seconds * value(r) for r in readings) / sum(r.seconds for r in readings)


def make_scheduler(chosen: str | WorkerScheduler, workers: int) -> WorkerScheduler:
    """The worker scheduler that goes by this name, starting from `workers`; or, if it is one
    already, itself."""
    if not isinstance(chosen, str):
        return chosen
    kinds: dict[str, Callable[[int], WorkerScheduler]] = {
        "fixed": FixedScheduler,
        "paper": PaperScheduler,
        "throughput": ThroughputScheduler,
    }
    return kinds[chosen](workers)
