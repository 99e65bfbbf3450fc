"""An epoch as plain state: random sequences of what workers and a consumer may do to it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from minato_async.engine.batches import Batch
from minato_async.engine.bell import DueBells
from minato_async.engine.epoch import Epoch, Order
from minato_async.engine.feed import Block, Claim

IN_ORDER = Order(as_drawn=True, by_position=True)
WHOLE_BATCHES = Order(as_drawn=True, by_position=False)
READY_FIRST = Order(as_drawn=False, by_position=False)


class Failed(Exception):
    """The failure of one sample, or of one batch while it was collated."""


@dataclass
class Work:
    """A claim in the hands of a worker: it goes through the rows in turn."""

    claim: Claim
    row: int
    #: A sample that has its place and is being written.
    placed: tuple[Batch, int, Any] | None = None

    @property
    def done(self) -> bool:
        return self.row == self.claim.stop and self.placed is None


@dataclass
class Drawn:
    """One drawn batch, and what became of its tickets."""

    indices: list[int]
    unit: int
    failed_rows: set[int] = field(default_factory=set)
    items: int = 0


class EpochMachine(RuleBasedStateMachine):
    """Plays the consumer and any number of workers, in every order, and keeps its own books."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Drawn] = []
        self.next_index = 0
        self.ended = False
        self.abandoned = False
        self.working: list[Work] = []
        self.to_collate: list[Batch] = []
        self.claimed: Counter[int] = Counter()
        self.settled: Counter[int] = Counter()
        self.failed: set[int] = set()
        #: Samples that were delivered in a batch, or with a batch that could not be collated.
        self.delivered: Counter[int] = Counter()
        self.errors: list[BaseException] = []
        self.collate_failures = 0

    @initialize(
        order=st.sampled_from([IN_ORDER, WHOLE_BATCHES, READY_FIRST]),
        drop_last=st.booleans(),
        window=st.none() | st.integers(1, 12),
        size=st.integers(1, 5),
        fetches=st.booleans(),
    )
    def begin(
        self, order: Order, drop_last: bool, window: int | None, size: int, fetches: bool
    ) -> None:
        self.order = Order(order.as_drawn, order.by_position, drop_last)
        self.window = window
        self.size = size
        #: Tickets that are batches, as those for a dataset that fetches batches itself.
        self.fetches = fetches
        self.epoch = Epoch(self.order, window, DueBells())

    # The books

    def drawn_of(self, block: Block) -> Drawn:
        return next(d for d in self.drawn if d.indices and d.indices[0] == block.indices[0])

    @property
    def bound(self) -> int:
        """Samples that may be in the window: as many as the largest batch has that is under way,
        if that is more."""
        busy = [self.drawn_of(work.claim.block) for work in self.working]
        due = [d for d in self.drawn if not d.items]
        largest = max((len(d.indices) * d.unit for d in busy + due), default=0)
        return max(self.window or sys.maxsize, largest)

    # What the consumer does

    @precondition(lambda self: not self.ended and not self.abandoned)
    @rule(size=st.integers(0, 6), unit=st.integers(1, 4))
    def draw(self, size: int, unit: int) -> None:
        if self.fetches:
            size = 1
        else:
            unit = 1
            # Samples change places only between batches of torch's own batch sampler, which are of
            # one size, but for the last.
            if not self.order.as_drawn:
                size = self.size
        self.add(size, unit)

    @precondition(lambda self: not self.ended and not self.abandoned)
    @rule(size=st.integers(0, 4))
    def end_draw(self, size: int) -> None:
        if not self.order.as_drawn and not self.fetches and 0 < size < self.size:
            self.add(size, 1)
        self.ended = True
        self.epoch.end_draw()

    def add(self, size: int, unit: int) -> None:
        indices = list(range(self.next_index, self.next_index + size))
        self.next_index += size
        self.drawn.append(Drawn(indices, unit))
        self.epoch.draw(indices, unit)

    @precondition(lambda self: not self.abandoned)
    @rule()
    def pop(self) -> None:
        batch = self.epoch.pop()
        if batch is None:
            return
        if batch.failure is not None:
            self.errors.append(batch.failure)
        if batch.lost:
            assert batch.failure is not None
            self.check_failure(batch)
        else:
            assert batch.content == batch.indices, "each row is the sample of its index"
            self.delivered.update(batch.content)
        if self.order.as_drawn:
            self.check_turn(batch)

    def check_turn(self, batch: Batch) -> None:
        """A batch as drawn, of those that are due."""
        drawn = next(d for d in self.drawn if d.indices == batch.indices and not d.items)
        drawn.items += 1
        if self.order.by_position:
            assert all(d.items for d in self.drawn[: self.drawn.index(drawn)])

    def check_failure(self, batch: Batch) -> None:
        """Of several failed rows the first, and nothing before it can fail any more."""
        if not self.order.as_drawn:
            return
        drawn = next(d for d in self.drawn if d.indices == batch.indices)
        first = min(drawn.failed_rows)
        assert batch.failure is not None
        assert batch.failure.args == (drawn.indices[first],)
        assert all(self.settled[index] for index in drawn.indices[:first])

    # What workers do

    @rule()
    def claim(self) -> None:
        waiting, room = self.epoch.jobs_waiting, self.epoch.feed.in_window < (self.window or 1e9)
        claim = self.epoch.claim()
        if claim is None:
            return
        assert not self.abandoned
        # Workers sleep until as many are woken as there are jobs waiting.
        assert waiting or not room
        self.to_collate += claim.completed
        indices = claim.block.indices[claim.start : claim.stop]
        self.claimed.update(indices)
        if indices:
            self.working.append(Work(claim, claim.start))

    def some_work(self, data: st.DataObject) -> Work:
        return data.draw(st.sampled_from([w for w in self.working if w.placed is None]))

    def unplaced(self) -> bool:
        return any(work.placed is None for work in self.working)

    def move_on(self, work: Work) -> None:
        if work.done:
            self.working.remove(work)

    @precondition(unplaced)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        work = self.some_work(data)
        count = data.draw(st.integers(1, work.claim.stop - work.row))
        self.settle_rows(work, count)

    def settle_rows(self, work: Work, count: int) -> None:
        block, row = work.claim.block, work.row
        samples = list(block.indices[row : row + count])
        self.epoch.observe([0.001 * count], count)
        self.to_collate += self.epoch.settle(block, row, samples)
        self.settled.update(samples)
        work.row += count
        self.move_on(work)

    @precondition(unplaced)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        work = self.some_work(data)
        block, row = work.claim.block, work.row
        index = block.indices[row]
        # As jobs do, for what was run before the failure: here nothing.
        self.to_collate += self.epoch.settle(block, row, [])
        self.to_collate += self.epoch.fail(block, row, Failed(index))
        self.settled[index] += 1
        if not self.abandoned:
            self.failed.add(index)
            self.drawn_of(block).failed_rows.add(row)
        work.row += 1
        self.move_on(work)

    @precondition(unplaced)
    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        work = self.some_work(data)
        block, row = work.claim.block, work.row
        placed = self.epoch.place(block, row)
        self.settled[block.indices[row]] += 1
        work.row += 1
        if placed is None:
            assert self.abandoned
        else:
            work.placed = (*placed, block.indices[row])
        self.move_on(work)

    @precondition(lambda self: any(work.placed for work in self.working))
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        self.fill_place(data.draw(st.sampled_from([w for w in self.working if w.placed])))

    def fill_place(self, work: Work) -> None:
        assert work.placed is not None
        batch, place, sample = work.placed
        work.placed = None
        self.to_collate += self.epoch.fill(work.claim.block, batch, place, sample)
        self.move_on(work)

    @precondition(lambda self: self.settled and not self.abandoned)
    @rule(data=st.data())
    def late_result(self, data: st.DataObject) -> None:
        """Of a ticket that is decided: whatever it is, nobody may notice."""
        index = data.draw(st.sampled_from(sorted(self.settled)))
        block = self.block_with(index)
        if block is None:
            return
        row = list(block.indices).index(index)
        before = self.state()
        if data.draw(st.booleans()):
            assert self.epoch.settle(block, row, ["late"]) == []
        else:
            assert self.epoch.fail(block, row, Failed("late")) == []
        assert self.state() == before

    def block_with(self, index: int) -> Block | None:
        blocks = (work.claim.block for work in self.working)
        return next((block for block in blocks if index in block.indices), None)

    def state(self) -> tuple[int, int, int]:
        return self.epoch.feed.in_window, self.epoch.feed.outstanding, self.epoch.batches_ahead

    @precondition(lambda self: self.to_collate)
    @rule(data=st.data(), fails=st.integers(0, 5).map(lambda n: n == 0))
    def collate(self, data: st.DataObject, fails: bool) -> None:
        self.collate_batch(data.draw(st.sampled_from(self.to_collate)), fails)

    def collate_batch(self, batch: Batch, fails: bool) -> None:
        self.to_collate.remove(batch)
        samples = list(batch.samples)
        assert samples == batch.indices, "a batch that is collated is full"
        batch.samples = [None] * batch.size
        if fails and not self.abandoned:
            self.collate_failures += 1
        self.epoch.collated(batch, samples, Failed("collate") if fails else None)

    @precondition(lambda self: not self.abandoned and self.next_index > 20)
    @rule()
    def abandon(self) -> None:
        self.epoch.abandon()
        self.abandoned = True

    # What always holds

    @invariant()
    def nothing_twice(self) -> None:
        assert all(count == 1 for count in self.claimed.values())
        assert all(count == 1 for count in self.delivered.values())
        assert not self.delivered.keys() & self.failed

    @invariant()
    def window_is_kept(self) -> None:
        if not hasattr(self, "epoch"):
            return
        assert 0 <= self.epoch.feed.in_window <= self.bound
        assert self.epoch.feed.outstanding >= 0

    @invariant()
    def abandoned_epoch_gives_nothing(self) -> None:
        if self.abandoned:
            assert self.epoch.finished
            assert self.epoch.pop() is None
            assert self.epoch.claim() is None

    @invariant()
    def end_is_not_seen_too_early(self) -> None:
        if not hasattr(self, "epoch") or self.abandoned or not self.epoch.finished:
            return
        assert self.ended
        self.check_all_is_delivered()

    def teardown(self) -> None:
        """Let everybody do what is left, until nobody has anything to do."""
        if hasattr(self, "epoch"):
            if not self.ended and not self.abandoned:
                self.end_draw(0)
            while self.step():
                self.nothing_twice()
                self.window_is_kept()
            self.check_end()

    def step(self) -> bool:
        if self.working:
            work = self.working[0]
            if work.placed:
                self.fill_place(work)
            else:
                self.settle_rows(work, 1)
            return True
        if self.to_collate:
            self.collate_batch(self.to_collate[0], False)
            return True
        if self.abandoned:
            return False
        before = self.progress()
        self.claim()
        self.pop()
        return self.progress() != before

    def progress(self) -> tuple[int, int, int, int]:
        done = sum(drawn.items for drawn in self.drawn)
        return len(self.claimed), len(self.to_collate), len(self.errors), done + len(self.delivered)

    def check_end(self) -> None:
        assert self.epoch.finished, "stuck: nobody can go on, and it is not the end"
        if self.abandoned:
            return
        assert self.epoch.feed.in_window == 0
        assert self.epoch.feed.outstanding == 0
        self.check_all_is_delivered()
        assert [e.args for e in self.errors].count(("collate",)) == self.collate_failures

    def check_all_is_delivered(self) -> None:
        drawn = {index for d in self.drawn for index in d.indices}
        if self.order.as_drawn:
            assert all(d.items == 1 for d in self.drawn)
            lost = {index for d in self.drawn if d.failed_rows for index in d.indices}
            assert self.delivered.keys() == drawn - lost
        else:
            assert set(self.claimed) == drawn
            reported = [error.args[0] for error in self.errors if error.args != ("collate",)]
            assert sorted(reported) == sorted(self.failed)
            missing = drawn - self.delivered.keys() - self.failed
            assert len(missing) < self.size
            assert self.order.drop_last or not missing


EpochMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
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
    epoch.observe([1e-6], claim.stop - claim.start)
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
        claim = epoch.claim()
        assert claim is not None
        completed = epoch.fail(claim.block, 0, Failed("a"))
        while (claim := epoch.claim()) is not None:
            completed += settle_all(epoch, claim)
        assert completed == []
        assert epoch.jobs_waiting == 0
        epoch.end_draw()
        assert epoch.jobs_waiting == 1
        left = epoch.claim()
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
        claim = epoch.claim()
        assert claim is not None
        epoch.fail(claim.block, 0, Failed("a"))
        assert epoch.pop() is not None
        epoch.delivery.add_waiter(bell)
        assert settle_all(epoch, epoch.claim()) == []
        due.ring()
        assert bell.count == 1
        assert epoch.finished

    def test_empty_batch_at_the_end_is_waited_for(self) -> None:
        epoch = Epoch(IN_ORDER, None, DueBells())
        epoch.draw([])
        epoch.end_draw()
        assert not epoch.finished
        claim = epoch.claim()
        assert claim is not None
        assert not epoch.finished
        assert deliver(epoch, list(claim.completed)) == [[]]
        assert epoch.finished

    def test_nothing_drawn(self) -> None:
        epoch = Epoch(READY_FIRST, 3, DueBells())
        assert not epoch.finished
        epoch.end_draw()
        assert epoch.finished
        assert epoch.claim() is None


