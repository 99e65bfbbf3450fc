"""Tickets between the sampler and the workers, and the window."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato_async.engine.assigned_feed import AssignedFeed
from minato_async.engine.batch import Batch
from minato_async.engine.feed import Claim, Feed


def feed_of(*batches: Sequence[Any], window: int = sys.maxsize, unit: int = 1) -> Feed:
    feed = Feed(window)
    for batch in batches:
        block = feed.add(batch, unit)
        block.batch = Batch(len(batch), unit)
    return feed


def leave(feed: Feed, samples: int) -> None:
    """So many samples of batches whose turn has come are delivered."""
    feed.release(samples, 0)


def indices(claim: Claim | None) -> list[Any]:
    assert claim is not None
    return list(claim.block.indices[claim.start : claim.stop])


def test_tickets_are_claimed_in_drawing_order_and_from_one_batch_at_a_time() -> None:
    feed = feed_of("abc", "de", "f")
    claims = [feed.claim(2) for _ in range(4)]
    assert [indices(claim) for claim in claims] == [["a", "b"], ["c"], ["d", "e"], ["f"]]
    assert feed.claim(2) is None


def test_positions_count_tickets_and_empty_batches() -> None:
    feed = Feed(sys.maxsize)
    added = [feed.add(keys, unit) for keys, unit in (("abc", 1), ((), 1), ("k", 5), ("x", 1))]
    assert [list(block.positions) for block in added] == [[0, 1, 2], [3], [4], [5]]
    assert feed.outstanding == 9


def test_a_block_has_the_positions_that_it_is_given() -> None:
    assert Feed(1).add("ab", 1, (), [4, 9]).positions == [4, 9]


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
        leave(feed, 2)
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
        leave(feed, 2)
        assert indices(feed.claim(9)) == ["f", "g"]
        assert feed.claim(9) is None
        leave(feed, 5)
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
        leave(feed, 3)
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
        first.block.batch.lost, first.block.batch.failed_row = True, 0
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
        leave(feed, 3)
        assert feed.claimable == 2

    def test_lost_rest_does_not_count_for_long(self) -> None:
        feed = feed_of("abc", "d")
        first = feed.claim(1)
        assert first is not None
        assert first.block.batch is not None
        first.block.batch.lost, first.block.batch.failed_row = True, 0
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
                leave(feed, claim.stop - claim.start)


class TestClaimedEarly:
    def test_is_one_ticket_and_is_not_claimed_again_in_its_turn(self) -> None:
        feed = Feed(sys.maxsize)
        first, second = feed.add("abcd", 1), feed.add("efgh", 1)
        for block, row, index in [(second, 1, "f"), (first, 2, "c"), (second, 0, "e")]:
            claim = feed.claim_early(block, row)
            assert indices(claim) == [index]
            assert claim is not None
            assert claim.early
            assert feed.claim_early(block, row) is None
        claims = [feed.claim(9) for _ in range(3)]
        assert [indices(claim) for claim in claims] == [["a", "b"], ["d"], ["g", "h"]]
        assert not any(claim.early for claim in claims if claim is not None)
        assert feed.claim(9) is None
        assert (feed.unclaimed, feed.in_window) == (0, 8)

    def test_was_not_claimed_in_its_turn(self) -> None:
        feed = Feed(sys.maxsize)
        block = feed.add("abc", 1)
        feed.claim(2)
        assert feed.claim_early(block, 0) is None
        assert feed.claim_early(block, 1) is None
        assert indices(feed.claim_early(block, 2)) == ["c"]
        assert feed.claim(1) is None

    def test_block_of_which_all_is_claimed_early_has_no_turn(self) -> None:
        feed = Feed(sys.maxsize)
        _, second, _ = feed.add("a", 1), feed.add("bc", 1), feed.add("d", 1)
        feed.claim_early(second, 1)
        feed.claim_early(second, 0)
        assert [indices(feed.claim(9)), indices(feed.claim(9))] == [["a"], ["d"]]

    def test_leaves_room_for_the_batch_that_is_due(self) -> None:
        feed = feed_of("abcd", window=6)
        later = [feed.add("efgh", 1), feed.add("ijkl", 1)]
        early = [feed.claim_early(block, row) for block in later for row in range(4)]
        assert [indices(claim) for claim in early if claim is not None] == [["e"], ["f"]]
        assert indices(feed.claim(9)) == ["a", "b", "c", "d"]
        assert feed.in_window == 6
        leave(feed, 4)
        # It is the turn of the block of those two: they are in the way of nobody any more.
        assert indices(feed.claim_early(later[1], 0)) == ["i"]
        assert indices(feed.claim(9)) == ["g", "h"]

    def test_never_where_one_batch_fills_the_window(self) -> None:
        feed = feed_of("abcd", window=4)
        assert feed.claim_early(feed.add("e", 1), 0) is None

    def test_in_the_batch_that_is_due_takes_any_place(self) -> None:
        feed = Feed(2)
        block = feed.add("abcd", 1)
        assert indices(feed.claim_early(block, 3)) == ["d"]
        assert indices(feed.claim(9)) == ["a", "b", "c"]  # as a batch larger than the window

    def test_batch_drawn_later_that_is_larger_is_admitted_beside_them(self) -> None:
        feed = feed_of("a", window=4)
        block = feed.add("bc", 1)
        feed.claim_early(block, 0)
        feed.add("efghi", 1)
        assert indices(feed.claim(9)) == ["a"]
        assert indices(feed.claim(9)) == ["c"]
        leave(feed, 3)
        assert indices(feed.claim(9)) == ["e", "f", "g", "h", "i"]

    def test_what_is_put_back_is_claimed_first_and_keeps_its_place(self) -> None:
        feed = feed_of("ab", window=4)
        block, other = feed.add("cd", 1), feed.add("ef", 1)
        assert indices(feed.claim_early(block, 1)) == ["d"]
        feed.put_back(block, 1, 2)
        assert feed.claim_early(other, 0) is None
        claim = feed.claim(9)
        assert indices(claim) == ["d"]
        assert claim is not None
        assert claim.early
        assert indices(feed.claim_early(other, 0)) == ["e"]
        assert feed.claim_early(other, 1) is None
        assert indices(feed.claim(9)) == ["a", "b"]

    def test_lost_batch_gives_no_more_and_its_places_back(self) -> None:
        feed = feed_of("ab", window=4)
        block = feed.add("cd", 1)
        block.batch = Batch(2, 1)
        other = feed.add("ef", 1)
        feed.claim_early(block, 0)
        block.batch.lost, block.batch.failed_row = True, 0
        assert feed.claim_early(block, 1) is None
        feed.leave_window(block, 1)
        assert [indices(feed.claim_early(other, row)) for row in (0, 1)] == [["e"], ["f"]]

    def test_that_fails_does_not_keep_those_before_it_from_being_loaded(self) -> None:
        """The failure of one of these would be the one that is raised."""
        feed = feed_of("a")
        block = feed.add("bcdef", 1)
        block.batch = Batch(5, 1)
        feed.claim_early(block, 3)
        block.batch.lost, block.batch.failed_row = True, 3
        assert [indices(feed.claim(9)), indices(feed.claim(2))] == [["a"], ["b", "c"]]
        assert feed.claimable
        assert indices(feed.claim(9)) == ["d"]
        assert feed.claim(9) is None
        assert (feed.claimable, feed.unclaimed) == (0, 0)

    def test_places_can_be_kept_for_them(self) -> None:
        feed = feed_of("abc", "def", window=6)
        later = feed.add("ghi", 1)
        feed.kept_for_early = 2
        assert [indices(feed.claim(9)), indices(feed.claim(9))] == [["a", "b", "c"], ["d"]]
        assert feed.claim(9) is None
        assert feed.claimable == 0
        assert indices(feed.claim_early(later, 0)) == ["g"]
        assert indices(feed.claim_early(later, 1)) == ["h"]

    def test_made_of_what_is_ready_a_batch_can_use_them_all(self) -> None:
        feed = Feed(2, as_drawn=False)
        feed.add("ab", 1)
        later = feed.add("cd", 1)
        assert [indices(feed.claim_early(later, row)) for row in (0, 1)] == [["c"], ["d"]]
        assert feed.claim(9) is None
        leave(feed, 2)
        assert indices(feed.claim(9)) == ["a", "b"]

    def test_never_where_batches_belong_to_workers(self) -> None:
        feed = AssignedFeed(sys.maxsize, 2)
        assert feed.claim_early(feed.add("ab", 1), 0) is None

    def test_never_once_all_is_forgotten(self) -> None:
        feed = Feed(sys.maxsize)
        block = feed.add("ab", 1)
        feed.clear()
        assert feed.claim_early(block, 0) is None

    def test_tickets_that_stand_for_more_take_as_many_places(self) -> None:
        feed = feed_of([(1, 2, 3)], window=7, unit=3)
        later = [feed.add([(4, 5, 6)], 3), feed.add([(7, 8, 9)], 3)]
        assert indices(feed.claim_early(later[0], 0)) == [(4, 5, 6)]
        assert feed.claim_early(later[1], 0) is None
        assert feed.in_window == 3
        assert indices(feed.claim(9)) == [(1, 2, 3)]
