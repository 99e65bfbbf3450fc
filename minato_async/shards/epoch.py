"""Iterable datasets: shards, and one epoch over them, as plain state.

A shard stands for one of torch's worker processes: an iterator over a copy of the dataset, which
is told to be worker s of n. Its thread is whichever worker is free. The caller of every method of
`ShardedEpoch` holds the engine's lock; nothing here waits or runs user code.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol

from minato_async.engine.batch import Batch
from minato_async.engine.delivery import Delivery
from minato_async.engine.loading import Sync
from minato_async.engine.stage import Stage
from minato_async.errors import name_transform
from minato_async.process_wide import Own
from minato_async.sample.autocast import Autocast
from minato_async.shards.position import Mark, Start
from minato_async.shards.reader import Reader
from minato_async.stats import Stats, StepCosts


class Shard:
    """What outlives an epoch with `persistent_workers`, as torch's worker process does."""

    def __init__(self, number: int, dataset: Any, info: Any) -> None:
        self.number = number
        self.dataset = dataset
        #: The recipe with this shard's own transforms and functions in the place of the user's.
        self.own_recipe: Callable[[ShardRecipe], ShardRecipe] = _as_it_is
        #: What `get_worker_info()` returns while code of this shard runs.
        self.info = info
        #: Filters of warnings and the like that code of this shard has changed, on threads.
        self.own = Own()
        #: Where the next epoch goes on in it, if that is resumed.
        self.start: Start | None = None
        #: `worker_init_fn` has run.
        self.initialised = False
        #: A worker is inside this shard, or about to be: it owns the iterator. Set under the
        #: engine's lock; so it also keeps a new epoch out until the last one's worker has left.
        self.occupied = False


def _as_it_is(recipe: ShardRecipe) -> ShardRecipe:
    return recipe


class ShardSeeds(Protocol):
    def seed(self, key: Any, repeat: int, position: int) -> int: ...


@dataclass(frozen=True)
class ShardRecipe:
    """How one epoch of an iterable dataset is loaded."""

    #: Names the step that reads a sample in error messages.
    step: str
    #: None: samples are delivered one by one.
    batch_size: int | None
    drop_last: bool
    worker_init_fn: Callable[[int], None] | None
    #: Makes what is delivered of the samples read for it.
    collate: Callable[[list[Any]], Any]
    #: Context variables, grad mode and autocast of the thread that starts the epoch.
    context: Context
    grad: bool
    autocast: Autocast
    #: None: samples have no random state of their own.
    seeds: ShardSeeds | None = None
    #: Applied to each sample as it is read, by the worker that reads the shard.
    transforms: Sequence[Callable[[Any], Any]] = ()
    #: Batches read of a shard from one snapshot of its own state to the next.
    snapshot_every: int = 1
    #: Collating may change what is the shard's: who reads the batch collates it before it leaves
    #: the shard.
    collates_inside: bool = False

    def step_name(self, step: int) -> str:
        """Names a step in error messages: 0 reads, n is the n-th transform."""
        return self.step if step == 0 else name_transform(step - 1, self.transforms[step - 1])

    def seed(self, shard: int, key: Any) -> int:
        """The seed of what `key` names in `shard`: a sample by its ordinal, -1 being what comes
        before the first, a batch by the tuple of its samples' ordinals, or `worker_init_fn`."""
        assert self.seeds is not None
        # Like the shard's share of an index that is drawn over and over: that is a hash of two
        # integers, where a tuple as the key would need a digest.
        return self.seeds.seed(key, shard + 1, 0)


class ShardPass:
    """One epoch's pass over one shard."""

    def __init__(self, shard: Shard, recipe: ShardRecipe) -> None:
        self.shard = shard
        self.recipe = shard.own_recipe(recipe)
        # A generator suspended inside `with torch.no_grad()` or `torch.inference_mode()`, or after
        # setting a context variable, goes on with that, whichever thread resumes it. As with
        # `reader`, they belong to the worker that occupies the shard.
        self.context = recipe.context.copy()
        self.grad = recipe.grad
        self.inference = False
        self.autocast = recipe.autocast
        self.reader: Reader | None = None
        self.start, shard.start = shard.start, None
        #: Of a dataset or an iterator that has a state, the last; and how many reads ago.
        self.snapshot = None if self.start is None else self.start.mark.snapshot
        self.snapshot_age = 0
        #: Something was read in this epoch.
        self.begun = False
        #: Batches read or failed.
        self.rounds = 0 if self.start is None else self.start.rounds
        #: Batches being read, or read and not delivered.
        self.ahead = 0
        #: No more batches will be read.
        self.ended = self.start is not None and self.start.mark.ended
        #: Where order is kept: batches read whose turn has not come.
        self.in_turn: deque[ShardBatch] = deque()


