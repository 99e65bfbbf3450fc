"""What a worker does with a claim: run its tickets, settle the outcomes, collate full batches."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any

from minato_async.checkpoint import SampleCancelled
from minato_async.engine.batches import Batch
from minato_async.engine.epoch import Epoch, Failure
from minato_async.engine.feed import Claim
from minato_async.engine.recipe import Recipe
from minato_async.errors import name_batch, name_sample
from minato_async.executors.base import Worker


class ClaimJob:
    """One claim of one epoch, to be run by the worker that took it."""

    __slots__ = ("_claim", "_epoch", "_lock", "_recipe")

    def __init__(self, claim: Claim, epoch: Epoch, recipe: Recipe, lock: threading.Lock) -> None:
        self._claim = claim
        self._epoch = epoch
        self._recipe = recipe
        self._lock = lock

    def run(self, worker: Worker) -> None:
        claim, epoch = self._claim, self._epoch
        for batch in claim.completed:
            self._collate(batch, worker)
        began = perf_counter()
        if claim.size == 1:
            tickets, completed = 1, self._run_one(worker)
        else:
            tickets = self._run_many(worker)
            completed = []
        seconds = perf_counter() - began
        with self._lock:
            epoch.close_claim(claim, tickets, seconds)
            completed += epoch.settle(claim)
        for batch in completed:
            self._collate(batch, worker)

    def _run_many(self, worker: Worker) -> int:
        """Run ticket after ticket; this loop is what a trivial sample costs."""
        claim = self._claim
        fetch, indices = self._recipe.fetch, claim.block.indices
        take, put = claim.rows.popleft, claim.outcomes.append
        tickets = 0
        while not self._epoch.abandoned:
            try:
                row = take()
            except IndexError:  # done, or an idle worker took the rest
                break
            tickets += 1
            try:
                put((row, fetch(indices[row])))
            except BaseException as error:
                put((row, self._failure(error, row, worker)))
        return tickets

    def _run_one(self, worker: Worker) -> list[Batch]:
        """Run a single ticket, whose sample is worth some care: if it is large, it goes straight
        into its row, so that the copying is shared out among the workers."""
        claim, recipe = self._claim, self._recipe
        row = claim.rows.popleft()
        try:
            sample = recipe.fetch(claim.block.indices[row])
            writer = recipe.row_writer
            pays = writer is not None and writer.pays(sample)
        except BaseException as error:
            claim.outcomes.append((row, self._failure(error, row, worker)))
            return []
        if not pays:
            claim.outcomes.append((row, sample))
            return []
        assert writer is not None
        with self._lock:
            placed = self._epoch.place(claim.block, row)
            if placed is None:
                return []
            batch, place = placed
            if batch.rows is None:
                batch.rows = writer.rows(batch.size)
            rows = batch.rows
        sample = rows.write(place, sample)
        with self._lock:
            return self._epoch.fill(claim.block, batch, place, sample)

    def _failure(self, error: BaseException, row: int, worker: Worker) -> Failure:
        if isinstance(error, SampleCancelled) and self._epoch.abandoned:
            raise error
        index = self._claim.block.indices[row]
        return Failure(name_sample(error, index, self._recipe.step, worker.name))

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
