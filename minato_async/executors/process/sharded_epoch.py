"""The epoch of an iterable dataset whose shards are read in other processes.

An iterator cannot leave the process that made it: so each shard has a home, the worker that opened
it first, and is read and collated there, as torch does. With one shard for all workers, the others
finish what its home has read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from minato_async.engine.loading import Sync
from minato_async.engine.protocols import Job, Progress, Worker
from minato_async.engine.unwatched_job import UnwatchedJob
from minato_async.executors.process.epoch_state import Context
from minato_async.executors.process.jobs import DEATHS
from minato_async.executors.process.messages import Collated
from minato_async.shards.epoch import ShardBatch, ShardedEpoch, ShardEpochPlan, ShardPass
from minato_async.shards.position import Mark, Start


class ReadShard(NamedTuple):
    """Order: the next batch of a shard."""

    number: int
    #: Where to begin, if that is not the beginning.
    start: Start | None = None


class FinishBatch(NamedTuple):
    """Order: apply the steps to what was read of a shard from ordinal `first` on, and collate."""

    number: int
    first: int
    #: A sample each, or all of them as one if there are no steps.
    packed: Sequence[Any]
    #: What goes with each sample; empty if there are no steps.
    states: Sequence[Any]


class ShardRead(NamedTuple):
    """Event: what was read, so many `samples` from `first` on; 0 if there were none left."""

    first: int
    samples: int
    ended: bool
    #: Packed; one of the two. A failure without samples came before there was a batch to collate.
    content: Any
    failure: Any
    #: What others are to finish, see `FinishBatch`.
    packed: list[Any] = []  # noqa: RUF012 - never changed
    states: Sequence[Any] = ()
    mark: Mark | None = None


class RemoteShardedEpoch(ShardedEpoch):
    """As `ShardedEpoch`, with jobs that are sent away. The caller of every method holds the
    engine's lock."""

    def __init__(
        self, plan: ShardEpochPlan, opened_by: dict[int, Worker], context: Context, sync: Sync
    ) -> None:
        super().__init__(plan, sync)
        self.context = context
        self._step = plan.recipe.step
        #: By the shard's number, the worker that has it. Outlives the epoch.
        self._opened_by = opened_by
        self._asking: Worker | None = None
        #: What was read, for whoever is free to finish.
        self.unfinished: deque[RemoteFinishJob] = deque()

    #: A shard is where its first batch was read.
    any_worker_will_do = False

    def next_job(self, worker: Worker) -> Job | None:
        slots = self.sync.slots
        if not slots.free:
            return None
        # Who can read does, unless the others have enough to go on with.
        if len(self.unfinished) < slots.wanted:
            self._asking = worker
            source = self.claim()
            self._asking = None
            if source is not None:
                self._opened_by[source.shard.number] = worker
                return RemoteReadJob(source, self)
        return self.unfinished.popleft() if self.unfinished else None

    def finish_later(self, job: RemoteFinishJob) -> None:
        self.unfinished.append(job)
        self.sync.wake_workers(self.jobs_waiting)

    def _readable(self) -> list[ShardPass]:
        readable, worker = super()._readable(), self._asking
        if worker is None:
            return readable
        mine = {number for number, opener in self._opened_by.items() if opener is worker}
        others = self._opened_by.keys() - mine
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
        return self.sync.slots.threads if self.unfinished or super().jobs_waiting else 0

    def worker_ended(self, worker: Worker, how: str) -> None:
        """Its iterators are lost with it; in another epoch its shards are opened anew."""
        for number in [number for number, opener in self._opened_by.items() if opener is worker]:
            del self._opened_by[number]
            source = self._passes[number]
            # What it has not begun in this epoch, others can begin.
            if source.begun and not source.ended:
                self._occupy(source)
                self.lose(source, worker, how)

    def lose(self, source: ShardPass, worker: Worker, how: str) -> None:
        """`worker`, which occupies `source`, has died with its iterator."""
        # Not read anew, leaving out what has come: nobody knows whether it would come again as it
        # did.
        number = source.shard.number
        error = RuntimeError(
            f"the worker process that reads shard {number} {how}, after {source.rounds} batches: "
            "the rest of the shard is lost, for an iterator cannot be begun in the middle. If "
            "memory was short, use fewer workers or smaller batches. Other shards go on: call "
            "next() again"
        )
        error.add_note(f"minato_async: shard {number}, step {self._step}, {worker.name}")
        self.read_failed(source, error, ended=True)

    def read_failed(
        self, source: ShardPass, error: Any, ended: bool, mark: Mark | None = None
    ) -> None:
        batch = ShardBatch(source, 0, [])
        batch.failure, batch.mark = error, mark
        self.read(source, batch, ended)

    def abandon(self) -> Sequence[Job]:
        self.context.abandon(self.context.number)
        unfinished, self.unfinished = self.unfinished, deque()
        self.sync.due.drop(unfinished)
        # Workers let go of what they have open when they begin another epoch, or end.
        self.forget()
        return ()