class TestAhead:
    def test_is_the_number_of_drawn_batches(self) -> None:
        epoch = Epoch(IN_ORDER, None, DueBells())
        for batch in ("abc", "", "d"):
            epoch.draw(batch)
        assert epoch.batches_ahead == 3
        assert deliver(epoch, settle_all(epoch, epoch.claim())) == []
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
        claim = epoch.claim()
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
        claim = epoch.claim()
        assert claim is not None
        epoch.fail(claim.block, 0, Failed("a"))
        completed = []
        while (claim := epoch.claim()) is not None:
            completed += settle_all(epoch, claim)
        assert [batch.samples for batch in completed] == [["b", "c", "d", "e"]]
        failure = epoch.pop()
        assert failure is not None
        assert deliver(epoch, completed) == [["b", "c", "d", "e"]]
        assert deliver(epoch, settle_all(epoch, epoch.claim())) == [["f"]]
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
        claims = [epoch.claim() for _ in range(3)]
        block = claims[0].block  # type: ignore[union-attr]
        epoch.fail(block, 2, Failed("c"))
        epoch.settle(block, 0, ["a"])
        placed = epoch.place(block, 1)
        assert placed is not None
        epoch.abandon()
        assert epoch.fill(block, *placed, "b") == []
        assert epoch.pop() is None
