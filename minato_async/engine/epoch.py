"""One pass over the sampler: feed, batch builder and delivery joined, as plain state.

Nothing here waits or runs user code; the caller of every method holds the engine's lock.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minato_async.engine.assigned_feed import AssignedFeed
from minato_async.engine.batch import Batch
from minato_async.engine.batch_builder import AsDrawn, BatchBuilder, ReadyFirst
from minato_async.engine.bell import DueBells
from minato_async.engine.counts import Counts
from minato_async.engine.delivery import Delivery
from minato_async.engine.feed import Block, Claim, Feed
from minato_async.engine.protocols import Job
from minato_async.engine.recorder import Outcome, Recorder
from minato_async.engine.stage import Stage
from minato_async.scheduling.claim_size import ClaimSize


@dataclass(frozen=True)
class Order:
    """How an epoch's batches are composed and delivered."""

    #: Batches are those that the sampler drew; otherwise made of whatever samples are ready.
    as_drawn: bool
    #: Batches are delivered in the order in which they were drawn; otherwise as they complete.
    by_position: bool
    #: A batch that cannot be filled is dropped rather than delivered short.
    drop_last: bool = False
    #: Batches that may overtake one whose samples became ready earlier; None: any number.
    max_displacement: int | None = None
    #: Order is kept for the sake of reproducibility alone: it is random anyway.
    optional: bool = False
    #: Several consumers share the batches, each has batches of its own.
    consumers: int = 1
    #: So many workers make whole batches in turn, each its own; None: whoever comes loads what is
    #: next. Only as drawn.
    workers: int | None = None


