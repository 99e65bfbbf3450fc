"""The coordinator: what the event loop does at every tick."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from minato_async.cpus import cpu_share, worker_cpu_seconds, worker_delay_seconds
from minato_async.engine.advice import Adviser, Observation
from minato_async.engine.loading import Loading
from minato_async.engine.scheduler import Reading, WorkerScheduler
from minato_async.engine.slots import Slots
from minato_async.engine.watch import DeadlineWatch
from minato_async.executors.base import Worker

#: Seconds between two looks for advice.
_ADVICE_INTERVAL = 0.5


class Coordinator:
    """Has the deadline watch look at every tick, and asks the worker scheduler now and then.

    The caller holds the engine's lock.
    """

    def __init__(
        self, slots: Slots, scheduler: WorkerScheduler, watch: DeadlineWatch, adviser: Adviser
    ) -> None:
        self._slots = slots
        self._scheduler = scheduler
        self.watch = watch
        self._quota = cpu_share()
        self._asked = 0.0
        self._ticked = 0.0
        #: Seconds that workers had jobs, until it was asked last; and since then, seconds of those
        #: that were parked or stuck.
        self._busy = 0.0
        self._aside = 0.0
        self._finished = 0
        self._cpu = _Clocks(worker_cpu_seconds)
        self._delay = _Clocks(worker_delay_seconds)
        self._loading: Loading | None = None
        self._adviser = adviser
        self._advised = 0.0
        #: (seconds, workers) whenever the scheduler changed its mind.
        self.history: list[tuple[float, int]] = []

    @property
    def interval(self) -> float:
        """Seconds until the next tick."""
        return self.watch.next_look

    def tick(self, loading: Loading) -> list[Worker]:
        """Returns the workers to give up."""
        now = time.monotonic()
        if loading is not self._loading:
            self._begin(loading, now)
        self._aside += (self._slots.parked + self._slots.handed_off) * (now - self._ticked)
        self._ticked = now
        given_up = self.watch.look(loading, now)
        if now - self._asked >= self._scheduler.interval:
            self._ask(loading, now)
        return given_up

    def forget(self) -> None:
        """The epoch is over: keep nothing of it."""
        self._loading = None

    def _begin(self, loading: Loading, now: float) -> None:
        self._loading = loading
        self._ticked = now
        self._begin_reading(loading, now)
        self._cpu.passed(self._slots)
        self._delay.passed(self._slots)

    def _ask(self, loading: Loading, now: float) -> None:
        slots, seconds = self._slots, now - self._asked
        queued, limit = loading.queued
        reading = Reading(
            seconds=seconds,
            workers=slots.wanted,
            active=max(0.0, slots.busy_seconds(now) - self._busy - self._aside) / seconds,
            delayed=self._delay.passed(slots) / seconds,
            finished=loading.finished_samples - self._finished,
            queued=queued,
            queue_limit=limit,
            starved=not loading.delivery.next_ready,
            cpu=self._cpu.passed(slots) / seconds,
            quota=self._quota,
            idle_cores=self.watch.idle_cores,
            most=slots.most,
        )
        wanted = min(slots.most, max(1, self._scheduler.decide(reading)))
        if wanted != slots.wanted:
            slots.wanted = wanted
            self.history.append((now, wanted))
        self._begin_reading(loading, now)

    def _begin_reading(self, loading: Loading, now: float) -> None:
        self._asked, self._aside = now, 0.0
        self._busy = self._slots.busy_seconds(now)
        self._finished = loading.finished_samples

    def advise(self, loading: Loading, delivered: int, data_wait: float) -> Sequence[str]:
        """What could be better: to be told to the user, without the lock. Called after `tick`."""
        now = time.monotonic()
        if now - self._advised < _ADVICE_INTERVAL:
            return ()
        self._advised = now
        stats, slots = loading.stats(), self._slots
        return self._adviser.observe(
            Observation(
                now=now,
                data_wait=data_wait,
                delivered=delivered,
                workers=slots.wanted,
                most=slots.most,
                active=slots.active,
                temp_queue=stats.temp_queue,
                in_flight=stats.in_window + stats.unclaimed,
                threshold=stats.threshold,
                held_up=stats.held_up if loading.order_is_optional else 0.0,
            )
        )


class _Clocks:
    """Looks at a clock that each worker has."""

    def __init__(self, read: Callable[[int], float | None]) -> None:
        self._read = read
        self._last: dict[str, float] = {}

    def passed(self, slots: Slots) -> float:
        """Seconds by which those of running workers moved on since the last call."""
        total = 0.0
        for name, entry in slots.running.items():
            seconds = self._read(entry.worker.native_id)
            if seconds is not None:
                # What passed for a worker that is idle now is counted when it runs again.
                total += max(0.0, seconds - self._last.get(name, seconds))
                self._last[name] = seconds
        return total
