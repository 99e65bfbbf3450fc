"""One iterator for all processes: one reads it, and leaves what comes after to whoever is free.

What is read is packed as it is: a sample with its random state where steps are to be applied to it,
the samples of a batch as one where they are only to be collated. The parent passes both on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from minato_async.engine.recipe import Streams
from minato_async.errors import name_read
from minato_async.executors.process.sharded_epoch import FinishBatch
from minato_async.executors.process.transport.packing import Packed
from minato_async.executors.process.worker_main import WorkerContext
from minato_async.shards.epoch import ShardBatch, ShardPass, ShardRecipe
from minato_async.shards.jobs import Guard, ReadingEpoch, ReadJob, initialise
from minato_async.shards.reader import Reader


class RawSample(NamedTuple):
    """What an iterator has yielded, on its way to the steps."""

    packed: Packed
    #: Its random state; None: it has drawn nothing.
    stream: Any
    #: Modes in which the iterator was left: on threads, the steps run in them too.
    grad: bool
    inference: bool


class StepsReader(Reader):
    """Applies the steps to raw samples that were read before, from ordinal `first` on. What is not
    raw is finished."""

    def __init__(
        self, samples: Iterable[Any], first: int, recipe: ShardRecipe, worker_context: WorkerContext
    ) -> None:
        super().__init__(iter(samples), recipe.batch_size, False, recipe.transforms)
        self.ordinal, self._named = first - 1, first
        self._worker_context = worker_context

    def _take(self, sample: Any, streams: Streams) -> Any:
        if not isinstance(sample, RawSample):
            return sample
        streams.attach(sample.stream)
        value = sample.packed.copy(self._worker_context.memory)
        with torch.inference_mode(sample.inference):
            torch.set_grad_enabled(sample.grad)
            return super()._take(value, streams)


class RawReader(Reader):
    """Reads samples that the steps are yet to be applied to. From the first that cannot be pickled
    on, it applies them itself."""

    def __init__(
        self, iterator: Iterator[Any], recipe: ShardRecipe, worker_context: WorkerContext
    ) -> None:
        super().__init__(iterator, recipe.batch_size, recipe.drop_last, recipe.transforms)
        self._recipe = recipe
        self._worker_context = worker_context
        self._travel = True
        self._taken: list[Any] = []

    def read(self, streams: Streams, stop: Callable[[], bool] = lambda: False) -> list[Any]:
        first, self._taken = self.ordinal + 1, []
        samples: list[Any] = []
        failure: BaseException | None = None
        try:
            samples = super().read(streams, stop)
        except BaseException as error:
            failure = error
        if not samples:
            self._finish_lost(first, streams)
        if failure is not None:
            raise failure
        return samples

    def _take(self, sample: Any, streams: Streams) -> Any:
        if self._travel and self._recipe.transforms:
            stream = streams.detach()
            try:
                packed = self._worker_context.pack(sample)
            except BaseException:
                self._travel = False
                streams.attach(stream)
            else:
                modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
                sample = RawSample(packed, stream, *modes)
                self._taken.append(sample)
                return sample
        return super()._take(sample, streams)

    def _finish_lost(self, first: int, streams: Streams) -> None:
        """The samples taken will not be delivered. If one of them fails, that came first."""
        steps = StepsReader(self._taken, first, self._recipe, self._worker_context)
        try:
            steps.read(streams)
        except BaseException:
            self._named, self.step = steps._named, steps.step
            raise
        finally:
            release(self._taken, self._worker_context)


class ReadRawJob(ReadJob):
    """As `ReadJob`, but for what can be done elsewhere."""

    def __init__(
        self,
        source: ShardPass,
        epoch: ReadingEpoch,
        recipe: ShardRecipe,
        sync: Guard,
        worker_context: WorkerContext,
    ) -> None:
        super().__init__(source, epoch, recipe, sync)
        self._worker_context = worker_context
        #: Of the batch that was read, if others are to finish it: what was packed, and for each
        #: sample what goes with it.
        self.packed: list[Packed] = []
        self.states: list[Any] = []

    def _reader(self, iterator: Iterator[Any]) -> Reader:
        return RawReader(iterator, self._recipe, self._worker_context)

    def _collate(
        self, batch: ShardBatch, streams: Streams, worker: str
    ) -> tuple[Any, BaseException | None]:
        samples = batch.samples
        if not self._recipe.transforms:
            try:
                self.packed = [self._worker_context.pack(samples)]
            except BaseException:
                return super()._collate(batch, streams, worker)
            return None, None
        if all(isinstance(sample, RawSample) for sample in samples):
            self.packed = [sample.packed for sample in samples]
            self.states = [sample[1:] for sample in samples]
            return None, None
        shard = batch.source.shard.number
        streams.begin(lambda ordinal: self._recipe.seed(shard, ordinal))
        steps = StepsReader(samples, batch.indices[0], self._recipe, self._worker_context)
        try:
            batch.samples = steps.read(streams)
        except BaseException as error:
            step = self._recipe.step_name(steps.step)
            return None, name_read(error, f"shard {shard}, {steps.sample}", step, worker)
        else:
            return super()._collate(batch, streams, worker)
        finally:
            release(samples, self._worker_context)


class FinishJob(ReadJob):
    """As `ReadJob`, for what another process has read."""

    def __init__(
        self,
        request: FinishBatch,
        source: ShardPass,
        epoch: ReadingEpoch,
        recipe: ShardRecipe,
        sync: Guard,
        worker_context: WorkerContext,
    ) -> None:
        super().__init__(source, epoch, recipe, sync)
        self._request = request
        self._worker_context = worker_context

    def _open(self, streams: Streams) -> Reader:
        initialise(self._source.shard, self._recipe, streams)
        return StepsReader(self._given(), self._request.first, self._recipe, self._worker_context)

    def _given(self) -> Iterator[Any]:
        request = self._request
        if request.states:
            packed = zip(request.packed, request.states, strict=True)
            return (RawSample(sample, *state) for sample, state in packed)
        return self._unpacked(request.packed[0])

    def _unpacked(self, samples: Packed) -> Iterator[Any]:
        # When they are asked for: it may raise.
        yield from samples.copy(self._worker_context.memory)


def release(samples: Sequence[Any], worker_context: WorkerContext) -> None:
    """The parent is not told of these."""
    for sample in samples:
        if isinstance(sample, RawSample):
            for block in sample.packed.blocks:
                worker_context.own.release(block)
