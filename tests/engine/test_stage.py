"""The stage between collating and delivering, driven by hand: what its bound must never hold up."""

from __future__ import annotations

from typing import Any

from minato_async.engine.batch import Batch
from minato_async.engine.bell import DueBells
from minato_async.engine.epoch import Epoch, Order
from minato_async.engine.feed import Claim
from minato_async.engine.stage import Stage

from .claims import claim_of


class Hand:
    """An epoch of ready samples first, with a stage that may have one batch done."""

    def __init__(self, max_displacement: int | None = None) -> None:
        order = Order(as_drawn=False, by_position=False, max_displacement=max_displacement)
        self.epoch = Epoch(order, None, DueBells())
        self.epoch.stage = Stage(lambda batch, content: content, 1, lambda: None)

    def claim(self) -> Claim:
        claim = claim_of(self.epoch)
        assert claim is not None
        return claim

    def settle(self, claim: Claim) -> list[Batch]:
        samples = list(claim.block.indices[claim.start : claim.stop])
        self.epoch.observe(claim.block, claim.start, [1e-6], len(samples))
        return self.epoch.settle(claim.block, claim.start, samples)

    def settle_all(self) -> list[Batch]:
        completed = []
        while (claim := claim_of(self.epoch)) is not None:
            completed += self.settle(claim)
        return completed

    def collate(self, batch: Batch) -> None:
        self.epoch.collated(batch, list(batch.samples), None)

    def work(self) -> bool:
        """The stage does what it may do."""
        stage: Any = self.epoch.stage
        batch = stage.next(self.epoch.ahead_of)
        if batch is None:
            return False
        stage.done(batch, 0)
        self.epoch.staged(batch, batch.take_content(), None)
        return True

    def pop(self) -> Any:
        batch = self.epoch.pop()
        return None if batch is None else batch.content


def test_batch_that_others_have_to_wait_for_is_begun_beyond_the_bound() -> None:
    hand = Hand(max_displacement=0)
    hand.epoch.draw("ab")
    hand.epoch.draw("cd")
    first, second = hand.settle_all()
    hand.collate(second)
    assert hand.work()
    assert hand.pop() is None
    hand.collate(first)
    assert hand.work()
    assert (hand.pop(), hand.pop()) == (["a", "b"], ["c", "d"])


def test_short_last_batch_that_is_done_takes_no_place_from_those_before_it() -> None:
    hand = Hand()
    hand.epoch.draw("ab")
    hand.epoch.draw("c")
    hand.epoch.end_draw()
    whole, short = hand.settle_all()
    hand.collate(short)
    assert hand.work()
    assert hand.pop() is None
    hand.collate(whole)
    assert hand.work()
    assert (hand.pop(), hand.pop()) == (["a", "b"], ["c"])
    assert hand.epoch.finished


def test_no_other_is_begun_before_one_is_taken() -> None:
    hand = Hand()
    for batch in ("ab", "cd"):
        hand.epoch.draw(batch)
    for batch in hand.settle_all():
        hand.collate(batch)
    assert hand.work()
    assert not hand.work()
    assert hand.pop() == ["a", "b"]
    assert hand.work()
