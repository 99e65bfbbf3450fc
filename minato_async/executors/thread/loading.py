"""Loading with threads: what an iterator has of their executor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from minato_async import process_wide
from minato_async.engine.epoch import Order
from minato_async.engine.loading import Loading, Sync
from minato_async.engine.map_epoch import MapEpoch
from minato_async.engine.protocols import JobSource
from minato_async.executors.thread.executor import ThreadExecutor
from minato_async.executors.thread.map_epoch import ThreadMapEpoch
from minato_async.options import Options
from minato_async.sample.map_recipe import MapRecipe
from minato_async.sample.worker_setup import worker_thread
from minato_async.scheduling.threshold import Threshold
from minato_async.shards.epoch import ShardEpochPlan
from minato_async.shards.jobs import IterableEpoch
from minato_async.stats import Stats


class ThreadLoading:
    """What one iterator has to do with its threads. Batches are what the consumer gets."""

    def __init__(self, options: Options) -> None:
        process_wide.install()
        self._setup = partial(worker_thread, isolated=options.isolated)

    def new_executor(self, source: JobSource, on_all_ended: Callable[[], None]) -> ThreadExecutor:
        return ThreadExecutor(source, on_all_ended, setup=self._setup)

    def map_epoch(
        self,
        loader: DataLoader[Any],
        recipe: MapRecipe,
        order: Order,
        window: int | None,
        threshold: Threshold,
    ) -> Callable[[Sync], MapEpoch]:
        return partial(ThreadMapEpoch, recipe, order, window, threshold)

    def sharded_epoch(
        self, loader: DataLoader[Any], plan: ShardEpochPlan, pipe_seed: int | None
    ) -> Callable[[Sync], Loading]:
        return partial(IterableEpoch, plan)

    @staticmethod
    def receive(content: Any) -> Any:
        return content

    def received(self, stats: Stats) -> Stats:
        return stats
