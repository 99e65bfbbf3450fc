"""The deadline watch: what becomes of a worker that does not come out of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from minato_async.engine.loading import Loading
from minato_async.engine.protocols import Worker
from minato_async.engine.slots import Slots

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

    A look has two halves, both with the engine's lock held: `suspects` and `look`. In between,
    with the lock released, the caller asks the system for the CPU time of the suspects.
    """

    def __init__(self, slots: Slots, sample_timeout: float | None) -> None:
        self._slots = slots
        self._sample_timeout = sample_timeout
        #: CPU seconds of suspects at the last look, and when it was.
        self._clocks: dict[str, tuple[float, float]] = {}
        #: Seconds until the next look is due.
        self.next_look = _LATEST

    @property
    def _full(self) -> bool:
        """All that may run are wanted anyway: nobody could take a stuck worker's place."""
        return self._slots.wanted >= self._slots.most

    def minds_cores(self, loading: Loading) -> bool:
        """Whether anything depends on whether a core is idle."""
        return loading.parks or not (self._full or math.isinf(loading.stuck_after))

    def suspects(self, loading: Loading) -> Sequence[Worker]:
        """Those of whom it matters, now or soon, whether they wait or compute."""
        slots, stuck_after = self._slots, loading.stuck_after
        if self._full or slots.active >= slots.most or slots.cores_idle:
            return ()
        # Looked at early, so that it is known by then.
        return [
            entry.worker
            for entry in slots.running.values()
            if not entry.handed_off and entry.job.elapsed >= stuck_after / 2.0
        ]

    def look(
        self, loading: Loading, now: float, cpu_seconds: Mapping[str, float | None]
    ) -> list[Worker]:
        """Take measures, knowing the CPU time of the suspects by name; returns the workers to give
        up."""
        slots, full = self._slots, self._full
        given_up = []
        clocks: dict[str, tuple[float, float]] = {}
        self.next_look = _RARELY if full and self._sample_timeout is None else _LATEST
        stuck_after = loading.stuck_after
        for entry in list(slots.running.values()):
            elapsed = entry.job.elapsed
            if self._sample_timeout is not None and elapsed > self._sample_timeout:
                if entry.job.expire(self._sample_timeout):
                    slots.leave(entry.worker)
                    given_up.append(entry.worker)
                else:
                    self.next_look = _EARLIEST  # it may have been asked to stop first
                continue
            if entry.handed_off or elapsed < stuck_after / 2.0:
                continue
            if full or slots.active >= slots.most:
                continue
            name = entry.worker.name
            if (used := cpu_seconds.get(name)) is not None:
                clocks[name] = now, used
            if elapsed < stuck_after:
                left = max(_EARLIEST, stuck_after - elapsed)
                self.next_look = min(self.next_look, left)
            elif slots.cores_idle or self._waits(name, clocks):
                if entry.job.hand_off():
                    slots.hand_off(entry)
                else:
                    self.next_look = _EARLIEST
        self._clocks = clocks
        return given_up

    def _waits(self, name: str, clocks: Mapping[str, tuple[float, float]]) -> bool:
        """Whether the worker has hardly used its core since the last look."""
        if name not in clocks or name not in self._clocks:
            return False
        (then, used_then), (now, used) = self._clocks[name], clocks[name]
        return used - used_then < _WAITING * (now - then)
