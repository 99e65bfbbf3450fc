"""An epoch as plain state: random sequences of what workers and a consumer may do to it."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from minato_async.engine.batch import Batch
from minato_async.engine.bell import DueBells
from minato_async.engine.counts import Counts
from minato_async.engine.epoch import Epoch, Order
from minato_async.engine.feed import Block, Claim
from minato_async.engine.stage import Stage

from .claims import claim_of

IN_ORDER = Order(as_drawn=True, by_position=True)
WHOLE_BATCHES = Order(as_drawn=True, by_position=False)
READY_FIRST = Order(as_drawn=False, by_position=False)


def double(batch: Batch, content: Any) -> Any:
    """What a stage does here."""
    return content * 2


class Failed(Exception):
    """The failure of one sample, or of one batch while it was collated."""


@dataclass
class Work:
    """A claim in the hands of a worker: it goes through the rows in turn."""

    block: Block
    row: int
    stop: int
    #: A sample that has its place and is being written.
    placed: tuple[Batch, int, Any] | None = None

    @property
    def done(self) -> bool:
        return self.row == self.stop and self.placed is None


@dataclass
class Drawn:
    """One drawn batch, and what became of its tickets."""

    indices: list[int]
    unit: int
    failed_rows: set[int] = field(default_factory=set)
    #: A worker was not waited for: which failure is the batch's is a matter of time.
    expired: bool = False
    items: int = 0


class EpochMachine(RuleBasedStateMachine):
    """Plays the consumer and any number of workers, in every order, and keeps its own books."""

    #: Seconds a sample: enough to be claimed in twos and threes.
    cost = 0.0004

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Drawn] = []
        self.next_index = 0
        self.ended = False
        self.abandoned = False
        self.working: list[Work] = []
        self.to_collate: list[Batch] = []
        self.blocks: list[Block] = []
        self.claimed: Counter[int] = Counter()
        #: Indices that were claimed out of turn.
        self.early: set[int] = set()
        self.settled: Counter[int] = Counter()
        #: Tickets that have expired, with nothing done about it yet.
        self.expired: list[tuple[Block, int]] = []
        self.failed: set[int] = set()
        self.skipped: set[int] = set()
        #: Samples that were delivered in a batch, or with a batch that could not be collated.
        self.delivered: Counter[int] = Counter()
        self.errors: list[BaseException] = []
        self.popped = 0
        self.collate_failures = 0
        #: What the stage's thread is working on, and failures of that.
        self.staging: Batch | None = None
        self.stage_failures = 0

    @initialize(
        order=st.sampled_from([IN_ORDER, WHOLE_BATCHES, READY_FIRST]),
        drop_last=st.booleans(),
        window=st.none() | st.integers(1, 12),
        seed=st.integers(0, 2**32),
        skips=st.booleans(),
        bound=st.sampled_from([0, 0, None, 1, 2, 3]),
        overtakes=st.none() | st.integers(0, 2),
    )
    def begin(
        self,
        order: Order,
        drop_last: bool,
        window: int | None,
        seed: int,
        skips: bool,
        bound: int | None,
        overtakes: int | None,
    ) -> None:
        # Chances are even, so that few runs are idle: hypothesis would favour some choices.
        self.random = random.Random(seed)
        self.order = Order(order.as_drawn, order.by_position, drop_last, overtakes)
        self.window = window
        #: Samples that fail are skipped.
        self.skips = skips
        self.counts = Counts()
        self.epoch = Epoch(self.order, window, DueBells(), self.counts)
        if order.as_drawn:
            self.epoch.feed.kept_for_early = self.random.choice([0, 1, 5, 100])
        #: Batches that the stage may have done; 0: there is no stage.
        self.stage_bound = bound
        if bound != 0:
            self.epoch.stage = Stage(double, bound, lambda: None)
        #: Size of a batch, and what each index of it stands for.
        self.to_draw: list[tuple[int, int]]
        batches = range(self.random.randint(2, 8))
        if self.random.random() < 0.2:
            # Tickets that are batches, as those for a dataset that fetches batches itself.
            self.to_draw = [(1, self.random.randint(1, 4)) for _ in batches]
            if not order.as_drawn:
                # As in the following, all but the last are of one size.
                self.to_draw = [(1, 4) for _ in batches] + self.to_draw[:1]
        elif order.as_drawn:
            self.to_draw = [(self.random.randint(0, 6), 1) for _ in batches]
        else:
            # Samples change places only between batches of torch's own batch sampler, which are of
            # one size, but for the last.
            size = self.random.randint(2, 6)
            self.to_draw = [(size, 1) for _ in batches] + [(self.random.randint(1, size), 1)]
        self.size = max(size for size, _ in self.to_draw)

    # The books

    def drawn_of(self, block: Block) -> Drawn:
        return next(d for d in self.drawn if d.indices and d.indices[0] == block.indices[0])

    @property
    def claimed_ahead(self) -> int:
        """Samples that were claimed out of turn and not delivered."""
        waiting = [d for d in self.drawn if not d.items]
        return sum(d.unit for d in waiting for index in d.indices if index in self.early)

    @property
    def bound(self) -> int:
        """Samples that may be in the window: as many as the largest batch has that is under way,
        if that is more."""
        blocks = [work.block for work in self.working] + [block for block, _ in self.expired]
        busy = [self.drawn_of(block) for block in blocks]
        due = [d for d in self.drawn if not d.items]
        largest = max((len(d.indices) * d.unit for d in busy + due), default=0)
        # A large batch that was drawn later is admitted beside what was claimed early.
        return max(self.window or sys.maxsize, largest + self.claimed_ahead)

    @rule()
    def anything(self) -> None:
        choose = self.random.choice
        idle = [work for work in self.working if work.placed is None]
        writing = [work for work in self.working if work.placed is not None]
        can: list[Callable[[], None]] = [self.claim, self.claim, self.claim_early]
        if not self.abandoned:
            can += [self.pop, self.pop]
            can += [self.draw] * (0 if self.ended else 2)
        if idle:
            work = choose(idle)
            left = work.stop - work.row
            can += [lambda: self.settle(work, self.random.randint(1, left))] * 3
            can += [lambda: self.fail(work), lambda: self.place(work), lambda: self.expire(work)]
            if left > 1:
                can += [lambda: self.put_back(work)]
            can += [lambda: self.put_back_all(work)]
        if writing:
            can += [lambda: self.fill(choose(writing))] * 2
        if self.expired:
            can += [lambda: self.resolve(replace=self.random.random() < 0.5)]
        if self.to_collate:
            batch = choose(self.to_collate)
            can += [lambda: self.collate(batch, fails=self.random.random() < 0.15)] * 3
        if self.epoch.stage is not None:
            can += [lambda: self.work(fails=self.random.random() < 0.1)] * 3
        if self.settled and not self.abandoned:
            can += [self.late_result]
            if self.random.random() < 0.003:
                can = [self.abandon]
        choose(can)()

    # What the consumer does

    def draw(self) -> None:
        if not self.to_draw:
            self.ended = True
            self.epoch.end_draw()
            return
        size, unit = self.to_draw.pop(0)
        indices = list(range(self.next_index, self.next_index + size))
        self.next_index += size
        self.drawn.append(Drawn(indices, unit))
        self.blocks.append(self.epoch.draw(indices, unit))

    def pop(self) -> None:
        batch = self.epoch.pop()
        if batch is None:
            return
        self.popped += 1
        if batch.failure is not None:
            self.errors.append(batch.failure)
        if batch.lost:
            assert batch.failure is not None
            self.check_failure(batch)
        elif batch.void:
            assert batch.content is None
        elif self.epoch.stage is not None and batch.failure is None:
            assert batch.content == batch.indices * 2, "the stage has been at it, once"
            self.delivered.update(batch.indices)
        else:
            assert batch.content == batch.indices, "each row is the sample of its index"
            self.delivered.update(batch.content)
        if self.order.as_drawn:
            self.check_turn(batch)
        if not self.order.by_position:
            self.check_short(batch)

    def check_short(self, batch: Batch) -> None:
        """A short batch comes after all others, and after the failures of samples."""
        if batch.lost or batch.void or not batch.size:
            return
        largest = max(len(d.indices) * d.unit for d in self.drawn)
        short = batch.size * batch.unit < largest
        if short and (not self.order.as_drawn or self.may_be(batch, self.drawn[-1])):
            assert self.epoch.feed.outstanding == 0

    def check_turn(self, batch: Batch) -> None:
        """A batch as drawn, of those that are due."""
        due = [d for d in self.drawn if not d.items]
        if self.order.by_position:
            due = due[:1]
        drawn = next(d for d in due if self.may_be(batch, d))
        drawn.items += 1

    def may_be(self, batch: Batch, drawn: Drawn) -> bool:
        return batch.indices == [i for i in drawn.indices if i not in self.skipped]

    def check_failure(self, batch: Batch) -> None:
        """Of several failed rows the first, and nothing before it can fail any more."""
        if not self.order.as_drawn:
            return
        drawn = next(d for d in self.drawn if d.indices == batch.indices)
        if drawn.expired:
            return
        first = min(drawn.failed_rows)
        assert batch.failure is not None
        assert batch.failure.args == (drawn.indices[first],)
        assert all(self.settled[index] for index in drawn.indices[:first])

    # What workers do

    def claim(self) -> None:
        feed, waiting = self.epoch.feed, self.epoch.jobs_waiting
        room = feed.in_window < (self.window or sys.maxsize) - feed.kept_for_early
        claim = claim_of(self.epoch)
        if claim is None:
            return
        assert not self.abandoned
        # Workers sleep until as many are woken as there are jobs waiting.
        assert waiting or not room
        self.to_collate += claim.completed
        self.claimed.update(claim.block.indices[claim.start : claim.stop])
        if claim.start < claim.stop:
            self.working.append(Work(claim.block, claim.start, claim.stop))

    def claim_early(self) -> None:
        """Any ticket that was drawn, of whatever block: claimed before, settled, lost or not."""
        if not self.blocks:
            return
        block = self.random.choice(self.blocks[-4:])
        if not block.indices:
            return
        row = self.random.randrange(len(block.indices))
        claim = self.epoch.feed.claim_early(block, row)
        if claim is None:
            return
        assert not self.abandoned
        assert (claim.block, claim.start, claim.stop, claim.early) == (block, row, row + 1, True)
        self.claimed[block.indices[row]] += 1
        self.early.add(block.indices[row])
        self.working.append(Work(block, row, row + 1))

    def move_on(self, work: Work, rows: int = 1) -> None:
        work.row += rows
        if work.done:
            self.working.remove(work)

    def settle(self, work: Work, count: int) -> None:
        samples = list(work.block.indices[work.row : work.row + count])
        self.epoch.observe(work.block, work.row, [self.cost * count], count)
        completed = self.epoch.settle(work.block, work.row, samples)
        assert not (completed and self.abandoned)
        self.to_collate += completed
        self.settled.update(samples)
        self.move_on(work, count)

    def fail(self, work: Work) -> None:
        # As jobs do, for what was run before the failure: here nothing.
        self.to_collate += self.epoch.settle(work.block, work.row, [])
        self.fail_ticket(work.block, work.row)
        self.settled[work.block.indices[work.row]] += 1
        self.move_on(work)

    def fail_ticket(self, block: Block, row: int) -> None:
        index = block.indices[row]
        if self.skips:
            self.to_collate += self.epoch.skip(block, row)
        else:
            self.to_collate += self.epoch.fail(block, row, Failed(index))
        if self.abandoned:
            return
        if self.skips:
            self.skipped.add(index)
        else:
            self.failed.add(index)
            self.drawn_of(block).failed_rows.add(row)

    def place(self, work: Work) -> None:
        """Give the next sample its place, and begin to write it there."""
        index = work.block.indices[work.row]
        placed = self.epoch.place(work.block, work.row)
        self.settled[index] += 1
        assert (placed is None) is self.abandoned
        if placed is not None:
            work.placed = (*placed, index)
        self.move_on(work)

    def fill(self, work: Work) -> None:
        assert work.placed is not None
        batch, place, sample = work.placed
        work.placed = None
        self.to_collate += self.epoch.fill(work.block, batch, place, sample)
        self.move_on(work, 0)

    def put_back(self, work: Work) -> None:
        """The running sample is slow: what stands behind it is for others."""
        if self.abandoned:
            return  # nobody watches then
        rest = work.block.indices[work.row + 1 : work.stop]
        self.epoch.feed.put_back(work.block, work.row + 1, work.stop)
        self.claimed.subtract(rest)
        work.stop = work.row + 1

    def put_back_all(self, work: Work) -> None:
        """The worker has died: others run what it had."""
        if self.abandoned:
            return
        rest = work.block.indices[work.row : work.stop]
        self.epoch.feed.put_back(work.block, work.row, work.stop)
        self.claimed.subtract(rest)
        self.working.remove(work)

    def expire(self, work: Work) -> None:
        """The running sample is not waited for any longer; what comes of it is dropped."""
        block, row = work.block, work.row
        assert self.epoch.expire(block, row) is not self.abandoned
        if not self.abandoned:
            self.expired.append((block, row))
            self.drawn_of(block).expired = True
        assert self.epoch.settle(block, row, ["late"]) == []
        self.settled[block.indices[row]] += 1
        self.move_on(work)

    def resolve(self, replace: bool) -> None:
        """Do something about a ticket that has expired."""
        block, row = self.expired.pop(0)
        self.epoch.reopen(block, row)
        if replace:
            self.to_collate += self.epoch.settle(block, row, [block.indices[row]])
        else:
            self.fail_ticket(block, row)

    def late_result(self) -> None:
        """Of a ticket that is decided: whatever it is, nobody may notice."""
        index = self.random.choice(sorted(self.settled))
        block = self.block_with(index)
        if block is None:
            return
        row = list(block.indices).index(index)
        before = self.state()
        assert self.epoch.settle(block, row, ["late"]) == []
        assert self.epoch.fail(block, row, Failed("late")) == []
        assert self.epoch.skip(block, row) == []
        assert self.epoch.place(block, row) is None
        assert not self.epoch.expire(block, row)
        assert self.state() == before

    def block_with(self, index: int) -> Block | None:
        blocks = (work.block for work in self.working)
        return next((block for block in blocks if index in block.indices), None)

    def state(self) -> tuple[int, ...]:
        feed = self.epoch.feed
        return feed.in_window, feed.outstanding, self.epoch.batches_ahead, self.counts.failed

    def collate(self, batch: Batch, fails: bool) -> None:
        self.to_collate.remove(batch)
        batch.drop_skipped_rows()
        samples = None if batch.void else list(batch.samples)
        assert batch.void or samples == batch.indices, "a batch that is collated is full"
        batch.samples = [None] * batch.size
        fails = fails and not batch.void
        if fails and not self.abandoned:
            self.collate_failures += 1
        self.epoch.collated(batch, samples, Failed("collate") if fails else None)

    def work(self, fails: bool = False) -> bool:
        """What the stage's thread does: begin with a batch, or come to the end of one."""
        stage, batch = self.epoch.stage, self.staging
        assert stage is not None
        if batch is None:
            self.staging = stage.next(self.epoch.ahead_of)
            return self.staging is not None
        self.staging = None
        content = batch.take_content()
        stage.done(batch, 8)
        if fails and not self.abandoned:
            self.stage_failures += 1
            self.epoch.staged(batch, batch.indices, Failed("stage"))
        else:
            self.epoch.staged(batch, stage.work(batch, content), None)
        return True

    def abandon(self) -> None:
        self.epoch.abandon()
        self.abandoned = True

    # What always holds

    @invariant()
    def nothing_twice(self) -> None:
        for counts in (self.claimed, self.settled, self.delivered):
            assert all(count <= 1 for count in counts.values())
        assert not self.delivered.keys() & (self.failed | self.skipped)

    @invariant()
    def window_is_kept(self) -> None:
        if not hasattr(self, "epoch") or self.abandoned:
            return
        assert 0 <= self.epoch.feed.in_window <= self.bound
        assert self.epoch.feed.outstanding >= 0

    @invariant()
    def batch_that_is_due_is_admitted(self) -> None:
        """Whatever was claimed early: or else nothing would ever be delivered again."""
        if not hasattr(self, "epoch") or self.abandoned or not self.order.by_position:
            return
        due = next((d for d in self.drawn if not d.items), None)
        if due is None or due.failed_rows:
            return
        busy = [work.block for work in self.working] + [block for block, _ in self.expired]
        if any(self.drawn_of(block).failed_rows for block in busy):
            return  # what still runs of a lost batch keeps its places until then
        if any(not self.claimed[index] for index in due.indices):
            assert self.epoch.feed.claimable
            assert self.epoch.jobs_waiting

    @invariant()
    def stage_is_bounded(self) -> None:
        """By its bound, and one more where batches come as they complete: where so many only may
        be overtaken, the one that holds up the others; and a short one that is held to the end
        takes no place, but may turn out later not to be the last."""
        if not hasattr(self, "epoch") or self.epoch.stage is None or self.stage_bound is None:
            return
        held = len(self.epoch.delivery.held)
        more = not self.order.by_position
        assert self.epoch.stage.begun - held <= self.stage_bound + more
        assert self.epoch.stage.nbytes <= 8 * self.epoch.stage.begun

    @invariant()
    def abandoned_epoch_gives_nothing(self) -> None:
        if self.abandoned:
            assert self.epoch.finished
            assert self.epoch.pop() is None
            assert claim_of(self.epoch) is None
            for block in self.blocks[-3:]:
                for row in range(len(block.indices)):
                    assert self.epoch.feed.claim_early(block, row) is None

    @invariant()
    def end_is_not_seen_too_early(self) -> None:
        if not hasattr(self, "epoch") or self.abandoned or not self.epoch.finished:
            return
        assert self.ended
        self.check_all_is_delivered()

    def teardown(self) -> None:
        """Let everybody do what is left, until nobody has anything to do."""
        if hasattr(self, "epoch"):
            while not self.ended and not self.abandoned:
                self.draw()
            while self.step():
                self.nothing_twice()
                self.window_is_kept()
            self.check_end()

    def step(self) -> bool:
        if self.working:
            work = self.working[0]
            if work.placed:
                self.fill(work)
            else:
                self.settle(work, 1)
            return True
        if self.expired:
            self.resolve(replace=False)
            return True
        if self.to_collate:
            self.collate(self.to_collate[0], fails=False)
            return True
        if self.epoch.stage is not None and self.work():
            return True
        if self.abandoned:
            return False
        before = self.progress()
        self.claim_early()
        self.claim()
        self.pop()
        return self.progress() != before

    def progress(self) -> tuple[int, int, int]:
        return self.epoch.feed.unclaimed, len(self.to_collate), self.popped

    def check_end(self) -> None:
        assert self.epoch.finished, "stuck: nobody can go on, and it is not the end"
        if self.abandoned:
            return
        feed = self.epoch.feed
        assert (feed.in_window, feed.outstanding, feed.unclaimed) == (0, 0, 0)
        assert self.epoch.jobs_waiting == 0
        if self.epoch.stage is not None:
            assert (self.epoch.stage.begun, self.epoch.stage.pending) == (0, 0)
        self.check_all_is_delivered()
        errors = [e.args for e in self.errors]
        assert errors.count(("collate",)) == self.collate_failures
        assert errors.count(("stage",)) == self.stage_failures

    def check_all_is_delivered(self) -> None:
        drawn = {index for d in self.drawn for index in d.indices}
        if self.order.as_drawn:
            assert all(d.items == 1 for d in self.drawn)
            lost = {index for d in self.drawn if d.failed_rows for index in d.indices}
            assert self.delivered.keys() == drawn - lost - self.skipped
        else:
            assert set(+self.claimed) == drawn
            whole = (("collate",), ("stage",))
            reported = [error.args[0] for error in self.errors if error.args not in whole]
            assert sorted(reported) == sorted(self.failed)
            missing = drawn - self.delivered.keys() - self.failed - self.skipped
            assert len(missing) < self.size
            assert self.order.drop_last or not missing