class RemoteShardJob(UnwatchedJob):
    """Base of the jobs of one epoch."""

    def __init__(self, epoch: RemoteShardedEpoch) -> None:
        self._epoch = epoch
        self._lock, self._due = epoch.sync.lock, epoch.sync.due

    @property
    def context(self) -> Any:
        return self._epoch.context

    def run(self, worker: Worker) -> None:
        raise TypeError("this job is a request for another process")


class RemoteReadJob(RemoteShardJob):
    """The next batch of one shard, by the worker that has it."""

    def __init__(self, source: ShardPass, epoch: RemoteShardedEpoch) -> None:
        super().__init__(epoch)
        self._source = source
        self._left = False

    def describe(self) -> str:
        return f"shard {self._source.shard.number}"

    def request(self, progress: Progress) -> ReadShard:
        source = self._source
        return ReadShard(source.shard.number, None if source.begun else source.start)

    def reply(self, worker: Worker, events: Sequence[ShardRead]) -> None:
        with self._lock:
            for event in events:
                if not self._epoch.abandoned:
                    self._read(event)
        self._due.ring()

    def _read(self, event: ShardRead) -> None:
        self._left = True
        if event.failure is not None and not event.samples:
            self._epoch.read_failed(self._source, event.failure, event.ended, event.mark)
        elif not event.samples:
            self._epoch.read(self._source, None, event.ended)
        else:
            batch = ShardBatch(self._source, event.first, [None] * event.samples)
            batch.mark = event.mark
            self._epoch.read(self._source, batch, event.ended)
            if event.packed:
                packed, states = event.packed, event.states
                self._epoch.finish_later(RemoteFinishJob(batch, packed, states, self._epoch))
            else:
                self._epoch.collated(batch, event.content, event.failure)

    def finished(self) -> None:
        if not self._left:
            with self._lock:
                self._epoch.leave(self._source.shard)
            self._due.ring()

    def cannot_be_sent(self, error: BaseException) -> None:
        raise error  # a bug: there is nothing of the user's in it

    def cannot_be_read(self, worker: Worker, error: Any) -> None:
        raise error.unpack()

    def died(self, worker: Worker, how: str) -> None:
        with self._lock:
            if self._epoch.abandoned:
                self._epoch.leave(self._source.shard)
            else:
                self._epoch.lose(self._source, worker, how)
        self._due.ring()


class RemoteFinishJob(RemoteShardJob):
    """What is left to be done for a batch that the home of its shard has read."""

    def __init__(
        self,
        batch: ShardBatch,
        packed: Sequence[Any],
        states: Sequence[Any],
        epoch: RemoteShardedEpoch,
    ) -> None:
        super().__init__(epoch)
        self._batch = batch
        self._packed = packed
        self._states = states
        self._deaths = 0

    @property
    def _what(self) -> str:
        ordinals = self._batch.indices
        last = f" to {ordinals[-1]}" if len(ordinals) > 1 else ""
        return f"shard {self._batch.source.shard.number}, sample {ordinals[0]}{last}"

    def describe(self) -> str:
        return f"finishing {self._what}"

    def request(self, progress: Progress) -> FinishBatch:
        batch = self._batch
        number = batch.source.shard.number
        return FinishBatch(number, batch.indices[0], self._packed, self._states)

    def reply(self, worker: Worker, events: Sequence[Collated]) -> None:
        for event in events:
            self._collated(event.content, event.failure)

    def _collated(self, content: Any, failure: Any) -> None:
        # Their blocks are free for others.
        self._packed = ()
        with self._lock:
            self._epoch.collated(self._batch, content, failure)
        self._due.ring()

    def finished(self) -> None:
        """Nothing is left to be done."""

    def cannot_be_sent(self, error: BaseException) -> None:
        self._collated(None, error)

    def cannot_be_read(self, worker: Worker, error: Any) -> None:
        self._collated(None, error)

    def died(self, worker: Worker, how: str) -> None:
        # What was read is still there; its blocks belong to the worker that read it.
        self._deaths += 1
        if self._deaths < DEATHS:
            with self._lock:
                if not self._epoch.abandoned:
                    self._epoch.unfinished.appendleft(self)
            return
        times = f"{self._deaths} times"
        self._collated(None, RuntimeError(f"a worker process {how}, {times}, over {self._what}"))
