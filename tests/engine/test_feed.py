"""Tickets between the sampler and the workers, and the window."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato_async.engine.batch import Batch
from minato_async.engine.feed import Claim, Feed


def feed_of(*batches: Sequence[Any], window: int = sys.maxsize, unit: int = 1) -> Feed:
    feed = Feed(window)
    for batch in batches:
        block = feed.add(batch, unit)
        block.batch = Batch(len(batch), unit)
    return feed


def indices(claim: Claim | None) -> list[Any]:
    assert claim is not None
    return list(claim.block.indices[claim.start : claim.stop])


def test_tickets_are_claimed_in_drawing_order_and_from_one_batch_at_a_time() -> None:
    feed = feed_of("abc", "de", "f")
    claims = [feed.claim(2) for _ in range(4)]
    assert [indices(claim) for claim in claims] == [["a", "b"], ["c"], ["d", "e"], ["f"]]
    assert feed.claim(2) is None


def test_positions_count_samples() -> None:
    feed = Feed(sys.maxsize)
    assert [feed.add("abc", 1).first, feed.add([], 1).first, feed.add(["k"], 5).first] == [0, 3, 3]
    assert feed.add("x", 1).first == 8
    assert feed.outstanding == 9


def test_repeats_go_with_their_indices() -> None:
    assert Feed(1).add("ab", 1, (0, 2)).repeats == (0, 2)
    assert not Feed(1).add("ab", 1).repeats


class TestWindow:
    def test_bounds_what_is_claimed(self) -> None:
        feed = feed_of("abcd", "efgh", window=5)
        assert indices(feed.claim(10)) == ["a", "b", "c", "d"]
        assert indices(feed.claim(10)) == ["e"]
        assert feed.in_window == 5
        assert feed.claim(1) is None
        feed.leave_window(2)
        assert indices(feed.claim(10)) == ["f", "g"]

    def test_is_left_by_what_is_delivered_and_not_by_what_is_accounted_for(self) -> None:
        feed = feed_of("ab", "cd", window=2)
        feed.claim(2)
        feed.account_for(2)
        assert feed.outstanding == 2
        assert feed.claim(1) is None

    def test_batch_larger_than_it_is_admitted_alone(self) -> None:
        feed = feed_of("ab", "cdefg", "h", window=2)
        assert indices(feed.claim(9)) == ["a", "b"]
        assert indices(feed.claim(9)) == ["c", "d", "e"]
        assert feed.claim(9) is None
        feed.leave_window(2)
        assert indices(feed.claim(9)) == ["f", "g"]
        assert feed.claim(9) is None
        feed.leave_window(5)
        assert indices(feed.claim(9)) == ["h"]

    def test_can_be_widened_but_not_narrowed(self) -> None:
        feed = feed_of("ab", "cd", window=2)
        feed.admit(1)
        assert feed.window == 2
        feed.admit(3)
        assert feed.window == 3
        assert [indices(feed.claim(9)), indices(feed.claim(9))] == [["a", "b"], ["c"]]

    def test_counts_the_samples_that_a_ticket_stands_for(self) -> None:
        feed = feed_of([(1, 2, 3)], [(4, 5, 6)], [(7, 8, 9)], window=6, unit=3)
        assert feed.outstanding == 9
        assert [indices(feed.claim(9)), indices(feed.claim(9))] == [[(1, 2, 3)], [(4, 5, 6)]]
        assert feed.in_window == 6
        assert feed.claim(9) is None

    def test_ticket_that_stands_for_more_is_admitted_alone(self) -> None:
        feed = feed_of([(1, 2, 3)], [(4, 5, 6)], window=1, unit=3)
        assert indices(feed.claim(9)) == [(1, 2, 3)]
        assert feed.claim(9) is None
        feed.leave_window(3)
        assert indices(feed.claim(9)) == [(4, 5, 6)]


class TestBatchesOutOfTheOrdinary:
    def test_empty_batch_is_claimed_to_be_collated(self) -> None:
        feed = feed_of([], "a")
        claim = feed.claim(5)
        assert claim is not None
        assert (claim.start, claim.stop) == (0, 0)
        assert list(claim.completed) == [claim.block.batch]
        assert indices(feed.claim(5)) == ["a"]

    def test_empty_batch_needs_no_place_in_the_window(self) -> None:
        feed = feed_of("a", [], window=1)
        feed.claim(1)
        claim = feed.claim(1)
        assert claim is not None
        assert len(claim.completed) == 1

    def test_rest_of_a_lost_batch_is_skipped(self) -> None:
        feed = feed_of("abc", "d")
        first = feed.claim(1)
        assert first is not None
        assert first.block.batch is not None
        first.block.batch.lost = True
        assert indices(feed.claim(5)) == ["d"]
        assert feed.claim(5) is None

    def test_cleared(self) -> None:
        feed = feed_of("abc")
        feed.clear()
        assert feed.claim(1) is None
        assert feed.claimable == 0


class TestClaimable:
    """What idle workers are woken for."""

    @pytest.mark.parametrize(
        ("batches", "window", "expected"),
        [
            ([], 9, 0),
            (["abc"], 9, 3),
            (["abc", "de"], 9, 5),
            (["abc", "de"], 4, 4),
            (["abcde"], 2, 5),
            ([[], []], 9, 2),
        ],
    )
    def test_before_the_first_claim(
        self, batches: list[Sequence[Any]], window: int, expected: int
    ) -> None:
        assert feed_of(*batches, window=window).claimable == expected

    def test_falls_with_claims_and_rises_with_deliveries(self) -> None:
        feed = feed_of("abc", "def", window=4)
        feed.claim(2)
        assert feed.claimable == 2
        feed.claim(1)
        feed.claim(1)
        assert feed.claimable == 0
        feed.leave_window(3)
        assert feed.claimable == 2

    def test_lost_rest_does_not_count_for_long(self) -> None:
        feed = feed_of("abc", "d")
        first = feed.claim(1)
        assert first is not None
        assert first.block.batch is not None
        first.block.batch.lost = True
        feed.claim(1)
        assert feed.claimable == 0

    @given(
        st.lists(st.integers(0, 5), max_size=6),
        st.integers(1, 8),
        st.lists(st.integers(1, 5), max_size=12),
    )
    def test_is_never_none_while_there_is_something(
        self, sizes: list[int], window: int, claims: list[int]
    ) -> None:
        """A worker that is not woken for a ticket that it could have sleeps for ever."""
        feed = feed_of(*(range(size) for size in sizes), window=window)
        for most in claims:
            room, claimable = feed.in_window < window, feed.claimable
            claim = feed.claim(most)
            assert claim is None or claimable or not room
            if claim is not None and claim.stop > 1:
                feed.leave_window(claim.stop - claim.start)
