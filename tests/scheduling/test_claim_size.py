"""How many tickets a worker claims at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato_async.scheduling.claim_size import WORTH, ClaimSize

CHEAP = WORTH / 100


def test_nothing_is_known_of_the_first_samples() -> None:
    """As many workers as there are begin with one ticket each."""
    size = ClaimSize()
    assert [size.next() for _ in range(5)] == [1] * 5


def test_a_claim_at_most_doubles() -> None:
    size = ClaimSize()
    size.observe(1, CHEAP)
    assert [size.next() for _ in range(9)] == [2, 4, 8, 16, 32, 64, 100, 100, 100]


def test_samples_that_cost_nothing_measurable() -> None:
    size = ClaimSize()
    size.observe(1, 0.0)
    assert [size.next() for _ in range(4)] == [2, 4, 8, 16]


def test_slow_samples_are_claimed_one_by_one() -> None:
    size = ClaimSize()
    size.observe(1, 10 * WORTH)
    assert [size.next() for _ in range(3)] == [1] * 3


def test_one_slow_claim_ends_the_large_ones_and_cheap_ones_bring_them_back_slowly() -> None:
    size = ClaimSize()
    size.observe(1, CHEAP)
    for _ in range(8):
        size.next()
    assert size.current == 100
    size.observe(1, 100 * WORTH)
    assert size.next() == 1
    claims_until_large = 0
    while size.next() < 50:
        size.observe(1, CHEAP)
        claims_until_large += 1
    assert claims_until_large > 20


def test_the_estimate_rises_faster_than_it_sinks() -> None:
    """Two claims as slow as the first was cheap: the first of them halves the difference."""
    size = ClaimSize()
    size.observe(1, CHEAP)
    for _ in range(8):
        size.next()
    size.observe(1, 2 * WORTH)
    assert size.next() == 1


def test_claims_of_no_tickets_say_nothing() -> None:
    """A claim whose first ticket failed has run none."""
    size = ClaimSize()
    size.observe(0, 5.0)
    assert size.next() == 1
    size.observe(1, CHEAP)
    size.observe(0, 5.0)
    assert size.next() == 2


def test_what_counts_is_the_cost_of_a_ticket() -> None:
    one, other = ClaimSize(), ClaimSize()
    one.observe(1, CHEAP)
    other.observe(10, 10 * CHEAP)
    assert [one.next() for _ in range(8)] == [other.next() for _ in range(8)]


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1)), max_size=40))
def test_whatever_is_observed(observed: list[tuple[int, float]]) -> None:
    size = ClaimSize()
    claims = [1]
    for tickets, seconds in observed:
        size.observe(tickets, seconds)
        claims.append(size.next())
        assert size.current == claims[-1]
    assert min(claims) >= 1
    assert all(after <= 2 * before for before, after in pairwise(claims))


@pytest.mark.parametrize("cost", [WORTH / 7, WORTH / 2.5, WORTH * 0.999, WORTH, WORTH * 3])
def test_a_claim_is_worth_no_more_than_it_may_be(cost: float) -> None:
    size = ClaimSize()
    size.observe(1, cost)
    largest = max(size.next() for _ in range(10))
    assert largest == max(1, int(WORTH / cost))
