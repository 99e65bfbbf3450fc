"""What a worker process tells of itself in shared memory, for the parent to look at."""

from __future__ import annotations

import threading
from time import perf_counter

#: Numbers in the record of one worker. Each has its own cache lines.
RECORD = 16
_ORDER, _ROW, _INSIDE, _BEGAN, _COST, _STOP, _FIRST = range(7)
#: The first record is for all: the newest context that was abandoned.
_ABANDONED = 0

#: Taken and released where what was written before must be seen before what is read after:
#: processors let reads overtake writes, except around an atomic operation.
_fence = threading.Lock()


class Status:
    """The record of one worker. Used by both sides; each number is written by one of them."""

    def __init__(self, shared: memoryview[float], number: int) -> None:
        start = (number + 1) * RECORD
        self._shared = shared
        self._record = shared[start : start + RECORD]

    # The worker's side

    def begin_order(self, order: int) -> None:
        record = self._record
        record[_INSIDE], record[_ROW], record[_ORDER] = 0, -1, order

    def begin_row(self, row: int) -> bool:
        """The worker is about to begin `row`; False if it was asked not to."""
        record = self._record
        record[_ROW] = row
        with _fence:
            pass
        return not record[_STOP]

    def enter(self, cost: float = 0.0, first: int = -1) -> None:
        """It enters a step of a sample that has cost `cost` seconds before, or the only steps of
        rows from `first` on."""
        record = self._record
        record[_FIRST] = first
        record[_COST], record[_BEGAN], record[_INSIDE] = cost, perf_counter(), 1

    def leave(self) -> None:
        self._record[_INSIDE] = 0

    def abandoned(self, context: int) -> bool:
        """Nobody waits for what belongs to `context`."""
        newest: float = self._shared[_ABANDONED]
        return newest >= context

    # The parent's side

    def reset(self) -> None:
        for place in range(RECORD):
            self._record[place] = 0

    def abandon(self, context: int) -> None:
        self._shared[_ABANDONED] = context

    def expect(self, order: int) -> OrderProgress:
        self._record[_STOP] = 0
        return OrderProgress(self._record, order)


class OrderProgress:
    """How far a worker has come with one order."""

    def __init__(self, record: memoryview[float], order: int) -> None:
        self._record = record
        self._order = order
        #: The row at the last look, and since when it is known to have run.
        self._seen = -1
        self._since = 0.0

    @property
    def row(self) -> int:
        record = self._record
        return int(record[_ROW]) if record[_ORDER] == self._order else -1

    @property
    def elapsed(self) -> float:
        record, row = self._record, self.row
        if row < 0 or not record[_INSIDE]:
            return 0.0
        began, now = record[_BEGAN], perf_counter()
        if row != self._seen:
            # Rows of a single step are timed together: since when this one runs is not told, but
            # for the first of them.
            self._since = began if self._seen < 0 and row == record[_FIRST] else now
            self._seen = row
        elapsed: float = record[_COST] + now - max(began, self._since)
        return elapsed

    def stop(self) -> None:
        self._record[_STOP] = 1
        with _fence:
            pass
