"""Worker schedulers: how many workers should run steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


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
    #: The batch that is due next is not ready: the consumer waits, or would if it asked now.
    starved: bool
    #: CPU seconds that workers used, for each second.
    cpu: float
    #: CPUs that the process may use, and how many of them were idle.
    quota: float
    idle_cores: float
    #: Workers that there may be.
    most: int


@runtime_checkable
class WorkerScheduler(Protocol):
    """Chooses the number of workers that run steps.

    One of your own may be passed to the loader. It is asked under the engine's lock, so it must be
    quick and not wait; what it raises ends the epoch. It serves every iterator of its loader.
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
    """A step that is being tried, up or down."""

    up: bool
    before: int
    #: What is required of it: up, samples a second; down, CPU seconds a second.
    goal: float


class ThroughputScheduler:
    """Finds the number of workers that finish most samples, by trying, and runs as many of them
    as the consumer needs. While all workers are busy:

    - Cores are idle and the consumer waits: a step up, to twice the workers, but to no more than
      would fill the cores. It is kept if samples finish faster, by a quarter of what it could have
      brought.
    - No core is idle, and there are more workers than CPUs: a step down, by a third. It is kept if
      the rest use as much CPU time, for then the others only waited for a core. CPU time tells it
      within a third of a second; the rate does not, where the costs of samples differ. That the
      consumer waits is not required: among so many threads it may not get a core itself.

    A step taken back is not tried again for a while. Where the next batch has been ready for a
    whole second, the consumer is the slower one: workers that were idle are let go, except one. As
    soon as it waits again all are back.
    """

    interval = 0.1
    #: Readings that a decision is based on.
    _FEW = 3
    #: Samples that each worker has finished, about, before a rate is known.
    _SAMPLES = 2
    #: Readings after which a step up is taken back that has shown nothing until then.
    _PATIENCE = 6
    #: Readings, a second of them, after which a consumer that never waited is the slower one.
    _CALM = 10
    #: What a step up must show of its possible gain, and a step down keep of the CPU time.
    _WORTH = 0.25
    _SAME = 0.95
    #: CPUs that may be idle, as a part of the quota, while "no core is idle"; and CPUs in use by
    #: the workers, below which one is as good as idle.
    _IDLE = 0.1
    _LITTLE = 0.5
    #: Workers do not wait in turn: to fill the cores takes more of them than on average.
    _SPARE = 1.25

    def __init__(self, workers: int) -> None:
        self._start = workers
        #: The best number as far as is known, and how many of them run.
        self._found = self._running = workers
        #: Since that changed: some readings, for samples that take seconds.
        self._recent: deque[Reading] = deque(maxlen=100)
        self._settling = True
        self._trial: _Trial | None = None
        self._up, self._down = _Pause(), _Pause()

    def start(self) -> int:
        return self._start

    def decide(self, reading: Reading) -> int:
        self._up.left -= reading.seconds
        self._down.left -= reading.seconds
        let_go = self._running < self._found and self._trial is None
        if let_go and reading.starved and self._busy([reading]):
            self._run(self._found)
        elif self._settling:
            # Part of it was measured with the number before.
            self._settling = False
        else:
            self._recent.append(reading)
            few = self._last(self._FEW)
            if len(few) < self._FEW:
                pass
            elif self._trial is not None:
                self._judge(self._trial, few)
            elif self._busy(few):
                self._try(few)
            else:
                self._let_go(self._last(self._CALM))
        return self._running

    def _try(self, few: Sequence[Reading]) -> None:
        now, running, cpu = few[-1], self._running, _mean(few, lambda r: r.cpu)
        # On cores that others keep busy, too: whoever uses few of them finds one when it needs it.
        idle = [r.idle_cores > self._IDLE * r.quota or r.cpu < self._LITTLE * r.quota for r in few]
        if all(idle) and any(r.starved for r in few) and self._up.left <= 0.0:
            share = max(1e-3, cpu / _mean(few, lambda r: r.active))
            most = min(now.most, math.ceil(self._SPARE * now.quota / share))
            # All the way, if otherwise a step would be left that is too small to be measured.
            wanted = most if most < 3 * running else 2 * running
            rate = self._rate()
            if wanted > running and rate is not None:
                gain = max(0.0, min(wanted / running, now.quota / max(1e-9, cpu)) - 1.0)
                self._trial = _Trial(True, running, rate * (1.0 + self._WORTH * gain))
                self._run(wanted)
        elif not any(idle) and running > math.ceil(now.quota) and self._down.left <= 0.0:
            self._trial = _Trial(False, running, self._SAME * cpu)
            self._run(max(math.ceil(now.quota), math.ceil(2 * running / 3)))

    def _judge(self, trial: _Trial, few: Sequence[Reading]) -> None:
        """Keep the step or take it back, if it can be told already."""
        if trial.up:
            rate = self._rate()
            # With a step after which the consumer need not wait there is nothing more to gain.
            good = not any(r.starved for r in few) or (rate is not None and rate > trial.goal)
            if not good and (rate is None or len(self._recent) < self._PATIENCE):
                return
        else:
            # Workers leave when they come out of what they are running.
            if _mean(few, lambda r: r.active) > self._running + 0.5:
                return
            good = _mean(few, lambda r: r.cpu) >= trial.goal
        self._trial = None
        pause = self._up if trial.up else self._down
        if good:
            self._found = self._running
            pause.forget()
        else:
            pause.begin()
            self._run(trial.before)

    def _let_go(self, calm: Sequence[Reading]) -> None:
        if len(calm) == self._CALM and not any(r.starved for r in calm):
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
