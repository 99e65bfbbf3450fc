"""Single numbers that a sample draws from `numpy.random`: its first come from a hash."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.seeding.support import as_sample, global_state, new_streams, on_thread

SINGLE: dict[str, Callable[[], Any]] = {
    "rand": lambda: np.random.rand(),
    "random": lambda: np.random.random(),
    "random_sample": lambda: np.random.random_sample(),
    "ranf": lambda: np.random.ranf(),
    "sample": lambda: np.random.sample(),
    "uniform": lambda: np.random.uniform(),
    "uniform between": lambda: np.random.uniform(-3, 2.5),
    "uniform downwards": lambda: np.random.uniform(high=-3, low=2),
    "randint": lambda: np.random.randint(10),
    "randint between": lambda: np.random.randint(low=-(2**31), high=2**31),
    "randint at the end": lambda: np.random.randint(2**63 - 4, 2**63),
    "randint at the other": lambda: np.random.randint(-(2**63), -(2**63) + 1),
    "randint, wide": lambda: np.random.randint(-(2**62), 2**62),
}


def _first_draws(draw: Callable[[], Any], samples: int) -> list[Any]:
    def work() -> list[Any]:
        found = []
        with new_streams().active() as streams:
            for ticket in range(samples):
                streams.ticket = ticket
                found.append(draw())
        return found

    return on_thread(work)


def _several(draw: Callable[[], Any]) -> list[Any]:
    return [draw() for _ in range(8)]


@pytest.mark.parametrize("name", SINGLE)
def test_single_numbers_follow_the_sample_and_are_of_numpys_types(name: str) -> None:
    before = global_state()
    draw = SINGLE[name]
    found = as_sample(lambda: [draw() for _ in range(20)])
    assert found == as_sample(lambda: [draw() for _ in range(20)], after=2)
    assert global_state() == before
    assert {type(value) for value in found} == {type(draw())}
    if name != "randint at the other":
        assert len(set(found)) > 2


def test_eight_single_numbers_need_no_generator_and_the_ninth_does() -> None:
    with new_streams().active() as streams:
        streams.ticket = 1
        for draws in range(1, 10):
            np.random.rand()
            assert (streams.numpy.save()[2] is None) == (draws <= 8)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.rand(1),
        lambda: np.random.uniform(0, 1, 3),
        lambda: np.random.uniform(np.zeros(2), 1),
        lambda: np.random.randint(0, [5, 6]),
        lambda: np.random.randint(0, 5, (2, 2)),
        lambda: np.random.randint(0, 5, dtype=np.uint8),
        lambda: np.random.uniform(np.float32(0), np.float32(1)),
        lambda: np.random.normal(),
    ],
)
def test_all_else_comes_from_a_random_state(draw: Callable[[], Any]) -> None:
    with new_streams().active() as streams:
        streams.ticket = 1
        np.random.rand()
        state = np.random.get_state()
        found = draw()
        np.random.set_state(state)
        assert np.array_equal(found, draw())
        assert type(found) is type(draw())
        streams.ticket = 2
        draw()
        assert streams.numpy.save()[2] is not None


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.uniform(float("nan"), 1),
        lambda: np.random.uniform(0, float("inf")),
        lambda: np.random.uniform(-1e308, 1e308),
        lambda: np.random.uniform("a", 1),  # type: ignore[call-overload]
        lambda: np.random.uniform(1, None),  # type: ignore[call-overload]
        lambda: np.random.randint(5, 5),
        lambda: np.random.randint(0),
        lambda: np.random.randint(5, 1),
        lambda: np.random.randint(0, 2**63 + 1),
        lambda: np.random.randint(-(2**63) - 1, 0),
        lambda: np.random.randint("a"),  # type: ignore[call-overload]
        lambda: np.random.rand(-1),
        lambda: np.random.random("a"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_raise_what_numpy_raises(draw: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)) as numpys:
        draw()

    def work() -> None:
        with pytest.raises(type(numpys.value)) as ours:
            draw()
        assert str(ours.value) == str(numpys.value)

    as_sample(work)


def test_single_numbers_are_spread_evenly_over_samples_and_within_one() -> None:
    for draw in (lambda: np.random.rand(), lambda: np.random.uniform(2, 3) - 2):
        found = np.array(_first_draws(functools.partial(_several, draw), 4000))
        for column in found.T:
            counts = np.histogram(column, 20, (0, 1))[0]
            # Chi square of 19 degrees of freedom: beyond 60 in one case of four hundred thousand.
            assert ((counts - 200) ** 2 / 200).sum() < 60
        correlation = np.corrcoef(found.T) - np.eye(8)
        assert np.abs(correlation).max() < 0.08
    whole = np.bincount(_first_draws(lambda: np.random.randint(3, 13), 4000), minlength=13)
    assert (whole[:3] == 0).all()
    assert ((whole[3:] - 400) ** 2 / 400).sum() < 50


def test_a_state_asked_for_after_single_numbers_holds_from_then_on() -> None:
    def work() -> Any:
        first = np.random.rand(), np.random.randint(100)
        state = np.random.get_state()
        second = np.random.rand(), np.random.randint(100)
        np.random.set_state(state)
        assert (np.random.rand(), np.random.randint(100)) == second
        own = np.random.RandomState()
        own.set_state(state)
        assert (own.rand(), own.randint(100)) == second
        return first, second

    assert as_sample(work) == as_sample(work, after=2) != as_sample(work, 2)


def test_a_random_state_is_made_when_a_sample_first_needs_it_and_once() -> None:
    """To make one takes longer than everything else that a thread sets up."""

    def work() -> tuple[Any, Any, Any]:
        with new_streams().active() as streams:
            streams.ticket = 0
            np.random.random()
            before = getattr(streams.numpy, "_state", None)
            np.random.random(1)
            first = streams.numpy.state()
            streams.ticket = 1
            np.random.random(1)
            return before, first, streams.numpy.state()

    before, first, second = on_thread(work)
    assert before is None
    assert first is second