EpochMachine.TestCase.settings = settings(max_examples=400, stateful_step_count=60)
TestEpochMachine = EpochMachine.TestCase


class Rings:
    """A bell that counts."""

    def __init__(self) -> None:
        self.count = 0

    def ring(self) -> None:
        self.count += 1


def settle_all(epoch: Epoch, claim: Claim | None) -> list[Batch]:
    assert claim is not None
    block = claim.block
    epoch.observe(block, claim.start, [1e-6], claim.stop - claim.start)
    return epoch.settle(block, claim.start, list(block.indices[claim.start : claim.stop]))


def deliver(epoch: Epoch, batches: list[Batch]) -> list[Any]:
    for batch in batches:
        epoch.collated(batch, list(batch.samples), None)
    found = []
    while (batch_or_none := epoch.pop()) is not None:
        found.append(batch_or_none.content)
    return found


class TestEndOfEpoch:
    def test_what_remains_is_for_the_next_idle_worker(self) -> None:
        """Ready-first: nobody knows that the last batch is the last before the sampler ends."""
        epoch = Epoch(READY_FIRST, None, DueBells())
        epoch.draw("abc")
        claim = claim_of(epoch)
        assert claim is not None
        completed = epoch.fail(claim.block, 0, Failed("a"))
        while (claim := claim_of(epoch)) is not None:
            completed += settle_all(epoch, claim)
        assert completed == []
        assert epoch.jobs_waiting == 0
        epoch.end_draw()
        assert epoch.jobs_waiting == 1
        left = claim_of(epoch)
        assert left is not None
        assert [batch.samples for batch in left.completed] == [["b", "c"]]
        failure = epoch.pop()
        assert failure is not None
        assert failure.failure is not None
        assert not epoch.finished
        assert deliver(epoch, list(left.completed)) == [["b", "c"]]
        assert epoch.finished

    def test_waiting_consumers_hear_that_the_last_batch_is_dropped(self) -> None:
        due, bell = DueBells(), Rings()
        epoch = Epoch(Order(as_drawn=False, by_position=False, drop_last=True), None, due)
        epoch.draw("ab")
        epoch.end_draw()
        claim = claim_of(epoch)
        assert claim is not None
        epoch.fail(claim.block, 0, Failed("a"))
        assert epoch.pop() is not None
        epoch.delivery.add_waiter(bell)
        assert settle_all(epoch, claim_of(epoch)) == []
        due.ring()
        assert bell.count == 1
        assert epoch.finished

    def test_empty_batch_at_the_end_is_waited_for(self) -> None:
        epoch = Epoch(IN_ORDER, None, DueBells())
        epoch.draw([])
        epoch.end_draw()
        assert not epoch.finished
        claim = claim_of(epoch)
        assert claim is not None
        assert not epoch.finished
        assert deliver(epoch, list(claim.completed)) == [[]]
        assert epoch.finished

    def test_nothing_drawn(self) -> None:
        epoch = Epoch(READY_FIRST, 3, DueBells())
        assert not epoch.finished
        epoch.end_draw()
        assert epoch.finished
        assert claim_of(epoch) is None


