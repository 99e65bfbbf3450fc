"""The life of tickets that one worker has, whatever executor it belongs to, as plain state.

The worker tells what becomes of them by events: on threads by direct calls
(`executors.thread.jobs`), from a worker process by messages (`executors.process.jobs`). Nothing
here waits or runs user code; where nothing else is said, the caller of a method holds the engine's
lock.
"""

from __future__ import annotations

from minato_async.engine.feed import Block, Claim
from minato_async.engine.lanes import Sample
from minato_async.engine.map_epoch import MapEpoch
from minato_async.errors import Unmade, shown, took_too_long


class SampleJob:
    """Base of all jobs of one epoch."""

    def __init__(self, epoch: MapEpoch, block: Block) -> None:
        self._epoch = epoch
        self._lock = epoch.sync.lock
        #: Who is to be told of everything that becomes of samples.
        self._details = epoch.details
        self._due = epoch.sync.due
        self.block = block
        #: The sample is known to be slow, and its worker counted in the slow lane.
        self.slow = False

    @property
    def elapsed(self) -> float:
        """Seconds that the running sample has cost so far; 0 between samples. Any thread."""
        raise NotImplementedError

    def conclude(self) -> None:
        """Nothing is left to be done."""

    def hand_off(self) -> bool:
        row = self._stuck_in()
        if row is None:
            return False
        self._become_slow(row)
        self._epoch.recorder.handed_off(self.block, row)
        return True

    def expire(self, seconds: float) -> bool:
        row = self._stuck_in()
        # Asked again: it may have come to this row since the watch looked.
        if row is None or self.elapsed <= seconds:
            return False
        self._not_begun(row + 1)
        late = Unmade(took_too_long, self.block.indices[row], seconds)
        if not self._epoch.expire_with(self.block, row, late):
            return False
        self._given_up()
        self._leave_slow_lane()
        return True

    def _stuck_in(self) -> int | None:
        """The row whose step the worker is in, once it is certain to begin no other. None if it
        came out, or has to be asked first: then, to be called again later."""
        raise NotImplementedError

    def _given_up(self) -> None:
        """Nobody waits for the running sample any more, nor for its worker."""
        raise NotImplementedError

    def _not_begun(self, row: int) -> None:
        """The worker begins neither `row` nor what comes after it; others do."""

    def _become_slow(self, row: int) -> None:
        """The worker is slow in `row`, and will begin no other."""
        if not self.slow:
            self.slow = True
            self._epoch.lanes.slow_running += 1
            self._not_begun(row + 1)

    def _leave_slow_lane(self) -> None:
        if self.slow:
            self.slow = False
            self._epoch.lanes.slow_running -= 1


class ClaimJob(SampleJob):
    """The fast lane: the rows of one block that a worker has claimed."""

    def __init__(self, claim: Claim, epoch: MapEpoch) -> None:
        super().__init__(epoch, claim.block)
        self._start, self._stop = claim.start, claim.stop
        #: Claimed out of turn to be finished in time: it does not give way to others.
        self._early = claim.early

    @property
    def _row(self) -> int:
        """The row that the worker is in, or was in last."""
        raise NotImplementedError

    def describe(self) -> str:
        row = max(self._start, self._row)
        if row >= self._stop:
            return "collating a batch"
        return f"sample index {shown(self.block.indices[row])}"

    def _not_begun(self, row: int) -> None:
        if row < self._stop:
            stop, self._stop = self._stop, row
            self._epoch.put_back(self.block, row, stop)


class SlowJob(SampleJob):
    """The slow lane: what is left of one diverted sample."""

    def __init__(self, sample: Sample, epoch: MapEpoch) -> None:
        super().__init__(epoch, sample.block)
        self._sample = sample
        self.slow = True

    def describe(self) -> str:
        return f"slow sample index {shown(self.block.indices[self._sample.row])}"


class FailedJob(SampleJob):
    """What is to be done about a sample that was not waited for any longer."""

    def __init__(self, block: Block, row: int, error: Unmade, epoch: MapEpoch) -> None:
        super().__init__(epoch, block)
        self._failed_row, self._error = row, error

    def describe(self) -> str:
        return f"the failure of sample index {shown(self.block.indices[self._failed_row])}"

    def _reopen(self) -> None:
        """What comes next decides the ticket. Not before the outcome is there: the late result
        could come in between."""
        self._epoch.reopen(self.block, self._failed_row)
