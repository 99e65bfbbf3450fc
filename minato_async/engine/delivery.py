"""Delivery: the batch queue and the consumers that wait on it, `for` and `async for` alike."""

from __future__ import annotations

import itertools
from collections import deque
from time import monotonic

from minato_async.engine.batch import Batch
from minato_async.engine.bell import DueBells
from minato_async.engine.displacement import Displacement
from minato_async.engine.protocols import Ringable


class Delivery:
    """Hands each batch to one consumer, by position or as they complete. In the latter case at
    most `max_displacement` batches overtake one that was begun earlier; None: any number.

    The caller holds the engine's lock.
    """

    def __init__(
        self, by_position: bool, due: DueBells, max_displacement: int | None = None
    ) -> None:
        self._by_position = by_position
        self.displacement = Displacement(max_displacement)
        self._queue: deque[Batch] = deque()
        #: Of several consumers, those that will not ask again.
        self.gone: set[int] = set()
        #: How many of them are ready.
        self._ready = 0
        #: Complete, and to come after all others.
        self.held: list[Batch] = []
        self._due = due
        self._waiting: list[Ringable] = []
        #: Seconds that consumers waited for the batch that is due while later ones were ready,
        #: and since when they do that now.
        self._held_up = 0.0
        self._held_up_since: float | None = None

    def expect(self, batch: Batch) -> None:
        """`batch` was drawn next: its turn is fixed, if order is kept."""
        if self._by_position:
            self._queue.append(batch)

    def put(self, batch: Batch) -> None:
        """`batch` is complete, or lost and carries its failure."""
        batch.ready = True
        self._ready += 1
        if not self._by_position:
            self._queue.append(batch)
        if self._queue[0].ready or batch.consumer is not None:
            self.wake()
        elif self._waiting:
            self._begin_hold_up()

    def hold(self, batch: Batch) -> None:
        """`batch` is complete, and comes last: it is not delivered before `let_go`."""
        # Nothing that passes it overtakes it.
        self.displacement.leave_out(batch.number)
        batch.ready, batch.number = True, None
        self.held.append(batch)

    def let_go(self) -> None:
        """What is held can be delivered: all others are, or it is not the last after all."""
        held, self.held = self.held, []
        for batch in held:
            self.put(batch)

    @property
    def ready(self) -> int:
        """Batches that could be delivered, now or when it is their turn."""
        return self._ready + len(self.held)

    @property
    def next_ready(self) -> bool:
        """Whether a consumer that asks now need not wait."""
        return self._next() is not None

    @property
    def contents(self) -> list[object]:
        """What the ready batches hold."""
        return [batch.content for batch in (*self._queue, *self.held) if batch.ready]

    def ahead_of(self, batch: Batch, begun: int) -> int:
        """How many batches come to the consumer before `batch`, which waits for the stage, as far
        as that is certain: 0 if it is due. `begun`: batches in the stage, or done there, that the
        consumer has not taken."""
        if self._by_position:
            before = itertools.takewhile(lambda other: other is not batch, self._queue)
            return sum(other.consumer == batch.consumer for other in before)
        if self.displacement.waits_for(batch.number):
            return 0
        return begun - len(self.held)  # those come after it

    def pop(self, consumer: int | None = None) -> Batch | None:
        """The batch whose turn it is, or None if it is not ready; with several consumers, of
        those that are for this one, for anybody, or for one that is gone."""
        batch = self._next() if consumer is None else self._next_for(consumer)
        if batch is None:
            return None
        self._queue.remove(batch)  # the first, but for those that it overtakes
        self._ready -= 1
        self.displacement.went(batch.number)
        return batch

    def _next(self) -> Batch | None:
        queue = self._queue
        if not queue:
            return None
        first = queue[0]
        if self._by_position:
            return first if first.ready else None
        may_go = self.displacement.may_go
        if may_go(first.number):
            return first
        # Whatever is held back waits for a batch that has its samples and is about to come.
        return next((batch for batch in queue if may_go(batch.number)), None)

    def _next_for(self, consumer: int) -> Batch | None:
        for batch in self._queue:
            if batch.ready and batch.consumer in self.gone:
                return batch
        if not self._by_position:
            meant = (consumer, None)
            return next((b for b in self._queue if b.consumer in meant), None)
        own = next((batch for batch in self._queue if batch.consumer == consumer), None)
        return own if own is not None and own.ready else None

    def add_waiter(self, bell: Ringable) -> None:
        """Ring `bell` once there may be something new."""
        self._waiting.append(bell)
        if self._by_position and self.ready:
            self._begin_hold_up()

    def _begin_hold_up(self) -> None:
        if self._held_up_since is None:
            self._held_up_since = monotonic()

    @property
    def held_up(self) -> float:
        """Seconds that consumers waited for the batch that was due while later ones were ready."""
        since = self._held_up_since
        return self._held_up if since is None else self._held_up + monotonic() - since

    def wake(self) -> None:
        """Let every consumer look again. All of them: one that was cancelled while it woke
        could not pass the news on."""
        for bell in self._waiting:
            self._due.add(bell)
        self._waiting.clear()
        if self._held_up_since is not None:
            self._held_up, self._held_up_since = self.held_up, None

    def clear(self) -> list[Batch]:
        """Forget what is queued, and return it."""
        batches = [*self._queue, *self.held]  # the list has them all
        self._queue.clear()
        self._ready = 0
        self.held.clear()
        return batches
