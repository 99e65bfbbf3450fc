"""Iterable datasets: how a loader reads them, in its workers or in the consumer's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from minato_async.engine.batch import Batch
from minato_async.engine.loading import Loading
from minato_async.engine.recipe import Streams
from minato_async.errors import name_batch, name_read
from minato_async.executors.factory import for_shards, shares_objects
from minato_async.executors.process.worker_shards import ShardPlan
from minato_async.iteration.iterators import (
    EngineIterator,
    SerialIterator,
    code_of,
    epoch_number,
    owner,
    resumes,
)
from minato_async.iteration.order import choose_order
from minato_async.iteration.stage_work import finish_here, finishing
from minato_async.options import check_options
from minato_async.replicas.loader_method import collate_fn_for_workers
from minato_async.replicas.replica import Replica
from minato_async.resuming.random_states import as_noted, note, process_wide
from minato_async.sample.autocast import Autocast
from minato_async.sample.worker_info import make_worker_info
from minato_async.seeding.epoch_seeds import EpochSeeds, ThreadRng, thread_streams
from minato_async.shards.datapipes import seed_pipe, settings_for
from minato_async.shards.epoch import (
    Shard,
    ShardBatch,
    ShardedEpoch,
    ShardEpochPlan,
    ShardRecipe,
)
from minato_async.shards.position import (
    Mark,
    ShardsReceived,
    Start,
    opened,
    snapshot_of,
    starts_of,
)
from minato_async.shards.reader import Reader
from minato_async.user_warnings import warn_user


class ShardedIterator(EngineIterator):
    """Over an iterable dataset, through workers that advance its shards.

    With `iterable_mode="shared"` there is one shard of one: one iterator, which sees no other
    workers to share the data with.
    """

    _epoch: Loading
    _shards: list[Shard]
    #: With which data pipes shuffle.
    _pipe_seed: int | None = None

    #: The shards are read in other processes, each of which makes its own.
    _elsewhere = False

    def _start_epoch(self, loader: DataLoader[Any], first: bool) -> None:
        if first:
            self._open(loader)
        else:
            for replica in self._replicas:
                replica.refresh()
            if self._pipes is not None:
                self._pipe_seed = self._new_pipe_seed(loader)
                if not self._elsewhere:
                    for shard in self._shards:
                        seed_pipe(shard.dataset, self._pipe_seed)
        number = epoch_number(loader)
        seeds = self._make_seeds(loader, number)
        starts = loaded_starts(loader)
        received = ShardsReceived(len(self._shards), self._pipe_seed, starts)
        for shard, at in zip(self._shards, starts or (), strict=False):
            shard.start = at
        self._length = ReportedLength(loader, received.batches)
        recipe = make_shard_recipe(loader, seeds)
        if first:
            self._open_engine(loader, recipe)
        ahead = self._options.batches_ahead
        keeps_order = choose_order(loader, check_options(loader).in_order).by_position
        ahead = None if ahead is None else ahead // len(self._shards)
        plan = ShardEpochPlan(self._shards, recipe, keeps_order, ahead, self._options.window)
        start = self._side.sharded_epoch(loader, plan, self._pipe_seed)
        work, bound = finishing(loader, self._side.receive, partial(_seed_of, recipe))
        self._finishing = work
        self._epoch = self._engine.begin(start, work, bound)
        self._shards_received = received
        self._begun(loader, number, received)

    def _open_engine(self, loader: DataLoader[Any], recipe: ShardRecipe) -> None:
        if self._elsewhere:
            # A shard's iterator cannot leave its process: so there are as many as there are shards.
            self._options = replace(
                self._options, scheduler="fixed", max_workers=self._options.num_workers
            )
        make_info = partial(_shard_info, len(self._shards), self._base_seed, self._options.isolated)
        pipes = None if self._pipes is None else self._pipes.sharding
        # What torch's own collating takes is no more than packing would.
        collates = loader.collate_fn not in (default_collate, default_convert)
        shares = self._options.iterable_mode == "shared" and self._options.num_workers > 1
        shares = shares and (collates or bool(recipe.transforms))
        plan = ShardPlan(loader.dataset, recipe, make_info, pipes, self._pipe_seed, shares)
        self._start_engine(for_shards(loader, plan, self._base_seed, self._options))

    def _open(self, loader: DataLoader[Any]) -> None:
        count = 1 if self._options.iterable_mode == "shared" else loader.num_workers
        self._pipes = settings_for(loader, count)
        self._elsewhere = not shares_objects(self._options)
        self._pipe_seed = None if self._pipes is None else self._new_pipe_seed(loader)
        self._sampler_iter = iter(self._index_sampler)
        self._draw_base_seed(loader)
        #: One for each shard. Not kept for later iterators, as those of map-style datasets are: an
        #: iterator may be at its end, and stay there.
        self._replicas: list[Replica] = []
        if self._elsewhere:
            datasets: list[Any] = [None] * count
        elif self._pipes is None:
            code = code_of(loader)
            self._replicas = [Replica(code, number) for number in range(count)]
            datasets = [replica.code.dataset for replica in self._replicas]
        else:
            assert self._pipe_seed is not None
            sharding, seed = self._pipes.sharding, self._pipe_seed
            datasets = [sharding.shard_of(loader.dataset, s, seed) for s in range(count)]
        make_info = partial(_shard_info, count, self._base_seed, self._options.isolated)
        self._shards = [
            Shard(s, dataset, make_info(s, dataset)) for s, dataset in enumerate(datasets)
        ]
        for shard, replica in zip(self._shards, self._replicas, strict=False):
            shard.own_recipe = partial(_own_recipe, replica, partial(_collation, loader.batch_size))
        if self._pipes is not None and not resumes(loader):
            # Torch draws a second one here, which nobody is told.
            self._pipes.draw_seed(loader)

    def _new_pipe_seed(self, loader: DataLoader[Any]) -> int:
        assert self._pipes is not None
        seed = loaded_pipe_seed(loader)
        return self._pipes.draw_seed(loader) if seed is None else seed

    def _received(self, batch: Batch) -> None:
        assert isinstance(batch, ShardBatch)
        self._shards_received.add(batch.source.shard.number, batch.mark)

    def _let_go(self) -> bool:
        assert isinstance(self._epoch, ShardedEpoch)
        if not self._epoch.abandoned:
            self._shards_received.end()
        return super()._let_go()

    def _receive(self, batch: Batch) -> Any:
        self._length.count()
        return super()._receive(batch)


class SerialIterableIterator(SerialIterator):
    """Reads an iterable dataset in the consumer's thread (`num_workers=0`)."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._pipes = settings_for(loader, 1)
        self._seed_pipe(loader)
        self._sampler_iter = iter(self._index_sampler)
        self._draw_base_seed(loader)
        if self._pipes is not None:
            self._pipes.sharding.shard(loader.dataset, 0)
        self._begin(loader, first=True)

    def _seed_pipe(self, loader: DataLoader[Any]) -> None:
        self._pipe_seed = None
        if self._pipes is not None:
            seed = loaded_pipe_seed(loader)
            self._pipe_seed = self._pipes.draw_seed(loader) if seed is None else seed
            seed_pipe(loader.dataset, self._pipe_seed)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self._seed_pipe(loader)
        super()._reset(loader, first_iter)

    def _begin(self, loader: DataLoader[Any], first: bool) -> None:
        number = epoch_number(loader)
        seeds = self._make_seeds(loader, number)
        starts = loaded_starts(loader)
        received = self._shards_received = ShardsReceived(1, self._pipe_seed, starts)
        self._length = ReportedLength(loader, received.batches)
        self._recipe = make_shard_recipe(loader, seeds)
        # The consumer's own random state is used, as with torch, unless a seed was given.
        self._isolated = type(check_options(loader).seed) is int
        with thread_streams(self._isolated) as streams:
            streams.begin(lambda ordinal: self._recipe.seed(0, ordinal))
            streams.ticket = -1
            self._open(loader.dataset, None if starts is None else starts[0].mark, streams)
        self._finish = finish_here(loader, self._isolated)
        self._begun(loader, number, received)

    def _open(self, dataset: Any, mark: Mark | None, streams: Streams) -> None:
        recipe, shared = self._recipe, process_wide()
        self._dataset = dataset
        self._snapshot = None if mark is None else mark.snapshot
        self._snapshot_age = 0
        iterator = opened(dataset, self._snapshot)
        self._reader = Reader(iterator, recipe.batch_size, recipe.drop_last, recipe.transforms)
        if mark is not None:
            at = 0 if self._snapshot is None else self._snapshot.ordinal
            # What is read again must not draw from the program's generators again.
            with as_noted(shared, note(shared)):
                self._reader.go_to(mark.ordinal, at, streams)

    def _mark(self, batch_read: bool) -> Mark:
        reader, ordinal = self._reader, self._reader.ordinal + 1
        self._snapshot_age += batch_read
        if self._snapshot_age >= self._recipe.snapshot_every:
            self._snapshot = snapshot_of(self._dataset, reader.iterator, ordinal)
            self._snapshot_age = 0
        return Mark(ordinal, reader.ended, self._snapshot)

    def _next(self) -> Any:
        try:
            with thread_streams(self._isolated) as streams:
                batch = self._load(streams)
        except StopIteration:
            self._shards_received.end()
            raise
        except Exception:
            self._shards_received.add(0, self._mark(batch_read=False))
            raise
        self._shards_received.add(0, self._mark(batch_read=True))
        self._length.count()
        return batch

    def _load(self, streams: Streams) -> Any:
        reader, recipe, where = self._reader, self._recipe, "the consumer's thread"
        first = reader.ordinal + 1
        streams.begin(lambda ordinal: recipe.seed(0, ordinal))
        try:
            samples = reader.read(streams)
        except Exception as error:
            named = name_read(error, reader.sample, recipe.step_name(reader.step), where)
            if named is error:
                raise
            raise named from error
        if not samples:
            raise StopIteration
        ordinals = range(first, first + len(samples))
        streams.begin(lambda _: recipe.seed(0, tuple(ordinals)))
        streams.ticket = samples
        try:
            seed = partial(_seed_on_device, recipe, 0, ordinals)
            return self._finish(recipe.collate(samples), seed)
        except Exception as error:
            named = name_batch(error, ordinals, samples, where)
            if named is error:
                raise
            raise named from error

    def close(self) -> None:
        super().close()
        self._reader.release()


