"""What a worker does with a shard: read one batch off its iterator, leave it, collate."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from minato_async.checkpoint import SampleCancelled
from minato_async.engine.bell import DueBells
from minato_async.engine.protocols import Job, Worker
from minato_async.engine.recipe import Streams
from minato_async.engine.unwatched_job import UnwatchedJob
from minato_async.errors import name_batch, name_read
from minato_async.process_wide import entered
from minato_async.sample.worker_info import shown
from minato_async.sample.worker_setup import current_state
from minato_async.shards.epoch import Shard, ShardBatch, ShardedEpoch, ShardPass, ShardRecipe
from minato_async.shards.position import Mark, opened, snapshot_of
from minato_async.shards.reader import Reader


class IterableEpoch(ShardedEpoch):
    """The epoch of an iterable dataset, with the recipe for its batches."""

    def next_job(self, worker: Worker) -> Job | None:
        source = self.claim() if self.sync.slots.free else None
        return None if source is None else ReadJob(source, self, source.recipe, self.sync)

    def worker_ended(self, worker: Worker, how: str) -> None:
        """No shard is its own."""

    def abandon(self) -> Sequence[Job]:
        return [ReleaseShard(source, self, self.sync) for source in self.forget()]


class ReadingEpoch(Protocol):
    """What reading a batch has to know of the epoch: `ShardedEpoch`, under its engine's lock."""

    @property
    def abandoned(self) -> bool: ...

    def read(self, source: ShardPass, batch: ShardBatch | None, ended: bool) -> None: ...

    def collated(self, batch: ShardBatch, content: Any, failure: BaseException | None) -> None: ...

    def leave(self, shard: Shard) -> None: ...


class Guard(Protocol):
    """What the epoch is guarded by, see `Sync`."""

    @property
    def lock(self) -> threading.RLock: ...

    @property
    def due(self) -> DueBells: ...


class ReadJob(UnwatchedJob):
    """The next batch of one shard, by the worker that occupies the shard to read it."""

    __slots__ = ("_collating", "_epoch", "_recipe", "_source", "_sync")

    def __init__(
        self, source: ShardPass, epoch: ReadingEpoch, recipe: ShardRecipe, sync: Guard
    ) -> None:
        self._source = source
        self._epoch = epoch
        self._recipe = recipe
        self._sync = sync
        self._collating = False

    def describe(self) -> str:
        number, reader = self._source.shard.number, self._source.reader
        if self._collating:
            return f"collating a batch of shard {number}"
        return f"opening shard {number}" if reader is None else f"shard {number}, {reader.sample}"

    def run(self, worker: Worker) -> None:
        source, epoch = self._source, self._epoch
        streams = current_state().streams
        outcome: tuple[Any, BaseException | None] | None = None
        try:
            with _inside(source):
                batch = source.context.run(self._read, streams, worker.name)
            # Asked now: once the batch is handed over, its failure is the consumer's to take.
            collates = batch is not None and batch.failure is None
            if batch is not None and collates and self._recipe.collates_inside:
                outcome = self._collated(batch, streams, worker.name)
        except SampleCancelled:
            _release(source, epoch, self._sync)
            raise
        ended = source.reader is None or source.reader.ended
        if ended:
            close_shard(source)
        with self._sync.lock:
            late = epoch.abandoned
            if not late:
                epoch.read(source, batch, ended)
        self._sync.due.ring()
        if late:
            _release(source, epoch, self._sync)
        elif collates:
            assert batch is not None
            if outcome is None:
                outcome = self._collated(batch, streams, worker.name)
            # Here and not under the lock: freeing takes time, and a finalizer is user code.
            batch.samples = []
            with self._sync.lock:
                epoch.collated(batch, *outcome)
            # A failure's traceback leads to this frame.
            del outcome
            self._sync.due.ring()

    def _read(self, streams: Streams, worker: str) -> ShardBatch | None:
        source, seed, shard = self._source, self._recipe.seed, self._source.shard
        try:
            streams.begin(lambda ordinal: seed(shard.number, ordinal))
            if source.reader is None:
                source.reader = self._open(streams)
            first = source.reader.ordinal + 1
            samples = source.reader.read(streams, lambda: self._epoch.abandoned)
            mark = self._mark(source.reader)
        except BaseException as error:
            if isinstance(error, SampleCancelled) and self._epoch.abandoned:
                raise
            return self._failed(error, worker)
        if not samples:
            return None
        batch = ShardBatch(source, first, samples)
        batch.mark = mark
        return batch

    def _open(self, streams: Streams) -> Reader:
        shard, start = self._source.shard, self._source.start
        initialise(shard, self._recipe, streams)
        streams.ticket = -1
        snapshot = self._source.snapshot
        reader = self._reader(opened(shard.dataset, snapshot))
        if start is not None:
            at = 0 if snapshot is None else snapshot.ordinal
            reader.go_to(start.mark.ordinal, at, streams, lambda: self._epoch.abandoned)
        return reader

    def _mark(self, reader: Reader) -> Mark:
        """Where the shard is, after a batch was read; with a new snapshot if it is time for one."""
        source, ordinal = self._source, reader.ordinal + 1
        source.snapshot_age += 1
        if source.snapshot_age >= self._recipe.snapshot_every:
            made = snapshot_of(source.shard.dataset, reader.iterator, ordinal)
            source.snapshot, source.snapshot_age = made, 0
        return Mark(ordinal, reader.ended, source.snapshot)

    def _reader(self, iterator: Iterator[Any]) -> Reader:
        recipe = self._recipe
        return Reader(iterator, recipe.batch_size, recipe.drop_last, recipe.transforms)

    def _failed(self, error: BaseException, worker: str) -> ShardBatch:
        shard, reader = self._source.shard, self._source.reader
        if reader is not None:
            where, step = reader.sample, self._recipe.step_name(reader.step)
        else:
            where = "before its first sample"
            step = self._recipe.step if shard.initialised else "worker_init_fn"
        batch = ShardBatch(self._source, 0, [])
        if reader is not None:
            batch.mark = Mark(reader.ordinal + 1, reader.ended, self._source.snapshot)
        batch.failure = name_read(error, f"shard {shard.number}, {where}", step, worker)
        return batch

    def _collated(
        self, batch: ShardBatch, streams: Streams, worker: str
    ) -> tuple[Any, BaseException | None]:
        """What is delivered of `batch`, or the failure to make it."""
        self._collating = True
        torch.set_grad_enabled(self._recipe.grad)
        self._recipe.autocast.apply()
        with shown(self._source.shard.info):
            # A context of its own: other workers may read on in that of the shard.
            return self._recipe.context.copy().run(self._collate, batch, streams, worker)

    def _collate(
        self, batch: ShardBatch, streams: Streams, worker: str
    ) -> tuple[Any, BaseException | None]:
        shard = batch.source.shard.number
        streams.begin(lambda _: self._recipe.seed(shard, tuple(batch.indices)))
        streams.ticket = batch
        try:
            return self._recipe.collate(batch.samples), None
        except BaseException as error:
            if isinstance(error, SampleCancelled) and self._epoch.abandoned:
                raise
            where = f"{worker}, shard {shard}"
            return None, name_batch(error, batch.indices, batch.samples, where)


