"""What a worker does with a claim: run its tickets, settle the outcomes, collate full batches."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from minato_async.checkpoint import SampleCancelled
from minato_async.engine.batches import Batch
from minato_async.engine.epoch import Epoch, Order
from minato_async.engine.feed import Claim
from minato_async.engine.loading import Sync
from minato_async.engine.recipe import Recipe, RowWriter
from minato_async.errors import name_batch, name_sample
from minato_async.executors.base import Job, Worker


class MapEpoch(Epoch):
    """The epoch of a map-style dataset, with the recipe for its samples and batches."""

    def __init__(self, recipe: Recipe, order: Order, window: int | None, sync: Sync) -> None:
        super().__init__(order, window, sync.due)
        self._recipe = recipe
        self._sync = sync

    def next_job(self) -> Job | None:
        claim = self.claim()
        return None if claim is None else ClaimJob(claim, self, self._recipe, self._sync)


class ClaimJob:
    """One claim of one epoch, to be run by the worker that took it."""

    __slots__ = ("_claim", "_due", "_epoch", "_lock", "_recipe")

    def __init__(self, claim: Claim, epoch: Epoch, recipe: Recipe, sync: Sync) -> None:
        self._claim = claim
        self._epoch = epoch
        self._recipe = recipe
        self._lock = sync.lock
        self._due = sync.due

    def run(self, worker: Worker) -> None:
        claim, epoch = self._claim, self._epoch
        for batch in claim.completed:
            self._collate(batch, worker)
        row = claim.start
        while row < claim.stop and not epoch.abandoned:
            began = perf_counter()
            samples, failure = self._fetch(row, worker)
            completed = self._settle(row, samples, perf_counter() - began)
            row += len(samples)
            if failure is not None:
                with self._lock:
                    completed += epoch.fail(claim.block, row, failure)
                self._due.ring()
                row += 1
            # While batches are collated, nothing here keeps what already has its place.
            del samples, failure
            for batch in completed:
                self._collate(batch, worker)

    def _fetch(self, row: int, worker: Worker) -> tuple[list[Any], BaseException | None]:
        """The samples of the tickets from `row` on, up to the end of the claim or to the first
        that fails, and its failure. This loop is what a trivial sample costs."""
        fetch, stop = self._recipe.fetch, self._claim.stop
        samples: list[Any] = []
        append = samples.append
        try:
            for index in self._claim.block.indices[row:stop]:
                append(fetch(index))
        except BaseException as error:
            if isinstance(error, SampleCancelled) and self._epoch.abandoned:
                raise
            return samples, name_sample(error, index, self._recipe.step, worker.name)
        return samples, None

    def _settle(self, row: int, samples: list[Any], seconds: float) -> list[Batch]:
        """Give the samples from `row` on their places; returns the batches that they complete."""
        block, writer = self._claim.block, self._recipe.row_writer
        if len(samples) == 1 and writer is not None and writer.pays(samples[0]):
            return self._write(row, samples[0], seconds, writer)
        with self._lock:
            completed = self._epoch.settle(block, row, samples, seconds)
        self._due.ring()
        return completed

    def _write(self, row: int, sample: Any, seconds: float, writer: RowWriter) -> list[Batch]:
        """Write one sample straight into its row of the batch. Samples cheap enough to be claimed
        by the batch do not come here: their batch is one worker's work either way."""
        block = self._claim.block
        with self._lock:
            placed = self._epoch.place(block, row, seconds)
            if placed is None:
                return []
            batch, place = placed
            if batch.rows is None:
                batch.rows = writer.rows(batch.size)
            rows = batch.rows
        written = rows.write(place, sample)
        with self._lock:
            completed = self._epoch.fill(block, batch, place, written)
        self._due.ring()
        return completed

    def _collate(self, batch: Batch, worker: Worker) -> None:
        content: Any = None
        failure: BaseException | None = None
        try:
            if batch.rows is None:
                content = self._recipe.collate(batch.samples)
            else:
                content = batch.rows.collate(batch.samples)
        except BaseException as error:
            failure = name_batch(error, batch.indices, batch.samples, worker.name)
        with self._lock:
            self._epoch.collated(batch, content, failure)
        self._due.ring()
