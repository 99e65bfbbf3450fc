"""The coordinator: what the event loop does at every tick."""

from __future__ import annotations

import time

from minato_async.cpus import worker_cpu_seconds
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

    def __init__(self, slots: Slots, scheduler: WorkerScheduler, watch: DeadlineWatch) -> None:
        self._slots = slots
        self._scheduler = scheduler
        self.watch = watch
        self._asked = 0.0
        self._ticked = 0.0
        #: Seconds that workers were inside steps, all together.
        self._active = 0.0
        self._finished = 0
        self._cpu: dict[str, float] = {}
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
        """Returns the workers to give up."""
        now = time.monotonic()
        if loading is not self._loading:
            self._begin(loading, now)
        self._active += (self._slots.active - self._slots.handed_off) * (now - self._ticked)
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
        self._asked, self._ticked, self._active = now, now, 0.0
        self._finished = loading.finished_samples
        self._used_cpu()

    def _ask(self, loading: Loading, now: float) -> None:
        slots, seconds = self._slots, now - self._asked
        queued, limit = loading.queued
        reading = Reading(
            seconds=seconds,
            workers=slots.wanted,
            active=self._active / seconds,
            finished=loading.finished_samples - self._finished,
            queued=queued,
            queue_limit=limit,
            starved=not loading.delivery.next_ready,
            cpu=self._used_cpu() / seconds,
            quota=self.watch.quota,
            idle_cores=self.watch.idle_cores,
            most=slots.most,
        )
        wanted = min(slots.most, max(1, self._scheduler.decide(reading)))
        if wanted != slots.wanted:
            slots.wanted = wanted
            self.history.append((now, wanted))
        self._asked, self._active = now, 0.0
        self._finished = loading.finished_samples

    def advise(self, loading: Loading, delivered: int, data_wait: float) -> None:
        """Tell the user, once, what could be better. Called after `tick`."""
        now = time.monotonic()
        if now - self._advised < _ADVICE_INTERVAL:
            return
        self._advised = now
        stats, slots = loading.stats(), self._slots
        self._adviser.observe(
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
            )
        )

    def _used_cpu(self) -> float:
        """CPU seconds that running workers have used since the last call."""
        used = 0.0
        for name, entry in self._slots.running.items():
            seconds = worker_cpu_seconds(entry.worker.native_id)
            if seconds is not None:
                # What a worker used that is idle now is counted when it runs again.
                used += max(0.0, seconds - self._cpu.get(name, seconds))
                self._cpu[name] = seconds
        return used
