"""The set of positions that a state holds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato_async.resuming.positions import Received


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=8)), st.booleans())
def test_as_a_set(added: list[list[int]], in_runs: bool) -> None:
    received, expected = Received(), set()
    for some in added:
        positions = range(min(some), max(some) + 1) if in_runs else some
        received.add(positions)
        expected |= set(positions)
        assert set(received) == expected
        assert received.frontier == next(n for n in range(100) if n not in expected)
        assert received.missing(range(70)) == [n for n in range(70) if n not in expected]
        assert received.has_gaps == (received.frontier < len(expected))
        assert set(Received.of_state(received.state())) == expected


@pytest.mark.parametrize("window", [1, 64, 4096])
def test_state_of_a_million_samples_out_of_order_is_small(window: int) -> None:
    order, delivered = random.Random(3), []
    waiting = [0]  # held up for the whole epoch
    for position in range(1, 1_000_000):
        waiting.append(position)
        if len(waiting) > window:
            place = order.randrange(1, len(waiting))
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            delivered.append(waiting.pop())
    received = Received()
    received.add(delivered)
    state = received.state()
    assert isinstance(state["beyond"], str)
    assert len(state["beyond"]) < 10_000
    assert list(Received.of_state(state)) == sorted(delivered)
