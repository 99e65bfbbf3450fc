"""What a worker process does with the shards of an iterable dataset that it has."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minato_async.engine.bell import DueBells
from minato_async.executors.process.dataset_changes import apply
from minato_async.executors.process.messages import Collated
from minato_async.executors.process.sharded_epoch import FinishBatch, ReadShard, ShardRead
from minato_async.executors.process.transport.failures import pack_error
from minato_async.executors.process.worker_main import WorkerContext
from minato_async.executors.process.worker_samples import EpochPayload
from minato_async.executors.process.worker_shared_iterator import FinishJob, ReadRawJob
from minato_async.replicas.composed_transforms import add_checkpoints
from minato_async.replicas.replica import Code, Replica
from minato_async.sample.map_recipe import as_it_is
from minato_async.sample.worker_setup import current_state
from minato_async.shards.datapipes import PipeSharding, seed_pipe
from minato_async.shards.epoch import Shard, ShardBatch, ShardPass, ShardRecipe
from minato_async.shards.jobs import ReadJob, close_shard
from minato_async.shards.position import Start


@dataclass(frozen=True)
class ShardPlan:
    """How shards are opened."""

    dataset: Any
    recipe: ShardRecipe
    #: Makes what `get_worker_info()` returns in shard `number`, for this copy of the dataset.
    make_info: Callable[[int, Any], Any]
    #: For data pipes, and the seed of the first epoch.
    pipes: PipeSharding | None
    pipe_seed: int | None
    #: Who reads a batch leaves it to others to finish.
    shares: bool


class ShardRunner:
    """Runs requests for shards, in the context of one worker."""

    def __init__(self, plan: ShardPlan, worker_context: WorkerContext) -> None:
        self._plan = plan
        self._worker_context = worker_context
        self._recipe = self._packing(plan.recipe)
        #: None: the shard has the dataset of this process, or data pipes.
        self._shards: dict[int, tuple[Shard, Replica | None]] = {}
        self._pipe_seed = plan.pipe_seed
        self._passes: dict[int, ShardPass] = {}

    def _packing(self, recipe: ShardRecipe) -> ShardRecipe:
        """`recipe` with batches that are ready to travel: that may fail as collating may."""
        collate, pack = recipe.collate, self._worker_context.pack
        return replace(recipe, collate=lambda samples: pack(collate(samples)))

    def begin_epoch(self, data: bytes) -> None:
        payload: EpochPayload = pickle.loads(data)
        for source in self._passes.values():
            close_shard(source)
        self._passes.clear()
        apply(self._plan.dataset, payload.changes)
        self._pipe_seed = payload.pipe_seed
        for shard, replica in self._shards.values():
            if replica is not None:
                replica.refresh()
            elif self._pipe_seed is not None:
                seed_pipe(shard.dataset, self._pipe_seed)
        self._recipe = replace(
            self._recipe, seeds=payload.seeds, grad=payload.grad, autocast=payload.autocast
        )

    def run(self, request: ReadShard | FinishBatch) -> Sequence[Any]:
        reading = _Reading(self._worker_context)
        # Its own lock and bells: nobody else is here.
        if isinstance(request, FinishBatch):
            given = ShardPass(self._shard(request.number), self._recipe)
            FinishJob(request, given, reading, self._recipe, reading, self._worker_context).run(
                self._worker_context
            )
            return [Collated(event.content, event.failure) for event in reading.events]
        source = self._pass(request.number, request.start)
        if not self._plan.shares:
            ReadJob(source, reading, self._recipe, reading).run(self._worker_context)
            return reading.events
        job = ReadRawJob(source, reading, self._recipe, reading, self._worker_context)
        job.run(self._worker_context)
        return [event._replace(packed=job.packed, states=job.states) for event in reading.events]

    def _pass(self, number: int, start: Start | None) -> ShardPass:
        source = self._passes.get(number)
        if source is None:
            shard = self._shard(number)
            shard.start = start
            source = self._passes[number] = ShardPass(shard, self._recipe)
        return source

    def _shard(self, number: int) -> Shard:
        if number not in self._shards:
            plan, replica = self._plan, None
            if plan.pipes is None:
                dataset = plan.dataset
                code = Code(dataset, (), as_it_is, None, None)
                # The first shard has the dataset of this process, unless it holds random generators
                # that are to follow the sample.
                follows = current_state().isolated and code.held_generators()
                if self._shards or follows:
                    replica = Replica(code, number)
                    dataset = replica.code.dataset
                else:
                    add_checkpoints(dataset)
            else:
                assert self._pipe_seed is not None
                dataset = plan.pipes.shard_of(plan.dataset, number, self._pipe_seed)
            shard = Shard(number, dataset, plan.make_info(number, dataset))
            self._shards[number] = shard, replica
        return self._shards[number][0]


class _Reading:
    """Stands for the epoch and its lock while one batch is read, and notes what comes of it."""

    def __init__(self, worker_context: WorkerContext) -> None:
        self._worker_context = worker_context
        self.lock = threading.RLock()
        self.due = DueBells()
        self.events: list[ShardRead] = []

    @property
    def abandoned(self) -> bool:
        return self._worker_context.abandoned

    def read(self, source: ShardPass, batch: ShardBatch | None, ended: bool) -> None:
        failure = None if batch is None or batch.failure is None else pack_error(batch.failure)
        ordinals: Sequence[int] = () if batch is None else batch.indices
        first = ordinals[0] if ordinals else 0
        mark = None if batch is None else batch.mark
        event = ShardRead(first, len(ordinals), ended, None, failure, mark=mark)
        self.events.append(event)

    def collated(self, batch: ShardBatch, content: Any, failure: BaseException | None) -> None:
        packed = None if failure is None else pack_error(failure)
        self.events[-1] = self.events[-1]._replace(content=content, failure=packed)

    def leave(self, shard: Shard) -> None:
        """The parent is told by there being no event."""
