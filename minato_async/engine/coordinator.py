"""The coordinator: what the event loop does at every tick."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from threading import RLock

from minato_async.engine.counts import Counts
from minato_async.engine.deadline_watch import DeadlineWatch
from minato_async.engine.loading import Loading
from minato_async.engine.protocols import Worker
from minato_async.engine.slots import Slots
from minato_async.scheduling.advice import Advice, Adviser, Observation
from minato_async.scheduling.cpus import (
    IdleCores,
    cpu_share,
    worker_cpu_seconds,
    worker_delay_seconds,
)
from minato_async.scheduling.schedulers import MEASURED, Reading, WorkerScheduler

#: Seconds between two looks for advice.
_ADVICE_INTERVAL = 0.5


class Coordinator:
    """Has the deadline watch look at every tick, and asks the worker scheduler now and then.

    All on the event loop. It takes the engine's lock itself, for moments: whatever is asked of the
    system, and the user's scheduler, is asked while nobody can be waiting for that lock.
    """

    def __init__(
        self, lock: RLock, slots: Slots, scheduler: WorkerScheduler, watch: DeadlineWatch
    ) -> None:
        self._lock = lock
        self._slots = slots
        self._scheduler = scheduler
        #: What of `MEASURED` the scheduler looks at.
        self._needs: frozenset[str] = getattr(scheduler, "needs", MEASURED)
        self.watch = watch
        self._quota = cpu_share()
        self._asked = 0.0
        self._ticked = 0.0
        #: Seconds that workers had jobs, until it was asked last; and since then, seconds of those
        #: that were parked or stuck.
        self._busy = 0.0
        self._aside = 0.0
        self._finished = 0
        self._cores = IdleCores()
        #: CPUs that were idle lately; None: it is not known.
        self._idle: float | None = None
        self._cpu = _Clocks(worker_cpu_seconds)
        self._delay = _Clocks(worker_delay_seconds)
        self._loading: Loading | None = None
        self._adviser = Adviser()
        self._advised = 0.0
        #: (seconds, workers) whenever the scheduler changed its mind.
        self.history: list[tuple[float, int]] = []

    @property
    def interval(self) -> float:
        """Seconds until the next tick."""
        return self.watch.next_look

    def tick(self, loading: Loading) -> list[Worker]:
        """Look after `loading`; returns the workers to give up. One that is no longer loaded is
        left alone."""
        now = time.monotonic()
        with self._lock:
            begins = loading is not self._loading
            if begins:
                self._begin(loading, now)
            suspects = self.watch.suspects(loading)
            minds_cores = self.watch.minds_cores(loading)
            asks = not begins and now - self._asked >= self._scheduler.interval
            # Not the entries themselves: the last to have one frees keys of the user's.
            entries = self._slots.running.values() if begins or asks else ()
            running = [entry.worker for entry in entries]
        cpu_seconds = {worker.name: worker_cpu_seconds(worker.native_id) for worker in suspects}
        self._look_at_cores(minds_cores)
        cpu = self._cpu.passed(running) if "cpu" in self._needs else math.nan
        delayed = self._delay.passed(running) if "delayed" in self._needs else math.nan
        reading: Reading | None = None
        with self._lock:
            if loading is not self._loading:
                return []
            now, slots = time.monotonic(), self._slots
            slots.cores_idle = (self._idle or 0.0) >= 0.5
            self._aside += (slots.parked + slots.handed_off) * (now - self._ticked)
            self._ticked = now
            given_up = self.watch.look(loading, now, cpu_seconds)
            if asks:
                reading = self._read(loading, now, cpu, delayed)
                self._begin_reading(loading, now)
        if reading is not None:
            self._obey(self._scheduler.decide(reading))
        return given_up

    def _look_at_cores(self, minded: bool) -> None:
        minded = minded or "idle_cores" in self._needs or self._adviser.minds_cores
        self._idle = self._cores.look() if minded else None

    def forget(self) -> None:
        """The epoch is over: keep nothing of it. The caller holds the engine's lock."""
        self._loading = None

    def close(self) -> None:
        """Nothing is asked any more."""
        self._cores.close()

    def _begin(self, loading: Loading, now: float) -> None:
        self._loading = loading
        self._ticked = now
        self._begin_reading(loading, now)
        self._adviser.begin()

    def _read(self, loading: Loading, now: float, cpu: float, delayed: float) -> Reading:
        slots, seconds = self._slots, now - self._asked
        queued, limit = loading.queued
        return Reading(
            seconds=seconds,
            workers=slots.wanted,
            active=max(0.0, slots.busy_seconds(now) - self._busy - self._aside) / seconds,
            delayed=delayed / seconds,
            finished=loading.finished_samples - self._finished,
            queued=queued,
            queue_limit=limit,
            starved=not loading.delivery.next_ready,
            cpu=cpu / seconds,
            quota=self._quota,
            idle_cores=math.nan if self._idle is None else self._idle,
            most=slots.most,
        )

    def _obey(self, wanted: int) -> None:
        slots = self._slots
        with self._lock:
            wanted = min(slots.most, max(1, wanted))
            if wanted != slots.wanted:
                slots.wanted = wanted
                self.history.append((time.monotonic(), wanted))

    def _begin_reading(self, loading: Loading, now: float) -> None:
        self._asked, self._aside = now, 0.0
        self._busy = self._slots.busy_seconds(now)
        self._finished = loading.finished_samples

    def advise(self, loading: Loading, counts: Counts) -> Sequence[Advice]:
        """What the user could change, if it is time to say so. Called after `tick`."""
        now = time.monotonic()
        if now - self._advised < _ADVICE_INTERVAL:
            return ()
        self._advised = now
        slots = self._slots
        with self._lock:
            temp_queue, in_flight, threshold = loading.backlog
            observation = Observation(
                now=now,
                data_wait=counts.waited(now),
                delivered=counts.delivered,
                workers=slots.wanted,
                most=slots.most,
                active=slots.active,
                temp_queue=temp_queue,
                in_flight=in_flight,
                threshold=threshold,
                idle_cores=self._idle,
                held_up=loading.delivery.held_up if loading.order_is_optional else 0.0,
            )
        return self._adviser.observe(observation)


class _Clocks:
    """Looks at a clock that each worker has."""

    def __init__(self, read: Callable[[int], float | None]) -> None:
        self._read = read
        self._last: dict[str, float] = {}

    def passed(self, running: Iterable[Worker]) -> float:
        """Seconds by which those of `running` workers moved on since the last call; nan where
        there are none to be read."""
        total, unread = 0.0, False
        for worker in running:
            name, seconds = worker.name, self._read(worker.native_id)
            if seconds is None:
                unread = True
                continue
            # What passed for a worker that is idle now is counted when it runs again.
            total += max(0.0, seconds - self._last.get(name, seconds))
            self._last[name] = seconds
        return math.nan if unread and not self._last else total
