"""Notices when the whole process stands still, as virtual machines do that are paused.

A benchmark that measures over seconds, and not over an amount of work, would count such a pause as
a loader's; so it repeats the run, and says so.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

_NAP = 0.05
LONGEST = 0.5
"""Seconds that a thread which wants to run every 50 ms may be late, on a busy machine."""


class PauseWatch:
    """A context manager with a thread that looks at the clock; ``longest`` is the longest pause."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="pause-watch", daemon=True)

    def _look(self) -> None:
        last = time.perf_counter()
        while not self._over.wait(_NAP):
            now = time.perf_counter()
            self.longest = max(self.longest, now - last - _NAP)
            last = now

    def __enter__(self) -> PauseWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def paused(self) -> bool:
        return self.longest > LONGEST
