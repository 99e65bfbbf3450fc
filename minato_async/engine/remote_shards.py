"""The epoch of an iterable dataset whose shards are read in other processes.

An iterator cannot leave the process that made it: so each shard has a home, the worker that opened
it first, and is read and collated there, as torch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minato_async.engine.job import UnwatchedJob
from minato_async.engine.loading import Sync
from minato_async.engine.remote_epoch import Context
from minato_async.engine.shards import Shard, ShardBatch, ShardedEpoch, ShardPass, ShardRecipe
from minato_async.executors.base import Job, Progress, Worker


class ReadShard(NamedTuple):
    """Order: the next batch of a shard."""

    number: int


class ShardRead(NamedTuple):
    """Event: what was read, so many `samples` from `first` on; 0 if there were none left."""

    first: int
    samples: int
    ended: bool
    #: Packed; one of the two.
    content: Any
    failure: Any
    #: It failed before there was a batch to collate.
    unread: bool


class RemoteShardedEpoch(ShardedEpoch):
    """As `ShardedEpoch`, with jobs that are sent away. The caller of every method holds the
    engine's lock."""

    def __init__(
        self,
        shards: Sequence[Shard],
        homes: dict[int, Worker],
        recipe: ShardRecipe,
        keeps_order: bool,
        ahead: int | None,
        window: int | None,
        context: Context,
        sync: Sync,
    ) -> None:
        super().__init__(shards, recipe, keeps_order, ahead, window, sync)
        self.context = context
        self.sync = sync
        self._step = recipe.step
        #: By the shard's number, the worker that has it. Outlives the epoch.
        self._homes = homes
        self._asking: Worker | None = None

    #: A shard is where its first batch was read.
    any_worker_will_do = False

    def next_job(self) -> Job | None:
        raise TypeError("which job there is depends on the worker")

    def next_job_for(self, worker: Worker) -> Job | None:
        if not self.sync.slots.free:
            return None
        self._asking = worker
        source = self.claim()
        self._asking = None
        if source is None:
            return None
        self._homes[source.shard.number] = worker
        return RemoteReadJob(source, self, self._step)

    def _readable(self) -> list[ShardPass]:
        readable, worker = super()._readable(), self._asking
        if worker is None:
            return readable
        mine = {number for number, home in self._homes.items() if home is worker}
        others = self._homes.keys() - mine
        # Those that nobody has are shared out evenly, also while some workers are still starting.
        most = -(-len(self._passes) // max(1, self.sync.slots.wanted))
        return [
            source
            for source in readable
            if source.shard.number in mine
            or (source.shard.number not in others and len(mine) < most)
        ]

    @property
    def jobs_waiting(self) -> int:
        # Whoever is woken may not be the one who has the shard: wake all.
        return super().jobs_waiting and len(self._passes)

    def worker_died(self, worker: Worker) -> None:
        """Its iterators are lost with it; in another epoch its shards are opened anew."""
        for number in [number for number, home in self._homes.items() if home is worker]:
            del self._homes[number]

    def abandon(self) -> Sequence[Job]:
        self.context.abandon(self.context.number)
        # Workers let go of what they have open when they begin another epoch, or end.
        self.forget()
        return ()


class RemoteReadJob(UnwatchedJob):
    """The next batch of one shard, by the worker that has it."""

    def __init__(self, source: ShardPass, epoch: RemoteShardedEpoch, step: str) -> None:
        self._source = source
        self._epoch = epoch
        self._step = step
        self._lock, self._due = epoch.sync.lock, epoch.sync.due
        self._left = False

    @property
    def context(self) -> Any:
        return self._epoch.context

    def run(self, worker: Worker) -> None:
        raise TypeError("this job is an order for another process")

    def describe(self) -> str:
        return f"shard {self._source.shard.number}"

    def order(self, progress: Progress) -> ReadShard:
        return ReadShard(self._source.shard.number)

    def reply(self, worker: Worker, events: Sequence[ShardRead]) -> None:
        with self._lock:
            for event in events:
                if not self._epoch.abandoned:
                    self._read(event)
        self._due.ring()

    def _read(self, event: ShardRead) -> None:
        self._left = True
        if event.unread:
            self._failed(event.failure, event.ended)
        elif not event.samples:
            self._epoch.read(self._source, None, event.ended)
        else:
            batch = ShardBatch(self._source, event.first, [None] * event.samples)
            self._epoch.read(self._source, batch, event.ended)
            self._epoch.collated(batch, event.content, event.failure)

    def _failed(self, error: Any, ended: bool) -> None:
        batch = ShardBatch(self._source, 0, [])
        batch.failure = error
        self._epoch.read(self._source, batch, ended)

    def finished(self) -> None:
        if not self._left:
            with self._lock:
                self._epoch.leave(self._source.shard)
            self._due.ring()

    def cannot_be_sent(self, error: Exception) -> None:
        raise error

    def died(self, worker: Worker, how: str) -> None:
        number = self._source.shard.number
        with self._lock:
            self._epoch.worker_died(worker)
            if self._epoch.abandoned:
                self._epoch.leave(self._source.shard)
            else:
                error = RuntimeError(
                    f"the worker process that reads shard {number} {how}; what it had read ahead "
                    "is lost, and so is the rest of the shard"
                )
                error.add_note(f"minato_async: shard {number}, step {self._step}, {worker.name}")
                self._failed(error, ended=True)
        self._due.ring()
