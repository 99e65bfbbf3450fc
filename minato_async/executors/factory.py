"""Which executor loads: chosen here and nowhere else. Another one is made known here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch.utils.data import DataLoader

from minato_async.engine.epoch import Order
from minato_async.engine.loading import Loading, Sync
from minato_async.engine.map_epoch import MapEpoch
from minato_async.engine.protocols import AnyJobSource, Executor
from minato_async.executors.process.loading import RemoteLoading
from minato_async.executors.process.worker_samples import SampleRunner
from minato_async.executors.process.worker_shards import ShardPlan, ShardRunner
from minato_async.executors.thread.loading import ThreadLoading
from minato_async.options import Options
from minato_async.sample.map_recipe import MapRecipe
from minato_async.scheduling.threshold import Threshold
from minato_async.shards.epoch import ShardEpochPlan
from minato_async.stats import Stats


class ExecutorSide(Protocol):
    """What an iterator has of the executor that loads for it, as long as that lives."""

    def new_executor(self, source: AnyJobSource, on_all_ended: Callable[[], None]) -> Executor: ...

    def map_epoch(
        self,
        loader: DataLoader[Any],
        recipe: MapRecipe,
        order: Order,
        window: int | None,
        threshold: Threshold,
    ) -> Callable[[Sync], MapEpoch]:
        """Makes an epoch of a map-style dataset, which `loader` is about to begin. `window`:
        samples claimed and not yet delivered; None: whatever is drawn."""

    def sharded_epoch(
        self, loader: DataLoader[Any], plan: ShardEpochPlan, pipe_seed: int | None
    ) -> Callable[[Sync], Loading]:
        """Makes an epoch of an iterable dataset. `pipe_seed`: with which data pipes shuffle."""

    @staticmethod
    def receive(content: Any) -> Any:
        """What the consumer gets for the content of a batch. In the consumer's thread, or in that
        of the stage, which does not refer to this object."""

    def received(self, stats: Stats) -> Stats:
        """What the consumer gets for `stats`. In the consumer's thread."""


def shares_objects(options: Options) -> bool:
    """Whether workers run the user's objects in this process: then each needs a replica of them."""
    return options.executor == "thread"


def for_samples(
    loader: DataLoader[Any], recipe: MapRecipe, base_seed: int, options: Options
) -> ExecutorSide:
    """The executor that `options` ask for, to load a map-style dataset."""
    if options.executor == "process":
        return RemoteLoading(loader, partial(SampleRunner, recipe), base_seed, options)
    return ThreadLoading(options)


def for_shards(
    loader: DataLoader[Any], plan: ShardPlan, base_seed: int, options: Options
) -> ExecutorSide:
    """The executor that `options` ask for, to load an iterable dataset in shards. `plan` is for
    workers that make their shards themselves."""
    if options.executor == "process":
        return RemoteLoading(loader, partial(ShardRunner, plan), base_seed, options)
    return ThreadLoading(options)
