"""Counts the samples that run at the same time, so that "equal workers" is true, not hoped.

The dataset enters the guard for every sample; the peak is checked after the epoch. It does not
raise inside a sample: some loaders drop a sample that raises, and would hide it.
"""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from benchmarks.measure.checks import CheckFailed
from minato_async import share


class _Counts(Protocol):
    def __getitem__(self, place: int, /) -> int: ...

    def __setitem__(self, place: int, value: int, /) -> None: ...


class ConcurrencyGuard:
    """A context manager that any number of threads, or processes, enter at the same time.

    ``processes``: keep the counts in shared memory, for loaders that fork workers; without it a
    plain lock does, which costs less. One guard per run: a worker that is killed inside a sample
    never leaves it.
    """

    def __init__(self, *, processes: bool) -> None:
        # Of our loader, too, all workers are to enter the same one.
        share(self)
        self._counts: _Counts
        self._lock: AbstractContextManager[object]
        if processes:
            self._counts = multiprocessing.RawArray("l", 2)
            self._lock = multiprocessing.Lock()
        else:
            self._counts = [0, 0]
            self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            running = self._counts[0] + 1
            self._counts[0] = running
            self._counts[1] = max(running, self._counts[1])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._counts[0] -= 1

    @property
    def peak(self) -> int:
        """The most samples that ever ran at once."""
        return self._counts[1]

    def check(self, workers: int) -> None:
        """Fail the row when more than ``workers`` samples ran at once, or none ever did."""
        if self.peak > workers:
            raise CheckFailed(f"{self.peak} samples ran at once with {workers} workers")
        if self.peak < 1:
            raise CheckFailed("no sample ran under the guard")
