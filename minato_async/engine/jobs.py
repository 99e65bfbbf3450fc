"""What a worker does with a claim: run its tickets, settle the outcomes, collate full batches."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from minato_async.checkpoint import SampleCancelled
from minato_async.engine.batches import Batch
from minato_async.engine.epoch import Epoch, Order
from minato_async.engine.feed import Block, Claim
from minato_async.engine.loading import Sync
from minato_async.engine.recipe import BoundRecipe, Recipe, RowWriter
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

    __slots__ = ("_block", "_claim", "_due", "_epoch", "_lock", "_recipe", "_row", "_samples")

    def __init__(self, claim: Claim, epoch: Epoch, recipe: Recipe, sync: Sync) -> None:
        self._claim = claim
        self._block = claim.block
        self._epoch = epoch
        self._recipe = recipe
        self._lock = sync.lock
        self._due = sync.due
        self._row = claim.start
        self._samples: list[Any] = []

    def describe(self) -> str:
        row = self._row + len(self._samples)
        if row >= self._claim.stop:
            return "collating a batch"
        return f"sample index {self._block.indices[row]!r}"

    def run(self, worker: Worker) -> None:
        bound = self._recipe.bind(worker)
        bound.context.run(self._run, bound, worker.name)

    def _run(self, bound: BoundRecipe, worker: str) -> None:
        claim, epoch, block = self._claim, self._epoch, self._block
        for batch in claim.completed:
            self._collate(batch, bound, worker)
        while self._row < claim.stop and not epoch.abandoned:
            began = perf_counter()
            failure = self._fetch(bound, worker)
            completed = self._settle(perf_counter() - began)
            if failure is not None:
                with self._lock:
                    completed += epoch.fail(block, self._row, failure)
                self._due.ring()
                self._row += 1
                # Its traceback refers to this frame.
                del failure
            for batch in completed:
                self._collate(batch, bound, worker)

    def _fetch(self, bound: BoundRecipe, worker: str) -> BaseException | None:
        """Run the tickets that are left, up to the first that fails; returns its failure. This
        loop is what a trivial sample costs."""
        fetch, streams, append = bound.fetch, bound.streams, self._samples.append
        streams.begin(self._seed)
        first = row = self._row
        try:
            for row, index in enumerate(self._block.indices[first : self._claim.stop], first):
                streams.ticket = row
                append(fetch(index))
        except BaseException as error:
            if isinstance(error, SampleCancelled) and self._epoch.abandoned:
                raise
            return name_sample(error, self._block.indices[row], self._recipe.step, worker)
        return None

    def _seed(self, row: int) -> int:
        block = self._block
        repeat = block.repeats[row] if block.repeats else 0
        return self._recipe.seed(block.indices[row], repeat, block.first + row)

    def _settle(self, seconds: float) -> list[Batch]:
        """Give the samples just run their places; returns the batches that they complete."""
        block, row, samples = self._block, self._row, self._samples
        self._row, self._samples = row + len(samples), []
        writer = self._recipe.row_writer
        if len(samples) == 1 and writer is not None and writer.pays(samples[0]):
            return self._write(block, row, samples[0], seconds, writer)
        with self._lock:
            completed = self._epoch.settle(block, row, samples, seconds)
        self._due.ring()
        return completed

    def _write(
        self, block: Block, row: int, sample: Any, seconds: float, writer: RowWriter
    ) -> list[Batch]:
        """Write one sample straight into its row of the batch. Samples cheap enough to be claimed
        by the batch do not come here: their batch is one worker's work either way."""
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

    def _collate(self, batch: Batch, bound: BoundRecipe, worker: str) -> None:
        content: Any = None
        failure: BaseException | None = None
        bound.streams.begin(lambda _: self._recipe.seed(tuple(batch.indices), 0, 0))
        bound.streams.ticket = batch
        try:
            collate = bound.collate if batch.rows is None else batch.rows.collate
            content = bound.finish(collate(batch.samples))
        except BaseException as error:
            if isinstance(error, SampleCancelled) and self._epoch.abandoned:
                raise
            failure = name_batch(error, batch.indices, batch.samples, worker)
        # Here and not under the lock: freeing takes time, and a finalizer is user code.
        batch.samples, batch.rows = [None] * batch.size, None
        with self._lock:
            self._epoch.collated(batch, content, failure)
        self._due.ring()
