"""The epoch of a map-style dataset whose steps run on threads."""

from __future__ import annotations

from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block, Claim
from minato_async.engine.lanes import Sample
from minato_async.engine.map_epoch import MapEpoch
from minato_async.engine.protocols import Job
from minato_async.errors import Unmade
from minato_async.executors.thread.jobs import ThreadClaimJob, ThreadFailedJob, ThreadSlowJob


class ThreadMapEpoch(MapEpoch):
    """As `MapEpoch`, with jobs that a thread runs itself."""

    def _left_over_job(self) -> Job:
        claim = self._take_left_over()
        assert claim is not None
        return ThreadClaimJob(claim, self)

    def _collate_job(self, batch: Batch) -> Job:
        return ThreadClaimJob(Claim(Block(0, (), 1), 0, 0, (batch,)), self)

    def _claim_job(self, claim: Claim) -> Job:
        return ThreadClaimJob(claim, self)

    def _slow_job(self, sample: Sample) -> Job:
        return ThreadSlowJob(sample, self)

    def _failed_job(self, block: Block, row: int, error: Unmade) -> Job:
        return ThreadFailedJob(block, row, error, self)