class Epoch:
    """The state of one epoch: every ticket drawn, claimed, settled, batched and delivered once.

    `window` bounds the samples claimed and not yet delivered; None: whatever is drawn.
    """

    def __init__(
        self, order: Order, window: int | None, due: DueBells, recorder: Recorder | None = None
    ) -> None:
        #: Who is told what becomes of samples.
        self.recorder = recorder or Counts()
        #: The same, if it is to be told of everything.
        self.details = self.recorder if self.recorder.detailed else None
        self._as_drawn, self._drop_last = order.as_drawn, order.drop_last
        self._due = due
        self._by_position = order.by_position
        self._consumers = order.consumers
        self._batches_drawn = 0
        #: For each of several consumers, what is meant for it and not delivered: batches where
        #: these are as drawn, else samples.
        self._meant_for = [0] * order.consumers
        #: Where batches are as drawn, the last one that was drawn.
        self._latest: Batch | None = None
        bound = sys.maxsize if window is None else window
        #: The feed, if batches belong to workers.
        self.assigned: AssignedFeed | None = None
        if order.workers is not None:
            self.assigned = AssignedFeed(bound, order.workers, due)
        self.feed: Feed = self.assigned or Feed(bound, due, order.as_drawn)
        self.delivery = Delivery(order.by_position, due, order.max_displacement)
        self._builder: BatchBuilder = AsDrawn() if order.as_drawn else ReadyFirst()
        self._claim_size = ClaimSize()
        #: Tickets drawn that have not filled their place yet.
        self._unfilled = 0
        #: Complete batches that no worker is collating yet: the next idle one does.
        self._left_over: list[Batch] = []
        self._batches_ahead = 0
        self._batch_size = 1
        #: Batches that carry a failure and are not delivered.
        self._lost: list[Batch] = []
        #: Nobody will ask for more: late outcomes are dropped.
        self.abandoned = False
        #: What else is done with batches before they are delivered; None: nothing.
        self.stage: Stage | None = None

    # What the consumer does

    def draw(
        self,
        indices: Sequence[Any],
        unit: int = 1,
        repeats: Sequence[int] = (),
        positions: Sequence[int] | None = None,
    ) -> Block:
        """Add the tickets of one drawn batch; `repeats` tells for each index how often it was
        drawn before, empty for never; `positions` where in the epoch it is, None for what comes
        next."""
        block = self.feed.add(indices, unit, repeats, positions)
        self._unfilled += len(indices)
        self._batches_ahead += 1
        if block.samples > self._batch_size:
            self._batch_size = block.samples
            if not self._as_drawn:
                # The batch being formed may have to be completed by a smaller block.
                self.feed.admit(block.samples)
        if self.delivery.held:  # it was not the last after all
            self.delivery.let_go()
        self._due.drop(self._latest)
        self._latest = self._builder.expect(block)
        if self._latest is not None:
            self._latest.owner = block.owner
            if self._by_position and self._consumers > 1:
                self._mean(self._latest, self._batches_drawn % self._consumers)
            self.delivery.expect(self._latest)
        self._batches_drawn += 1
        return block

    def end_draw(self) -> None:
        """The sampler has no more, or raised."""
        self.feed.drawn_all = True
        self._left_over += self._complete_last()
        self.delivery.wake()

    @property
    def batches_ahead(self) -> int:
        """Batches drawn and not delivered."""
        if self._as_drawn:
            return self._batches_ahead
        # Failed samples are items of their own here, so what is ahead is told by the samples. A
        # part of a batch is none: it may need the next one to be drawn.
        return self.feed.outstanding // self._batch_size

    def _mean(self, batch: Batch, consumer: int) -> None:
        """`batch` is for this one of several consumers."""
        batch.consumer = consumer
        self._meant_for[consumer] += self._weight(batch)

    def _weight(self, batch: Batch) -> int:
        # A batch as drawn may become shorter, and may be empty; another is complete.
        return 1 if self._as_drawn else batch.size * batch.unit

    def leave(self, consumer: int) -> None:
        """This one of several consumers will not ask again: what is meant for it is dropped."""
        self.delivery.gone.add(consumer)
        self.delivery.wake()

    def pop(self, consumer: int | None = None) -> Batch | None:
        """The next batch to deliver, to this one of several consumers, or None if it is not ready.
        A void one is for nobody, but makes room for others to be drawn."""
        batch = self.delivery.pop(consumer)
        if batch is not None:
            unit = batch.unit
            if batch.consumer is not None:
                self._meant_for[batch.consumer] -= self._weight(batch)
                if batch.consumer in self.delivery.gone:
                    self._due.drop(batch.take_content(), batch.take_failure())
                    batch.void = True
            if self.stage is not None:
                self.stage.taken(batch)
            if batch.lost:
                self._lost = [lost for lost in self._lost if lost is not batch]
            self._batches_ahead -= 1
            self.feed.release(batch.held * unit, batch.size * unit)
            if self.delivery.held:
                self._let_last_go()
        return batch

    @property
    def finished(self) -> bool:
        """Everything that was drawn is delivered, and there is no more to draw."""
        if not self.feed.drawn_all:
            return self.abandoned
        # Empty batches have no samples that are outstanding, but are drawn and delivered.
        left = self._batches_ahead if self._as_drawn else self.feed.outstanding
        return self.abandoned or not left

    def finished_for(self, consumer: int | None) -> bool:
        """As `finished`, for one of several consumers: what is left is for others."""
        if consumer is None or not self.feed.drawn_all:
            return self.finished
        left = self._batches_ahead if self._as_drawn else self.feed.outstanding
        others = sum(self._meant_for) - self._meant_for[consumer]
        return self.abandoned or left <= others

    # What workers do

    @property
    def jobs_waiting(self) -> int:
        claims = -(-self.feed.claimable // self._claim_size.current)
        return claims + len(self._left_over)

    def _take_left_over(self) -> Claim | None:
        """An empty claim, with the batches that wait to be collated."""
        if not self._left_over:
            return None
        completed, self._left_over = self._left_over, []
        return Claim(Block(0, (), 1), 0, 0, completed)

    def observe(self, block: Block, row: int, costs: Sequence[float], tickets: int = 1) -> float:
        """`tickets` tickets, from `row` on, took `costs` seconds together, step by step. Returns
        their sum."""
        seconds = costs[0] if len(costs) == 1 else sum(costs)
        if not (block.claimed_early and block.claimed_early[row]):
            # What is claimed early says nothing of the tickets that are claimed in turn.
            self._claim_size.observe(tickets, seconds)
        return seconds

    def settle(self, block: Block, row: int, samples: list[Any]) -> list[Batch]:
        """The tickets from `row` on became `samples`; returns the batches that these complete."""
        completed: list[Batch] = []
        count = len(samples)
        if count and self._decide(block, row, count):
            self._finished(block, row, count)
            self._place(block, row, samples, completed)
        elif count:
            # Somebody has decided some of them: the others count.
            self._due.drop(samples)
            for number, sample in enumerate(samples):
                if self._decide(block, row + number, 1):
                    self._finished(block, row + number, 1)
                    self._place(block, row + number, [sample], completed)
        if self.feed.drawn_all:
            completed += self._complete_last()
        return completed

    def _place(self, block: Block, row: int, samples: list[Any], completed: list[Batch]) -> None:
        """Give the samples of the tickets from `row` on their places."""
        places = self._builder.place(block, row, len(samples))
        if len(places) == 1:
            batch, place, _ = places[0]
            self._fill(block, batch, place, samples, completed)
            return
        first = 0
        for batch, place, count in places:
            self._fill(block, batch, place, samples[first : first + count], completed)
            first += count

    def place(self, block: Block, row: int) -> tuple[Batch, int] | None:
        """As `settle`, for one sample that is yet to be written to the place returned. `fill`
        must follow. None: the result came too late."""
        if not self._decide(block, row, 1):
            return None
        self._finished(block, row, 1)
        batch, place, _ = self._builder.place(block, row, 1)[0]
        return batch, place

    def fill(self, block: Block, batch: Batch, place: int, sample: Any) -> list[Batch]:
        """The sample placed there has been written; returns the batches that it completes."""
        completed: list[Batch] = []
        self._fill(block, batch, place, [sample], completed)
        return completed + self._complete_last()

    def fail(self, block: Block, row: int, error: Any) -> list[Batch]:
        """The ticket of `row` failed; returns a batch that the end of the epoch completes."""
        if not self._decide(block, row, 1):
            self._due.drop(error)
            return []
        self._unfilled -= 1
        self.recorder.settled(block, (row,), Outcome.FAILED)
        before = None if block.batch is None else block.batch.failure
        batch = self._builder.fail(block, row, error)
        # What was finished of a lost batch is not kept: neither its memory nor its places. Nor is a
        # failure that is not the first.
        self._due.drop(error if batch.failure is before else before, batch.samples, batch.rows)
        self._lost.append(batch)
        self.feed.leave_window(block, (batch.held + 1) * block.unit)
        batch.forget_samples()
        self._report(block, batch)
        return self._complete_last()

    def skip(self, block: Block, row: int) -> list[Batch]:
        """The ticket of `row` failed and its sample is left out; returns the batches that this
        completes."""
        if not self._decide(block, row, 1):
            return []
        self._unfilled -= 1
        self.recorder.settled(block, (row,), Outcome.SKIPPED)
        self.feed.leave_window(block, block.unit)
        batch = block.batch
        if batch is None:
            # An item of its own, as a failure would be: the consumer has to draw another sample.
            gap = Batch(1, block.unit, [block.indices[row]])
            gap.positions = [block.positions[row : row + 1]]
            gap.void = True
            self.delivery.put(gap)
            return self._complete_last()
        if batch.lost:
            self._report(block, batch)
            return []
        self.feed.account_for(block.unit)  # the batch will be shorter
        batch.skip(row)
        return [] if batch.missing else [batch]

    def expire(self, block: Block, row: int) -> bool:
        """The ticket of `row` will be decided otherwise than by its result: what comes of it is
        dropped until it is reopened. False: it is decided already."""
        if not self._decide(block, row, 1):
            return False
        if self.details is not None:
            self.details.expired(block, row)
        return True

    def reopen(self, block: Block, row: int) -> None:
        """The ticket of `row`, which has expired, can be decided."""
        block.settled[row] = 0

    def _decide(self, block: Block, row: int, count: int) -> bool:
        """The one state change that makes tickets count; False: somebody else's result did."""
        if self.abandoned or block.settled.find(1, row, row + count) >= 0:
            return False
        block.settled[row : row + count] = b"\x01" * count
        return True

    def _finished(self, block: Block, row: int, count: int) -> None:
        """The tickets from `row` on have just been decided: they became samples."""
        if self.details is not None:
            self.details.settled(block, range(row, row + count), Outcome.FINISHED)

    def _fill(
        self, block: Block, batch: Batch, place: int, samples: list[Any], completed: list[Batch]
    ) -> None:
        self._unfilled -= len(samples)
        if batch.lost:
            self._due.drop(samples)
            self.feed.leave_window(block, len(samples) * block.unit)
            self._report(block, batch)
            return
        batch.put(place, samples)
        if not batch.missing:
            completed.append(batch)

    def _report(self, block: Block, batch: Batch) -> None:
        if not (batch.ready or self.abandoned) and self._builder.reportable(block, batch):
            self.delivery.put(batch)

    def _complete_last(self) -> list[Batch]:
        if not self.feed.drawn_all or self._unfilled:
            return []
        batch = self._builder.unfinished()
        if batch is None:
            return []
        if self._drop_last:
            self._due.drop(batch)
            self.feed.release(batch.held * batch.unit, batch.size * batch.unit)
            self.delivery.wake()
            return []
        return [batch]

    def collated(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        """A worker has collated `batch`, or failed to."""
        if self.abandoned:
            self._due.drop(batch, content, failure)
            return
        batch.content, batch.failure = content, failure
        if self.stage is not None and failure is None and not batch.void:
            self.stage.enter(batch)
        else:
            self._complete(batch)

    def staged(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        """The stage has made `content` of `batch`, or has failed to."""
        if self.abandoned:
            self._due.drop(batch, content, failure)
            return
        batch.content, batch.failure = content, failure
        self._complete(batch)

    def ahead_of(self, batch: Batch, begun: int) -> int:
        """As `Delivery.ahead_of`."""
        if self._consumers > 1 and batch.consumer is None:
            return self._begun_for(self._least_served())
        return self.delivery.ahead_of(batch, begun)

    def stage_begins(self, batch: Batch) -> None:
        """The stage begins to work on `batch`. Of several consumers it is for the one that has the
        fewest: what is on its way to one device cannot be for another."""
        if self._consumers > 1 and batch.consumer is None:
            self._mean(batch, self._least_served())
            if self.feed.drawn_all:
                self.delivery.wake()  # it may have been the last that another could wait for

    def _least_served(self) -> int:
        there = [n for n in range(self._consumers) if n not in self.delivery.gone]
        return min(there, key=self._begun_for, default=0)

    def _begun_for(self, consumer: int) -> int:
        return 0 if self.stage is None else self.stage.begun_for(consumer)

    def _complete(self, batch: Batch) -> None:
        """Nothing is left to be done with `batch`."""
        if self._comes_last(batch):
            self.delivery.hold(batch)
            self._let_last_go()
        else:
            self.delivery.put(batch)

    def _comes_last(self, batch: Batch) -> bool:
        """Whether `batch` is the short one at the end of the epoch: metrics take what comes last
        for the short one. As drawn, it may turn out later that it was not the last."""
        if self._by_position or batch.void or not batch.size or self._consumers > 1:
            return False
        short = batch.size * batch.unit < self._batch_size
        return short and (batch is self._latest or not self._as_drawn)

    def _let_last_go(self) -> None:
        """If there is nothing that the last batch has to wait for."""
        held = sum(batch.size * batch.unit for batch in self.delivery.held)
        if self.feed.outstanding <= held:
            self.delivery.let_go()

    def abandon(self) -> Sequence[Job]:
        """The consumer will not come back: forget what is loaded, wake whoever waits."""
        self.abandoned = True
        left_over, self._left_over = self._left_over, []
        batches = self.delivery.clear()
        if self.stage is not None:
            batches += self.stage.clear()
        # From the frames in its traceback a failure leads back to its batch.
        failures = [batch.take_failure() for batch in (*batches, *self._lost)]
        self._lost.clear()  # the others are in blocks
        self._due.drop(left_over, self.feed.clear(), batches, failures)
        self.delivery.wake()
        return ()