def _shard_info(count: int, base_seed: int, isolated: bool, shard: int, dataset: Any) -> Any:
    """What `get_worker_info()` returns in `shard` of `count`."""
    # Whichever worker runs a shard, what is drawn belongs to the sample that is being read.
    rng = ThreadRng() if isolated else None
    return make_worker_info(shard, count, base_seed + shard, dataset, rng)


def _own_recipe(
    replica: Replica,
    collation: Callable[[Callable[[Any], Any]], Callable[[list[Any]], Any]],
    recipe: ShardRecipe,
) -> ShardRecipe:
    """`recipe` for the shard that has `replica`."""
    code = replica.code
    return replace(
        recipe,
        worker_init_fn=code.worker_init_fn,
        transforms=code.transforms,
        collate=collation(code.collate_fn),
        collates_inside=replica.has_own_collate_fn,
    )


def make_shard_recipe(loader: DataLoader[Any], seeds: EpochSeeds) -> ShardRecipe:
    """How `loader` reads its dataset in the epoch that the calling thread starts."""
    dataset: Any = loader.dataset
    return ShardRecipe(
        step=f"{type(getattr(dataset, '_datapipe', dataset)).__name__}.__iter__",
        batch_size=loader.batch_size,
        drop_last=bool(loader.drop_last),
        worker_init_fn=loader.worker_init_fn,
        collate=_collation(loader.batch_size, collate_fn_for_workers(loader)),
        seeds=seeds,
        context=copy_context(),
        grad=torch.is_grad_enabled(),
        autocast=Autocast.of_this_thread(),
        transforms=check_options(loader).transforms,
        snapshot_every=check_options(loader).snapshot_every,
    )