class TestAhead:
    def test_is_the_number_of_drawn_batches(self) -> None:
        epoch = Epoch(IN_ORDER, None, DueBells())
        for batch in ("abc", "", "d"):
            epoch.draw(batch)
        assert epoch.batches_ahead == 3
        assert deliver(epoch, settle_all(epoch, claim_of(epoch))) == []
        assert epoch.batches_ahead == 3

    @pytest.mark.parametrize("order", [IN_ORDER, READY_FIRST])
    def test_does_not_count_samples_where_tickets_are_batches(self, order: Order) -> None:
        epoch = Epoch(order, None, DueBells())
        for key in range(3):
            epoch.draw([[key] * 8], unit=8)
        assert epoch.batches_ahead == 3

    def test_part_of_a_batch_is_none(self) -> None:
        """What is missing from it may have to be drawn."""
        epoch = Epoch(READY_FIRST, None, DueBells())
        epoch.draw("abcd")
        assert epoch.batches_ahead == 1
        claim = claim_of(epoch)
        assert claim is not None
        epoch.fail(claim.block, 0, Failed("a"))
        assert epoch.pop() is not None
        assert epoch.batches_ahead == 0


class TestWindow:
    def test_lets_a_smaller_block_complete_the_batch_being_formed(self) -> None:
        """Ready-first, and the window smaller than a batch: of four samples one failed, and the
        batch of four needs one of the next two, though there are more than two in the window."""
        epoch = Epoch(READY_FIRST, 2, DueBells())
        epoch.draw("abcd")
        epoch.draw("ef")
        epoch.end_draw()
        claim = claim_of(epoch)
        assert claim is not None
        epoch.fail(claim.block, 0, Failed("a"))
        completed = []
        while (claim := claim_of(epoch)) is not None:
            completed += settle_all(epoch, claim)
        assert [batch.samples for batch in completed] == [["b", "c", "d", "e"]]
        failure = epoch.pop()
        assert failure is not None
        assert deliver(epoch, completed) == [["b", "c", "d", "e"]]
        assert deliver(epoch, settle_all(epoch, claim_of(epoch))) == [["f"]]
        assert epoch.finished
        assert epoch.feed.in_window == 0


class TestAbandoned:
    def test_wakes_whoever_waits(self) -> None:
        due, bell = DueBells(), Rings()
        epoch = Epoch(IN_ORDER, None, due)
        epoch.draw("ab")
        epoch.delivery.add_waiter(bell)
        epoch.abandon()
        due.ring()
        assert bell.count == 1
        assert epoch.finished

    def test_sample_that_was_being_written_to_a_lost_batch(self) -> None:
        """Row 2 has failed, row 1 is being written, which makes the failure final: but there is
        nobody any more to deliver it to."""
        epoch = Epoch(IN_ORDER, None, DueBells())
        epoch.draw("abc")
        claims = [claim_of(epoch) for _ in range(3)]
        block = claims[0].block  # type: ignore[union-attr]
        epoch.fail(block, 2, Failed("c"))
        epoch.settle(block, 0, ["a"])
        placed = epoch.place(block, 1)
        assert placed is not None
        epoch.abandon()
        assert epoch.fill(block, *placed, "b") == []
        assert epoch.pop() is None
