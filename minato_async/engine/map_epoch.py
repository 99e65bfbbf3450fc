"""The epoch of a map-style dataset: its state, its lanes, and who gets which job next."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minato_async.engine.assigned_feed import AssignedFeed
from minato_async.engine.batch import Batch
from minato_async.engine.early_claims import EarlyClaims
from minato_async.engine.epoch import Epoch, Order
from minato_async.engine.feed import Block, Claim
from minato_async.engine.lanes import Lanes, Sample
from minato_async.engine.loading import Sync
from minato_async.engine.protocols import Job, Worker
from minato_async.engine.recipe import Recipe
from minato_async.errors import Unmade
from minato_async.scheduling.cost_book import WORTH_NOTING, EpochCosts
from minato_async.scheduling.costs import RecentCosts, summary
from minato_async.scheduling.threshold import Threshold
from minato_async.stats import Stats, StepCosts

#: Of claims of several tickets, one in so many is looked at.
_CHEAP_STRIDE = 16


class MapEpoch(Epoch, ABC):
    """The epoch of a map-style dataset. The caller of every method holds the engine's lock."""

    def __init__(
        self,
        recipe: Recipe,
        order: Order,
        window: int | None,
        threshold: Threshold,
        sync: Sync,
    ) -> None:
        super().__init__(order, window, sync.due, sync.recorder)
        self.recipe = recipe
        self.sync = sync
        self.threshold = threshold
        #: Samples that fail are left out.
        self.skips = isinstance(recipe.on_error, str) and recipe.on_error == "skip"
        self.costs = RecentCosts()
        #: What is known of the costs of samples, by index; None: nobody wants to know.
        self._cost_book: EpochCosts | None = None
        #: It knows slow samples, which may be among those that are timed together.
        self._notes_all = False
        #: What is claimed early; None: nothing.
        self._early: EarlyClaims | None = None
        self._cheap_claims = 0
        self.lanes = Lanes(sync.slots, sync.due)
        #: In order, what is slow is what everybody waits for: letting others go first would only
        #: make them wait longer. Where batches belong to workers, what one of them loads before
        #: another sample is not to be changed.
        self.diverts = not order.by_position and self.assigned is None
        self.any_worker_will_do = self.assigned is None
        self.order_is_optional = order.optional
        #: Tickets that have expired, with nothing done about it yet.
        self._failed: deque[tuple[Block, int, Unmade]] = deque()
        #: (index, error) of samples that were skipped.
        self.skipped: list[tuple[Any, Any]] = []

    def remember(self, costs: EpochCosts, claims_early: bool) -> None:
        """Note in `costs` what samples cost. `claims_early`: those that are known to be slow are
        claimed early, unless batches belong to workers."""
        self._cost_book, self._notes_all = costs, costs.slowest > 0
        if claims_early and costs.slowest and self.assigned is None:
            workers = self.sync.slots.wanted
            self._early = EarlyClaims(self.feed, costs, workers, self._as_drawn, self._due)

    def claim_none_early(self) -> None:
        if self._early is not None:
            self._early.stop()

    def draw(
        self,
        indices: Sequence[Any],
        unit: int = 1,
        repeats: Sequence[int] = (),
        positions: Sequence[int] | None = None,
        slow: Sequence[tuple[int, float]] = (),
    ) -> Block:
        """As `Epoch.draw`; `slow` are numbers of indices whose samples are known to be slow, and
        what these cost, in seconds; 0: that is to be found out."""
        block = super().draw(indices, unit, repeats, positions)
        if slow and self._early is not None:
            self._early.add(block, slow)
        return block

    @property
    def in_flight(self) -> int:
        """Samples that may be claimed at once: the window, or all that is drawn."""
        return min(self.feed.window, self.feed.outstanding)

    @property
    def stuck_after(self) -> float:
        return self.threshold.stuck_after

    @property
    def parks(self) -> bool:
        return self.diverts and math.isfinite(self.threshold.seconds)

    @property
    def finished_samples(self) -> int:
        return self.threshold.observed

    @property
    def queued(self) -> tuple[int, int]:
        in_window = -(-self.feed.window // self._batch_size)
        pending = 0 if self.stage is None else self.stage.pending
        return self.delivery.ready + pending, max(1, min(self.batches_ahead, in_window))

    @property
    def backlog(self) -> tuple[int, int, float]:
        return len(self.lanes.temp_queue), self.in_flight, self.threshold.seconds

    @property
    def jobs_waiting(self) -> int:
        if self.assigned is not None:
            # Whoever is woken may not be the one whose job it is: wake all.
            return self.sync.slots.threads if self._idle_are_waited_for(self.assigned) else 0
        early = 0 if self._early is None else self._early.claimable(self.sync.slots.wanted)
        return super().jobs_waiting + early + len(self.lanes.temp_queue) + len(self._failed)

    def _idle_are_waited_for(self, assigned: AssignedFeed) -> bool:
        waited_for = assigned.waited_for
        waited_for.update(batch.owner for batch in self._left_over)
        waited_for.update(block.owner for block, _, _ in self._failed)
        busy = {entry.worker.number for entry in self.sync.slots.running.values()}
        return not waited_for <= busy

    def next_job(self, worker: Worker) -> Job | None:
        if self.assigned is not None:
            return self._own_job(worker, self.assigned)
        if self._left_over:
            return self._left_over_job()
        slots, lanes = self.sync.slots, self.lanes
        while slots.free:
            if self._failed:
                return self._failed_job(*self._failed.popleft())
            entry = lanes.next_due() if lanes.wants_worker(self.in_flight) else None
            if entry is None:
                claim = self._next_tickets()
                if claim is not None:
                    return self._claim_job(self._claimed(claim, worker))
                if (entry := lanes.next_due()) is None:
                    return None
            sample = lanes.resume(entry)
            if sample is not None:
                if self.details is not None:
                    self.details.resumed(sample.block, sample.row, worker.name)
                return self._slow_job(sample)
            if worker.shares and slots.runs_as(worker.number):
                # The one that goes on has its number: another worker takes what there is.
                self.wake_for_work()
                return None
        return None

    def next_claim(self, worker: Worker) -> Claim | None:
        """What `worker` goes on with, straight from a claim that it has settled; None: it is to
        ask for a job, for there may be one that comes first."""
        if self.abandoned or self.assigned is not None:
            return None
        if self._left_over or self._failed or self.lanes.temp_queue:
            return None
        if worker.retiring or worker.shares or not self.sync.slots.go_on(worker):
            return None
        claim = self._next_tickets()
        self.sync.wake_next(self)
        return None if claim is None else self._claimed(claim, worker)

    def _claimed(self, claim: Claim, worker: Worker) -> Claim:
        """`claim`, which is `worker`'s from now on."""
        if self.details is not None and claim.stop > claim.start:
            self.details.claimed(claim.block, range(claim.start, claim.stop), worker.name)
        return claim

    def _most_tickets(self) -> int:
        """Tickets that one worker may claim now."""
        return self._claim_size.next()

    def _next_tickets(self) -> Claim | None:
        early = self._early
        if early is None:
            return self.feed.claim(self._most_tickets())
        workers = self.sync.slots.wanted
        return (
            early.claim(workers)
            or self.feed.claim(self._most_tickets())
            or early.claim(workers, idle=True)
        )

    def _own_job(self, worker: Worker, assigned: AssignedFeed) -> Job | None:
        """What is left to be done for the batch that this worker is making, or else its next."""
        number = worker.number
        batch = next((b for b in self._left_over if b.owner == number), None)
        if batch is not None:
            self._left_over.remove(batch)
            return self._collate_job(batch)
        if not self.sync.slots.free:
            return None
        failed = next((f for f in self._failed if f[0].owner == number), None)
        if failed is not None:
            self._failed.remove(failed)
            return self._failed_job(*failed)
        claim = assigned.claim_for(number)
        return None if claim is None else self._claim_job(self._claimed(claim, worker))

    def worker_ended(self, worker: Worker, how: str) -> None:
        """Any other does as well, or the next one of this number."""

    # What a worker does is the executor's affair: these are called with the engine's lock held.

    @abstractmethod
    def _left_over_job(self) -> Job:
        """Collates batches of `_left_over`, of which there is at least one."""

    @abstractmethod
    def _collate_job(self, batch: Batch) -> Job:
        """Collates `batch`, which is complete."""

    @abstractmethod
    def _claim_job(self, claim: Claim) -> Job:
        """Runs the tickets of `claim`."""

    @abstractmethod
    def _slow_job(self, sample: Sample) -> Job:
        """Goes on with a diverted sample."""

    @abstractmethod
    def _failed_job(self, block: Block, row: int, error: Unmade) -> Job:
        """Does what is to be done about a sample that has expired."""

    def wake_for_work(self) -> None:
        self.sync.wake_workers(self.jobs_waiting)

    def leave_to_collate(self, completed: Sequence[Batch]) -> None:
        """Batches that the caller cannot collate: the next idle worker does."""
        if completed:
            self._left_over += completed
        self.wake_for_work()

    def put_back(self, block: Block, start: int, stop: int) -> None:
        """The rows from `start` up to `stop` that nobody has decided are run again, or for the
        first time."""
        row = start
        while row < stop:
            if block.settled[row]:
                row += 1
                continue
            decided = block.settled.find(1, row, stop)
            following = stop if decided < 0 else decided
            self.feed.put_back(block, row, following)
            if self.details is not None:
                self.details.returned(block, range(row, following))
            if self._early is not None:
                self._early.put_back(block, row)
            row = following
        self.wake_for_work()

    def divert(self, sample: Sample) -> None:
        """`sample` is slow: it waits for the slow lane, its worker is free."""
        self.lanes.divert(sample)
        self.recorder.diverted(sample.block, sample.row)
        self.wake_for_work()

    def observe(
        self,
        block: Block,
        row: int,
        costs: Sequence[float],
        tickets: int = 1,
        long: Sequence[tuple[int, float]] = (),
    ) -> float:
        """As `Epoch.observe`; `long` tells which of several rows took long, and how long, as far
        as that is known."""
        seconds = super().observe(block, row, costs, tickets)
        book = self._cost_book
        if tickets == 1:
            if book is not None:
                book.observe(block.indices, row, 1, seconds)
                if self._early is not None:
                    self._early.finished(block, row, seconds)
        else:
            # So cheap that looking at each claim would cost as much as the samples.
            self._cheap_claims += 1
            looks = not self._cheap_claims % _CHEAP_STRIDE
            if book is not None:
                if seconds > WORTH_NOTING or self._notes_all:
                    book.observe(block.indices, row, tickets, seconds, long)
                elif looks:
                    book.count(_CHEAP_STRIDE * tickets, _CHEAP_STRIDE * seconds)
            if not looks:
                self.threshold.observed += tickets
                return seconds
        self.costs.observe(costs, tickets)
        self.threshold.observe(seconds / max(1, tickets), tickets)
        return seconds

    def failed_in(self, block: Block, row: int, error: Any) -> list[Batch]:
        """As `fail`, or as `skip` where the user wants that; then it is remembered which sample it
        was."""
        if not self.skips:
            return self.fail(block, row, error)
        if block.settled[row]:
            self._due.drop(error)
        else:
            self.skipped.append((block.indices[row], error))
        return self.skip(block, row)

    def expire_with(self, block: Block, row: int, error: Unmade) -> bool:
        """As `expire`; the next idle worker does what is to be done about `error`."""
        if not self.expire(block, row):
            return False
        self._failed.append((block, row, error))
        return True

    def stats(self) -> Stats:
        """What this epoch knows of its own state."""
        return Stats(
            slow_active=self.lanes.slow_running,
            in_window=self.feed.in_window,
            window=self.feed.bound,
            unclaimed=self.feed.unclaimed,
            claimed_early=0 if self._early is None else self._early.count,
            temp_queue=len(self.lanes.temp_queue),
            ready_batches=self.delivery.ready,
            threshold=self.threshold.seconds,
            finished=self.threshold.observed,
            skipped=tuple(self.skipped),
            displacement=self.delivery.displacement.seen,
            held_up=self.delivery.held_up,
        )

    def costs_so_far(self) -> Callable[[], tuple[StepCosts, ...]]:
        return partial(summary, self.costs.copy(), self.recipe.step_name)

    def abandon(self) -> Sequence[Job]:
        left = super().abandon()
        self.claim_none_early()
        self.lanes.clear()
        return left
