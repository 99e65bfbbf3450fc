"""What is counted of an epoch for `loader.stats`, as it happens."""

from __future__ import annotations

from collections.abc import Sequence

from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block
from minato_async.engine.recorder import Outcome, Recorder


class Counts(Recorder):
    """Samples that were slow or failed, and what the consumer has taken and waited for. The
    engine's lock guards it."""

    def __init__(self) -> None:
        #: Samples diverted between two steps; stuck workers in whose place another was started.
        self.slow = 0
        self.stuck = 0
        #: Samples that failed and were replaced by none, skipped ones included.
        self.failed = 0
        #: Batches that the consumer took.
        self.delivered = 0
        #: Seconds that it waited for those inside `next()`.
        self.data_wait = 0.0
        #: `time.monotonic()` since when it waits for the next one; None: it does not.
        self.waits_since: float | None = None

    def waited(self, now: float) -> float:
        """Seconds until `now`, those included that it has waited in vain so far."""
        return self.data_wait + (0.0 if self.waits_since is None else now - self.waits_since)

    def diverted(self, block: Block, row: int) -> None:
        self.slow += 1

    def handed_off(self, block: Block, row: int) -> None:
        self.stuck += 1

    def settled(self, block: Block, rows: Sequence[int], outcome: Outcome) -> None:
        if outcome is not Outcome.FINISHED:
            self.failed += len(rows)

    def taken(self, batch: Batch, waited: float) -> None:
        self.delivered += not batch.void
        self.data_wait += waited
        self.waits_since = None
