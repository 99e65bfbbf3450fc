"""The epoch of a map-style dataset whose jobs are sent to worker processes."""

from __future__ import annotations

from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block, Claim
from minato_async.engine.lanes import Sample
from minato_async.engine.protocols import Job
from minato_async.errors import Unmade
from minato_async.executors.process.epoch_state import RemoteMapEpoch
from minato_async.executors.process.jobs import (
    RemoteClaimJob,
    RemoteCollateJob,
    RemoteFailedJob,
    RemoteSlowJob,
)
from minato_async.executors.process.messages import CollateBatch


class ProcessMapEpoch(RemoteMapEpoch):
    """Makes the jobs of a `RemoteMapEpoch`."""

    def _left_over_job(self) -> Job:
        return self._collate_job(self._left_over.pop(0))

    def _collate_job(self, batch: Batch) -> Job:
        return RemoteCollateJob(batch, self)

    def _claim_job(self, claim: Claim) -> Job:
        if claim.completed:
            (empty,) = claim.completed
            return RemoteCollateJob(empty, self)
        block = claim.block
        rows = claim.stop - claim.start
        if any(block.settled[claim.start : claim.stop]):
            return RemoteClaimJob(claim, False, None, self)
        if rows == len(block.indices):
            whole = self._may_reserve(block) and self._builder.reserve(block)
            return RemoteClaimJob(claim, whole, None, self)
        batch = block.batch
        if batch is not None and batch.missing == rows and not (batch.lost or batch.skipped_rows):
            # All others are there: whoever runs these makes the batch.
            given = CollateBatch(batch.indices, batch.samples)
            return RemoteClaimJob(claim, True, given, self)
        return RemoteClaimJob(claim, False, None, self)

    def _may_reserve(self, block: Block) -> bool:
        """Whether one worker may make a batch of `block`, if nothing comes in between."""
        if self._as_drawn or not self._reserves:
            return self._reserves
        # The short block at the end has to be there for what is missing of others, if samples
        # fail: unless there are no others, or its samples cannot travel.
        short = block.samples < self._batch_size
        return not short or self.cannot_travel or self._unfilled == len(block.indices)

    def _slow_job(self, sample: Sample) -> Job:
        return RemoteSlowJob(sample, self)

    def _failed_job(self, block: Block, row: int, error: Unmade) -> Job:
        return RemoteFailedJob(block, row, error, self)
