"""One iterator for all processes: one reads it, and leaves what comes after to whoever is free.

What is read is packed as it is: a sample with its random state where steps are to be applied to it,
the samples of a batch as one where they are only to be collated. The parent passes both on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from minato_async.checkpoint import SampleCancelled
from minato_async.engine.orders import Collated
from minato_async.engine.reader import Reader
from minato_async.engine.recipe import Streams
from minato_async.engine.remote_shards import FinishBatch
from minato_async.engine.shard_jobs import Guard, ReadingEpoch, ReadJob, initialise
from minato_async.engine.shards import Shard, ShardBatch, ShardPass, ShardRecipe
from minato_async.errors import name_batch, name_read
from minato_async.process_worker import Desk
from minato_async.transport.failures import pack_error
from minato_async.transport.packing import Packed
from minato_async.worker_info import shown
from minato_async.workers import current_state


class RawSample(NamedTuple):
    """What an iterator has yielded, on its way to the steps."""

    packed: Packed
    #: Its random state; None: it has drawn nothing.
    stream: Any
    #: Modes in which the iterator was left: on threads, the steps run in them too.
    grad: bool
    inference: bool


class Steps:
    """Applies the steps to raw samples, one after the other."""

    def __init__(self, recipe: ShardRecipe, desk: Desk, streams: Streams) -> None:
        self._recipe = recipe
        self._desk = desk
        self._streams = streams
        #: The sample that it is at, and what that is in.
        self.ordinal = self.step = 0

    def run(self, first: int, samples: Sequence[Any]) -> list[Any]:
        """What becomes of the samples from ordinal `first` on; those that are not raw are
        finished. Raises what a step raises."""
        made = []
        for self.ordinal, sample in enumerate(samples, first):
            self.step = 0
            self._streams.ticket = self.ordinal
            made.append(self._made_of(sample) if isinstance(sample, RawSample) else sample)
        return made

    def _made_of(self, raw: RawSample) -> Any:
        self._streams.attach(raw.stream)
        value = raw.packed.copy(self._desk.memory)
        with torch.inference_mode(raw.inference):
            torch.set_grad_enabled(raw.grad)
            for transform in self._recipe.transforms:
                self.step += 1
                value = transform(value)
        return value


class RawReader(Reader):
    """Reads samples that the steps are yet to be applied to. From the first that cannot be pickled
    on, it applies them itself."""

    def __init__(
        self, iterator: Iterator[Any], recipe: ShardRecipe, desk: Desk, streams: Streams
    ) -> None:
        super().__init__(iterator, recipe.batch_size, recipe.drop_last, recipe.transforms)
        self._recipe = recipe
        self._desk = desk
        self._steps = Steps(recipe, desk, streams)
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
            self._finish_lost(first)
        if failure is not None:
            raise failure
        return samples

    def _take(self, sample: Any, streams: Streams) -> Any:
        if self._travel and self._recipe.transforms:
            stream = streams.detach()
            try:
                packed = self._desk.pack(sample)
            except BaseException:
                self._travel = False
                streams.attach(stream)
            else:
                modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
                sample = RawSample(packed, stream, *modes)
                self._taken.append(sample)
                return sample
        return super()._take(sample, streams)

    def _finish_lost(self, first: int) -> None:
        """The samples taken will not be delivered. If one of them fails, that came first."""
        try:
            self._steps.run(first, self._taken)
        except BaseException:
            self._named, self.step = self._steps.ordinal, self._steps.step
            raise
        finally:
            release(self._taken, self._desk)


class ReadRawJob(ReadJob):
    """As `ReadJob`, but for what can be done elsewhere."""

    def __init__(
        self, source: ShardPass, epoch: ReadingEpoch, recipe: ShardRecipe, sync: Guard, desk: Desk
    ) -> None:
        super().__init__(source, epoch, recipe, sync)
        self._desk = desk
        #: Of the batch that was read, if others are to finish it: what was packed, and for each
        #: sample what goes with it.
        self.packed: list[Packed] = []
        self.states: list[Any] = []

    def _reader(self, iterator: Iterator[Any]) -> Reader:
        return RawReader(iterator, self._recipe, self._desk, current_state().streams)

    def _collate(
        self, batch: ShardBatch, streams: Streams, worker: str
    ) -> tuple[Any, BaseException | None]:
        samples = batch.samples
        if not self._recipe.transforms:
            try:
                self.packed = [self._desk.pack(samples)]
            except BaseException:
                return super()._collate(batch, streams, worker)
            return None, None
        if all(isinstance(sample, RawSample) for sample in samples):
            self.packed = [sample.packed for sample in samples]
            self.states = [sample[1:] for sample in samples]
            return None, None
        shard, first = batch.source.shard.number, batch.indices[0]
        streams.begin(lambda ordinal: self._recipe.seed(shard, ordinal))
        steps = Steps(self._recipe, self._desk, streams)
        try:
            batch.samples = steps.run(first, samples)
        except BaseException as error:
            return None, steps_failed(error, shard, steps, self._recipe, self._desk)
        else:
            return super()._collate(batch, streams, worker)
        finally:
            release(samples, self._desk)


class Finishing:
    """Applies the steps to what another process has read, and collates it."""

    def __init__(self, order: FinishBatch, shard: Shard, recipe: ShardRecipe, desk: Desk) -> None:
        self._order = order
        self._shard = shard
        self._recipe = recipe
        self._desk = desk
        self._streams = current_state().streams
        self._steps = Steps(recipe, desk, self._streams)
        #: None: they are not made yet.
        self._samples: list[Any] | None = None

    def run(self) -> Collated:
        recipe = self._recipe
        torch.set_grad_enabled(recipe.grad)
        recipe.autocast.apply()
        with shown(self._shard.info):
            try:
                return Collated(recipe.context.copy().run(self._batch), None)
            except BaseException as error:
                if isinstance(error, SampleCancelled) and self._desk.abandoned:
                    raise
                return Collated(None, pack_error(self._named(error)))

    def _batch(self) -> Any:
        order, streams, number = self._order, self._streams, self._shard.number
        streams.begin(lambda ordinal: self._recipe.seed(number, ordinal))
        initialise(self._shard, self._recipe, streams)
        if order.states:
            packed = zip(order.packed, order.states, strict=True)
            samples = self._steps.run(order.first, [RawSample(p, *state) for p, state in packed])
        else:
            samples = order.packed[0].copy(self._desk.memory)
        self._samples = samples
        streams.begin(lambda _: self._recipe.seed(number, self._ordinals))
        streams.ticket = samples
        return self._recipe.collate(samples)

    @property
    def _ordinals(self) -> tuple[int, ...]:
        first, samples = self._order.first, self._samples or ()
        return tuple(range(first, first + len(samples)))

    def _named(self, error: BaseException) -> BaseException:
        name, where = self._desk.name, f"shard {self._shard.number}"
        if not self._shard.initialised:
            return name_read(error, f"{where}, before its first sample", "worker_init_fn", name)
        if self._samples is None:
            return steps_failed(error, self._shard.number, self._steps, self._recipe, self._desk)
        return name_batch(error, self._ordinals, self._samples, f"{name}, {where}")


def steps_failed(
    error: BaseException, shard: int, steps: Steps, recipe: ShardRecipe, desk: Desk
) -> BaseException:
    where = f"shard {shard}, sample {steps.ordinal}"
    return name_read(error, where, recipe.step_name(steps.step), desk.name)


def release(samples: Sequence[Any], desk: Desk) -> None:
    """The parent is not told of these."""
    for sample in samples:
        if isinstance(sample, RawSample):
            for block in sample.packed.blocks:
                desk.own.release(block)