class ShardBatch(Batch):
    """Samples read from one shard, on their way to the consumer."""

    __slots__ = ("mark", "source")

    def __init__(self, source: ShardPass, first: int, samples: list[Any]) -> None:
        super().__init__(len(samples), 1)
        self.source = source
        #: Where the shard is behind it; None: nobody knows.
        self.mark: Mark | None = None
        self.indices = list(range(first, first + len(samples)))
        self.put(0, samples)


@dataclass(frozen=True)
class ShardEpochPlan:
    """What one epoch over shards reads, in which order, and how far ahead of the consumer."""

    shards: Sequence[Shard]
    recipe: ShardRecipe
    #: Batches come round-robin over the shards that are not exhausted, as with torch; otherwise as
    #: they complete.
    keeps_order: bool
    #: Batches of each shard that are read and not delivered, at most; None: no bound.
    ahead: int | None
    #: The same for the samples of all. A batch that is larger is read alone.
    window: int | None


class ShardedEpoch:
    """One pass over all shards."""

    def __init__(self, plan: ShardEpochPlan, sync: Sync) -> None:
        recipe, ahead, window = plan.recipe, plan.ahead, plan.window
        self.delivery = Delivery(False, sync.due)
        self.recorder = sync.recorder
        self._passes = [ShardPass(shard, recipe) for shard in plan.shards]
        self._keeps_order = plan.keeps_order
        #: The shards that still have turns, the one that is due first.
        self._turns = deque(sorted((p for p in self._passes if not p.ended), key=_turn))
        self._ahead = sys.maxsize if ahead is None else ahead
        #: What one batch takes of the window while it is being read.
        self._places = recipe.batch_size or 1
        self._window = sys.maxsize if window is None else max(window, self._places)
        self._in_window = 0
        #: Samples read so far.
        self.finished_samples = 0
        self.sync = sync
        #: Shards that have not ended, and batches being read, or read and not delivered.
        self._unended = len(self._turns)
        self._undelivered = 0
        #: Nobody will ask for more: late outcomes are dropped.
        self.abandoned = False
        #: What else is done with batches before they are delivered; None: nothing.
        self.stage: Stage | None = None

    # What the consumer does

    any_worker_will_do = True
    order_is_optional = False

    @property
    def stuck_after(self) -> float:
        return math.inf  # what a shard costs is not known sample by sample

    parks = False

    @property
    def backlog(self) -> tuple[int, int, float]:
        return 0, self._in_window, math.inf

    def costs_so_far(self) -> Callable[[], tuple[StepCosts, ...]]:
        return tuple  # none are known

    def stats(self) -> Stats:
        return Stats(
            in_window=self._in_window,
            window=None if self._window == sys.maxsize else self._window,
            ready_batches=self.delivery.ready,
            finished=self.finished_samples,
        )

    @property
    def queued(self) -> tuple[int, int]:
        pending = 0 if self.stage is None else self.stage.pending
        most = min(self._ahead, self._window) * len(self._passes)
        return self.delivery.ready + pending, most

    def finished_for(self, consumer: int | None) -> bool:
        return self.finished

    def pop(self, consumer: int | None = None) -> Batch | None:
        batch = self.delivery.pop()
        if batch is not None:
            assert isinstance(batch, ShardBatch)
            if self.stage is not None:
                self.stage.taken(batch)
            self._leave(batch.source, batch.held)
        return batch

    @property
    def finished(self) -> bool:
        return self.abandoned or not (self._unended or self._undelivered)

    def forget(self) -> list[ShardPass]:
        """Nobody will ask for more. Returns what the caller must have a worker let go of, since
        that runs user code: open iterators, whose shards it now occupies."""
        self.abandoned = True
        # The worker inside an occupied shard lets go of the iterator itself, on its way out.
        unread = [p for p in self._passes if p.reader is not None and not p.shard.occupied]
        batches = self.delivery.clear()
        if self.stage is not None:
            batches += self.stage.clear()
        for source in self._passes:
            batches += source.in_turn
            source.in_turn.clear()  # the list has them all
        # From the frames in its traceback a failure leads back to its batch.
        self.sync.due.drop(batches, [batch.take_failure() for batch in batches])
        for source in unread:
            source.shard.occupied = True
        self.delivery.wake()
        return unread

    # What workers do

    @property
    def jobs_waiting(self) -> int:
        room = (self._window - self._in_window) // self._places
        return min(room, len(self._readable())) if room > 0 else 0

    def _readable(self) -> list[ShardPass]:
        if self.abandoned:
            return []
        return [
            source
            for source in self._passes
            if source.ahead < self._ahead and not (source.ended or source.shard.occupied)
        ]

    def claim(self) -> ShardPass | None:
        """A shard for an idle worker, who occupies it, to read a batch from; None: there is none
        to be had now. `read` must follow, or `leave` if the epoch is abandoned by then."""
        if self._in_window + self._places > self._window or not (readable := self._readable()):
            return None
        # The one whose turn comes first. The window therefore always has room for the batch that
        # is due: all that was ever admitted before it comes before it, or while its own shard was
        # busy with a batch that has given its places back.
        source = min(readable, key=_turn)
        # Where only some workers can read a shard, those that come before it keep their places.
        before = sum(_turn(other) < _turn(source) for other in ShardedEpoch._readable(self))
        if self._keeps_order and self._in_window + (before + 1) * self._places > self._window:
            return None
        self._occupy(source)
        return source

    def _occupy(self, source: ShardPass) -> None:
        source.shard.occupied = True
        source.ahead += 1
        self._undelivered += 1
        self._in_window += self._places

    def read(self, source: ShardPass, batch: ShardBatch | None, ended: bool) -> None:
        """A worker has read `batch` from `source` and leaves it; None: there was none left. One
        that failed carries its failure and is complete, others are yet to be collated."""
        source.shard.occupied = False
        source.begun = True
        if ended:
            source.ended = True
            self._unended -= 1
        if batch is None:
            self._leave(source, self._places)
        else:
            source.rounds += 1
            self.finished_samples += batch.held
            self._in_window -= self._places - batch.held
            if self._keeps_order:
                source.in_turn.append(batch)
            if batch.failure is not None:
                self._complete(batch)
        self._take_turns()
        # The reader of this batch may have it to collate: meanwhile others read on.
        self.sync.wake_workers(self.jobs_waiting)
        if self.finished:
            self.delivery.wake()

    def leave(self, shard: Shard) -> None:
        """A worker leaves `shard` after the epoch was abandoned. A later one may wait for it."""
        shard.occupied = False
        self.sync.wake_workers(1)

    def collated(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        if self.abandoned:
            self.sync.due.drop(batch, content, failure)
        else:
            batch.content, batch.failure = content, failure
            if self.stage is not None and failure is None:
                self.stage.enter(batch)
            else:
                self._collated(batch)

    def staged(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        if self.abandoned:
            self.sync.due.drop(batch, content, failure)
        else:
            batch.content, batch.failure = content, failure
            self._collated(batch)

    def stage_begins(self, batch: Batch) -> None:
        """It is for the only consumer."""

    def ahead_of(self, batch: Batch, begun: int) -> int:
        if self._keeps_order and self._turns:
            in_turn = self._turns[0].in_turn
            if in_turn and in_turn[0] is batch and not self.delivery.ready:
                return 0
        return begun

    def _collated(self, batch: Batch) -> None:
        """Nothing is left to be done with `batch`."""
        assert isinstance(batch, ShardBatch)
        self._complete(batch)
        self._take_turns()

    def _complete(self, batch: ShardBatch) -> None:
        batch.ready = True
        if not self._keeps_order:
            self.delivery.put(batch)

    def _take_turns(self) -> None:
        """Pass on to the consumer what is complete and due. A shard that is exhausted has no
        turns; one that may not be is waited for."""
        while self._keeps_order and self._turns:
            source = self._turns[0]
            if source.in_turn and source.in_turn[0].ready:
                self.delivery.put(source.in_turn.popleft())
                self._turns.rotate(-1)
            elif source.ended and not source.in_turn:
                self._turns.popleft()
            else:
                return

    def _leave(self, source: ShardPass, samples: int) -> None:
        source.ahead -= 1
        self._undelivered -= 1
        self._in_window -= samples


def _turn(source: ShardPass) -> tuple[int, int]:
    return source.rounds, source.shard.number