def initialise(shard: Shard, recipe: ShardRecipe, streams: Streams) -> None:
    """Run `worker_init_fn`, unless it has run."""
    if not shard.initialised:
        if recipe.worker_init_fn is not None:
            streams.ticket = "worker_init_fn"
            recipe.worker_init_fn(shard.number)
        shard.initialised = True


class ReleaseShard(UnwatchedJob):
    """Lets go of an iterator that an abandoned epoch leaves open."""

    __slots__ = ("_epoch", "_source", "_sync")

    def __init__(self, source: ShardPass, epoch: ReadingEpoch, sync: Guard) -> None:
        self._source = source
        self._epoch = epoch
        self._sync = sync

    def describe(self) -> str:
        return f"closing shard {self._source.shard.number}"

    def run(self, worker: Worker) -> None:
        _release(self._source, self._epoch, self._sync)


def _release(source: ShardPass, epoch: ReadingEpoch, sync: Guard) -> None:
    """Leave a shard of an abandoned epoch, when its iterator has been let go of."""
    close_shard(source)
    with sync.lock:
        epoch.leave(source.shard)
    sync.due.ring()


def close_shard(source: ShardPass) -> None:
    """Let go of its iterator, if it has one."""
    reader, source.reader = source.reader, None
    if reader is not None:
        with _inside(source):
            source.context.run(reader.release)


@contextlib.contextmanager
def _inside(source: ShardPass) -> Iterator[None]:
    """Within this, the calling thread is that of the shard's code, as far as it can tell."""
    # Leaving `inference_mode` also puts the thread's own modes back, whatever was entered within.
    inference = torch.inference_mode(source.inference)
    with inference, shown(source.shard.info), entered(source.shard.own):
        torch.set_grad_enabled(source.grad)
        source.autocast.apply()
        try:
            yield
        finally:
            source.inference = torch.is_inference_mode_enabled()
            source.grad = torch.is_grad_enabled()