def _collation(
    batch_size: int | None, collate_fn: Callable[[Any], Any]
) -> Callable[[list[Any]], Any]:
    # Something that can be pickled: workers may be started afresh.
    return partial(_collate_one, collate_fn) if batch_size is None else collate_fn


def _collate_one(collate_fn: Callable[[Any], Any], samples: list[Any]) -> Any:
    return collate_fn(samples[0])


def loaded_starts(loader: DataLoader[Any]) -> list[Start] | None:
    """Where the epoch that was loaded goes on in each shard; None: it begins."""
    loaded = owner(loader)._loaded
    return starts_of(loaded["epoch"]) if loaded is not None and resumes(loader) else None


def loaded_pipe_seed(loader: DataLoader[Any]) -> int | None:
    loaded = owner(loader)._loaded
    return loaded["epoch"]["pipe_seed"] if loaded is not None and resumes(loader) else None


def _seed_on_device(recipe: ShardRecipe, shard: int, ordinals: Sequence[int]) -> int:
    """As for map-style datasets, for samples that are known by their shard and their place in
    it."""
    return recipe.seed(shard, ("device", *ordinals))


def _seed_of(recipe: ShardRecipe, batch: Batch) -> int:
    assert isinstance(batch, ShardBatch)
    return _seed_on_device(recipe, batch.source.shard.number, batch.indices)


class ReportedLength:
    """Warns, as torch does, when an iterable dataset yields more than it said it would.

    What is counted are batches, so only without batching can the two be compared; that, too, is
    as with torch.
    """

    def __init__(self, loader: DataLoader[Any], yielded: int) -> None:
        #: Set where `len(loader)` was asked for.
        self._reported: int | None = loader._IterableDataset_len_called
        self._dataset = loader.dataset
        self._has_workers = loader.num_workers > 0
        self._yielded = yielded

    def count(self) -> None:
        """One more is about to be returned."""
        self._yielded += 1
        if self._reported is None or self._yielded <= self._reported:
            return
        message = (
            f"Length of IterableDataset {self._dataset} was reported to be {self._reported}"
            f"(when accessing len(dataloader)), but {self._yielded} samples have been fetched. "
        )
        if self._has_workers:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly "
                "configuring the IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset "
                "for examples."
            )
        warn_user(message)
