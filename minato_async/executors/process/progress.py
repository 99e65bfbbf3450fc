"""What a worker process tells of itself in shared memory, for the parent to look at."""

from __future__ import annotations

from time import perf_counter

#: Numbers in the record of one worker. Each has its own cache lines.
RECORD = 16
_REQUEST, _ROW, _INSIDE, _BEGAN, _COST, _STOP = range(6)
#: The first record is for all: the newest context that was abandoned.
_ABANDONED = 0


class Status:
    """The record of one worker. Used by both sides; each number is written by one of them, but for
    the request to stop, which is only ever made.

    There is no fence: a lock is none on every processor, and would be left locked by a fork. What
    one side has written the other sees, but later than it may have read on; so who asks a worker to
    begin no more rows waits a moment before it relies on what the worker tells.
    """

    def __init__(self, shared: memoryview[float], number: int) -> None:
        start = (number + 1) * RECORD
        self._shared = shared
        self._record = shared[start : start + RECORD]

    # The worker's side

    def begin_request(self, request: int) -> None:
        record = self._record
        record[_INSIDE], record[_ROW], record[_REQUEST] = 0, -1, request

    def begin_row(self, row: int) -> bool:
        """The worker is about to begin `row`; False if it was asked not to."""
        record = self._record
        record[_BEGAN] = perf_counter()
        record[_ROW] = row
        return not record[_STOP]

    def enter(self, cost: float = 0.0) -> None:
        """It enters a step of a sample that has cost `cost` seconds before, or the only steps of
        some rows, one after the other."""
        record = self._record
        record[_COST], record[_BEGAN], record[_INSIDE] = cost, perf_counter(), 1

    def leave(self) -> None:
        self._record[_INSIDE] = 0

    def stop(self) -> None:
        """Begin no more rows, as if the parent had asked."""
        self._record[_STOP] = 1

    @property
    def began(self) -> float:
        """`perf_counter()` when the running step began."""
        began: float = self._record[_BEGAN]
        return began

    @property
    def elapsed(self) -> float:
        """Seconds of cost of the running sample so far; 0 if there is none."""
        return _elapsed(self._record)

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

    def expect(self, request: int) -> RequestProgress:
        self._record[_STOP] = 0
        return RequestProgress(self._record, request)


def _elapsed(record: memoryview[float]) -> float:
    return record[_COST] + perf_counter() - record[_BEGAN] if record[_INSIDE] else 0.0


class RequestProgress:
    """How far a worker has come with one request."""

    def __init__(self, record: memoryview[float], request: int) -> None:
        self._record = record
        self._request = request

    @property
    def row(self) -> int:
        record = self._record
        return int(record[_ROW]) if record[_REQUEST] == self._request else -1

    @property
    def elapsed(self) -> float:
        return _elapsed(self._record) if self.row >= 0 else 0.0

    def stop(self) -> None:
        self._record[_STOP] = 1
