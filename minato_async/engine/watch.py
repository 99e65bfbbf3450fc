"""The deadline watch: what becomes of a worker that does not come out of a step."""

from __future__ import annotations

from minato_async.cpus import IdleCores, worker_cpu_seconds
from minato_async.engine.loading import Loading
from minato_async.engine.slots import Running, Slots
from minato_async.executors.base import Worker

#: Seconds between two looks, at most, and at least where a worker may be stuck earlier.
_LATEST, _EARLIEST = 0.02, 0.002
#: The latest where nothing could be done about a worker that is stuck: fifty looks a second take
#: half a percent of two cores.
_RARELY = 0.05
#: A thread that uses less than this part of a core is waiting, not computing.
_WAITING = 0.2


class DeadlineWatch:
    """Looks at what the workers are running, a few times a second.

    A worker that is stuck in one long step is re-labelled slow and another is started in its
    place, within `max_workers` threads and only where that helps: if the stuck thread waits, or a
    core is idle. A sample beyond `sample_timeout` seconds has failed, and its worker is given up.

    The caller of `look` holds the engine's lock.
    """

    def __init__(self, slots: Slots, sample_timeout: float | None) -> None:
        self._slots = slots
        self._sample_timeout = sample_timeout
        self._cores = IdleCores()
        #: CPU seconds of suspects at the last look, and when it was.
        self._clocks: dict[str, tuple[float, float]] = {}
        self.handed_off = 0
        #: Seconds until the next look is due.
        self.next_look = _LATEST

    @property
    def idle_cores(self) -> float:
        return self._cores.idle

    def look(self, loading: Loading, now: float) -> list[Worker]:
        """Take measures; returns the workers to give up."""
        slots = self._slots
        slots.cores_idle = self._cores.look() >= 0.5
        given_up = []
        suspects: dict[str, tuple[float, float]] = {}
        # Where all that may run are wanted anyway, nobody could take its place.
        full = slots.wanted >= slots.most
        self.next_look = _RARELY if full and self._sample_timeout is None else _LATEST
        stuck_after = loading.stuck_after
        for entry in list(slots.running.values()):
            elapsed = entry.job.elapsed
            if self._sample_timeout is not None and elapsed > self._sample_timeout:
                if entry.job.expire(self._sample_timeout):
                    slots.leave(entry.worker)
                    given_up.append(entry.worker)
                continue
            if entry.handed_off or elapsed < stuck_after / 2.0:
                continue
            if full or slots.active >= slots.most:
                continue
            # Looked at early, so that it is known by then whether it waits or computes.
            helps = self._helps(entry, now, suspects)
            if elapsed < stuck_after:
                left = max(_EARLIEST, stuck_after - elapsed)
                self.next_look = min(self.next_look, left)
            elif helps and entry.job.hand_off():
                slots.hand_off(entry)
                self.handed_off += 1
        self._clocks = suspects
        return given_up

    def _helps(self, entry: Running, now: float, suspects: dict[str, tuple[float, float]]) -> bool:
        """Whether one more thread would have a core to run on."""
        if self._slots.cores_idle:
            return True
        used = worker_cpu_seconds(entry.worker.native_id)
        if used is None:
            return False
        name = entry.worker.name
        suspects[name] = (now, used)
        if name not in self._clocks:
            return False
        then, used_then = self._clocks[name]
        return used - used_then < _WAITING * (now - then)
