"""Which tickets are claimed early, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minato_async.engine import early_claims
from minato_async.engine.batch import Batch
from minato_async.engine.bell import DueBells
from minato_async.engine.early_claims import MARGIN, EarlyClaims
from minato_async.engine.feed import Block, Claim, Feed
from minato_async.scheduling.cost_book import CostBook

WORKERS = 4
SLOW, FAST = 1.0, 0.01
BATCH = 10


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(early_claims, "monotonic", clock)
    return clock


class Drawn:
    """A feed of `batches` batches, of which the tickets at the positions `slow` are."""

    def __init__(
        self,
        slow: list[int],
        batches: int,
        window: int,
        in_order: bool = True,
        workers: int = WORKERS,
        unknown: list[int] = [],  # noqa: B006
    ) -> None:
        length = batches * BATCH
        book = CostBook(length)
        costs = np.full(length, FAST, np.float32)
        costs[slow], costs[unknown] = SLOW, 0
        book.restore({"costs": costs, "totals": (costs.sum(), length - len(unknown))})
        self.feed = Feed(window, as_drawn=in_order)
        self.costs = book.begin_epoch()
        self.early = EarlyClaims(self.feed, self.costs, workers, in_order, DueBells())
        self.blocks: list[Block] = []
        for number in range(batches):
            indices = list(range(number * BATCH, (number + 1) * BATCH))
            block = self.feed.add(indices, 1)
            if in_order:
                block.batch = Batch(BATCH, 1, indices)
            self.blocks.append(block)
            self.early.add(block, self.costs.slow_rows(indices))

    def claim(self, idle: bool = False) -> int | None:
        claim = self.early.claim(WORKERS, idle)
        return None if claim is None else index(claim)

    def ran(self, position: int, seconds: float) -> None:
        self.early.finished(self.blocks[position // BATCH], position % BATCH, seconds)


def index(claim: Claim) -> int:
    found: Any = claim.block.indices[claim.start]
    return int(found)


def test_a_slow_ticket_is_claimed_when_its_cost_asks_for_it(clock: Clock) -> None:
    drawn = Drawn([950], batches=100, window=300)
    lead = MARGIN * SLOW * WORKERS / drawn.costs.mean
    assert 0 < lead < 900
    claimed = []
    while drawn.feed.position < 949:
        if drawn.claim() is not None:
            claimed.append(drawn.feed.position)
        drawn.feed.claim(1)
        drawn.feed.release(1, 1)
    assert claimed == [pytest.approx(950 - lead, abs=1)]


def test_out_of_order_it_is_claimed_later(clock: Clock) -> None:
    """Else a consumer that takes its time waits for batches while workers are far ahead."""
    lead = MARGIN * SLOW * WORKERS / Drawn([950], batches=100, window=300).costs.mean
    between = int(0.8 * lead)
    assert Drawn([between], batches=100, window=300).claim() == between
    assert Drawn([between], batches=100, window=300, in_order=False).claim() is None


def test_the_one_that_is_due_first_is_claimed_first(clock: Clock) -> None:
    drawn = Drawn([55, 31, 78], batches=10, window=90)
    assert [drawn.claim(), drawn.claim()] == [31, 55]


def test_one_worker_is_left_to_tickets_in_turn(clock: Clock) -> None:
    drawn = Drawn([21, 22, 23, 24, 25], batches=10, window=90)
    claims = []
    for _ in range(5):
        claims.append(drawn.claim())
        clock.now += SLOW / 2
    assert claims == [21, 22, 23, None, None]
    assert drawn.claim(idle=True) == 24
    drawn.blocks[2].settled[1] = 1
    drawn.ran(21, SLOW)
    assert drawn.claim(idle=True) == 25


def test_idle_workers_take_what_is_far_ahead_in_order_only(clock: Clock) -> None:
    for in_order, expected in ((True, 1990), (False, None)):
        drawn = Drawn([1990], batches=200, window=100, in_order=in_order)
        assert drawn.claim() is None
        assert drawn.claim(idle=True) == expected


def test_places_are_kept_for_idle_workers_in_order(clock: Clock) -> None:
    drawn = Drawn([1990, 1991], batches=200, window=30)
    claims = [drawn.feed.claim(BATCH) for _ in range(4)]
    taken = sum(claim.stop - claim.start for claim in claims if claim is not None)
    assert taken == 28
    assert [drawn.claim(idle=True), drawn.claim(idle=True)] == [1990, 1991]
    assert drawn.feed.in_window == 30


def test_a_single_worker_claims_nothing_early() -> None:
    drawn = Drawn([15], batches=4, window=40, workers=1)
    assert drawn.early.claim(1) is None
    assert drawn.early.claim(1, idle=True) is None


def test_what_was_claimed_in_turn_meanwhile_is_forgotten(clock: Clock) -> None:
    drawn = Drawn([5, 15], batches=4, window=40)
    drawn.feed.claim(BATCH)
    assert drawn.claim() == 15
    assert drawn.claim() is None
    assert drawn.early.claimable(WORKERS) == 0


class TestWrongBook:
    """What it calls slow is not."""

    def test_is_believed_no_more_than_a_few_times(self, clock: Clock) -> None:
        slow = list(range(11, 400, 20))
        drawn = Drawn(slow, batches=40, window=300)
        claimed = 0
        for _ in range(100):
            while (position := drawn.claim()) is not None:
                claimed += 1
                clock.now += FAST
                drawn.ran(position, FAST)
        assert claimed == WORKERS // 2
        assert drawn.feed.kept_for_early == 0

    def test_is_not_believed_faster_than_it_shows(self, clock: Clock) -> None:
        drawn = Drawn(list(range(11, 400, 20)), batches=40, window=300)
        at_once = [drawn.claim(), drawn.claim(), drawn.claim()]
        assert at_once == [11, 31, None]
        clock.now = drawn.costs.limit  # they are slow indeed
        assert drawn.claim() == 51

    def test_that_is_right_more_often_is_believed_on(self, clock: Clock) -> None:
        drawn = Drawn(list(range(11, 400, 20)), batches=40, window=300)
        claimed = 0
        while (position := drawn.claim()) is not None:
            claimed += 1
            drawn.ran(position, SLOW if claimed % 2 else FAST)
        lead = MARGIN * SLOW * WORKERS / drawn.costs.mean
        assert claimed == len([position for position in range(11, 400, 20) if position <= lead])
        assert claimed > WORKERS


class TestUnknown:
    def test_are_tried_out_every_other_time(self, clock: Clock) -> None:
        drawn = Drawn([7], batches=10, window=100, unknown=[25, 47, 63])
        assert drawn.claim() == 7
        assert [drawn.claim() for _ in range(7)] == [None, 25, None, 47, None, 63, None]

    def test_take_few_places(self, clock: Clock) -> None:
        drawn = Drawn([2], batches=40, window=50, unknown=list(range(15, 400, 10)))
        drawn.claim()
        claimed = [drawn.claim() for _ in range(100)]
        assert sum(position is not None for position in claimed) == (50 - BATCH) // 4

    def test_that_are_fast_are_no_fault_of_the_book(self, clock: Clock) -> None:
        drawn = Drawn([7], batches=10, window=100, unknown=list(range(20, 100, 5)))
        drawn.claim()
        for _ in range(40):
            if (position := drawn.claim()) is not None:
                drawn.ran(position, FAST)
        assert drawn.early.count > 10


def test_nothing_is_claimed_once_it_is_stopped(clock: Clock) -> None:
    drawn = Drawn([15, 16], batches=4, window=40)
    drawn.early.stop()
    drawn.early.add(drawn.blocks[1], [(5, SLOW)])
    assert drawn.claim() is None
    assert drawn.claim(idle=True) is None
