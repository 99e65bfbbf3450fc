"""A sample's draws depend on its seed alone, and other threads see nothing of them."""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from minato_async.seeding import SampleState, SampleStreams, install
from minato_async.seeding.current import current
from tests.seeding.support import (
    as_sample,
    draw_something,
    global_state,
    new_streams,
    on_thread,
    plain,
)


def augment() -> Any:
    """What transforms draw: each library, each kind of cached state, and more than a few."""
    return plain(
        [
            random.random(),
            random.randint(0, 10**30),
            random.choice("abcdef"),
            random.sample(range(100), 5),
            random.gauss(0, 1),
            random.gauss(0, 1),
            np.random.rand(),
            np.random.uniform(5, 6),
            np.random.randint(10**6),
            np.random.rand(3),
            np.random.randint(0, 100, 5),
            np.random.randn(),
            np.random.permutation(5),
            torch.rand(3),
            torch.randn(3),
            torch.randn(20),
            torch.empty(4).uniform_(),
            torch.randperm(6),
            [random.random() for _ in range(20)],
        ]
    )


@pytest.fixture(autouse=True)
def the_main_thread_is_not_disturbed() -> Any:
    draw_something()
    before = global_state()
    yield
    assert global_state() == before


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_values_are_the_same_for_any_number_of_threads_in_any_order(workers: int) -> None:
    tickets = list(range(64))
    expected = {ticket: as_sample(augment, ticket) for ticket in tickets}
    assert len(set(expected.values())) == len(tickets)
    random.Random(workers).shuffle(tickets)
    found: dict[int, Any] = {}
    barrier = threading.Barrier(workers)

    def worker(mine: list[int]) -> None:
        with new_streams().active() as streams:
            barrier.wait()
            for ticket in mine:
                streams.ticket = ticket
                found[ticket] = augment()

    threads = [threading.Thread(target=worker, args=(tickets[n::workers],)) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_what_ran_before_on_the_thread_does_not_matter() -> None:
    assert as_sample(augment, after=3) == as_sample(augment)


def test_other_seeds_give_other_values_in_every_library() -> None:
    for draw in (random.random, np.random.rand, lambda: torch.rand(1).item()):
        values = {as_sample(draw, ticket, seed=seed) for ticket in (1, 2) for seed in (0, 1)}
        assert len(values) == 4


def test_the_three_libraries_get_streams_of_their_own() -> None:
    def draw() -> list[int]:
        # The first 32 bits of a Mersenne Twister each.
        bits = [np.random.randint(0, 2**32, dtype=np.uint32), torch.randint(0, 2**32, ()).item()]
        return [random.getrandbits(32), *map(int, bits)]

    assert len(set(as_sample(draw))) == 3


def test_drawing_from_one_library_does_not_move_the_others() -> None:
    def with_others() -> Any:
        random.random()
        np.random.rand()
        return torch.rand(1).item()

    assert as_sample(with_others) == as_sample(lambda: torch.rand(1).item())


def test_main_thread_draws_what_it_draws_without_workers() -> None:
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def draw() -> Any:
        return [augment() for _ in range(20)]

    def restore() -> None:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])

    alone = draw()
    restore()
    stop = threading.Event()

    def work() -> None:
        with new_streams().active() as streams:
            ticket = 0
            while not stop.is_set():
                streams.ticket = ticket = ticket + 1
                augment()
                random.seed(ticket)
                np.random.seed(ticket)
                torch.manual_seed(ticket)
                augment()

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(work)
        try:
            assert draw() == alone
        finally:
            stop.set()
            restore()


def test_a_seed_is_asked_for_at_the_first_draw_and_once() -> None:
    asked: list[int] = []

    def resolve(ticket: int) -> int:
        asked.append(ticket)
        return ticket

    streams = SampleStreams()
    with streams.active():
        streams.begin(resolve)
        streams.ticket = 1
        torch.stack([torch.zeros(1)])
        assert asked == []
        draw_something()
        draw_something()
        streams.ticket = 2
        streams.ticket = 3
        draw_something()
        assert asked == [1, 3]
        streams.begin(resolve)
        draw_something()
        assert asked == [1, 3, 3]


def test_begin_makes_the_same_ticket_another_sample() -> None:
    streams = SampleStreams()
    with streams.active():
        values = []
        for seed in (1, 2, 1):
            streams.begin(lambda _, seed=seed: seed)
            streams.ticket = 0
            values.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert values[0] == values[2] != values[1]


# Diverted samples ---------------------------------------------------------------------------------

PARTS: list[Callable[[], Any]] = [
    lambda: None,
    lambda: random.random(),
    lambda: [random.random() for _ in range(7)],
    lambda: [random.random() for _ in range(8)],
    lambda: [random.random() for _ in range(9)],
    lambda: random.gauss(0, 1),
    lambda: (random.gauss(0, 1), random.getstate()),
    lambda: random.seed(5),
    lambda: random.shuffle([1, 2, 3]),
    lambda: np.random.rand(),
    lambda: [np.random.uniform(1, 2) for _ in range(7)],
    lambda: [np.random.randint(100) for _ in range(8)],
    lambda: [np.random.random() for _ in range(9)],
    lambda: (np.random.rand(), np.random.get_state()),
    lambda: np.random.randn(),
    lambda: np.random.randint(0, 255, 3, dtype=np.uint8),
    lambda: np.random.seed(5),
    lambda: np.random.set_bit_generator(np.random.PCG64(3)),
    lambda: torch.rand(3),
    lambda: torch.empty(1).normal_(),
    lambda: torch.empty(1, dtype=torch.float64).normal_(),
    lambda: torch.manual_seed(5),
    draw_something,
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("pickled", [False, True])
def test_a_diverted_sample_goes_on_exactly(part: Callable[[], Any], pickled: bool) -> None:
    def rest() -> Any:
        return augment(), torch.initial_seed()

    def uninterrupted() -> Any:
        part()
        return rest()

    def begin() -> SampleState | None:
        with new_streams().active() as streams:
            streams.ticket = 1
            part()
            state = streams.detach()
            # This thread goes on with another sample.
            streams.ticket = 2
            draw_something()
        return state

    state = on_thread(begin)
    if pickled:
        state = pickle.loads(pickle.dumps(state))

    def go_on() -> Any:
        with new_streams().active() as streams:
            streams.ticket = 3
            draw_something()
            streams.ticket = 1
            streams.attach(state)
            return rest()

    assert on_thread(go_on) == as_sample(uninterrupted)


def test_a_sample_that_drew_nothing_has_nothing_to_detach() -> None:
    with new_streams().active() as streams:
        streams.ticket = 0
        draw_something()
        streams.ticket = 1
        torch.stack([torch.zeros(1)])
        assert streams.detach() is None
        random.random()
        state = streams.detach()
    assert state is not None
    assert (state.numpy, state.torch) == (None, None)


def test_the_state_of_a_diverted_sample_is_not_changed_by_going_on() -> None:
    with new_streams().active() as streams:
        streams.ticket = 1
        draw_something()
        state = streams.detach()
        values = []
        for _ in range(2):
            streams.begin(lambda ticket: ticket)
            streams.attach(state)
            values.append(augment())
    assert values[0] == values[1]


# Threads and activation ---------------------------------------------------------------------------


def test_a_thread_without_streams_draws_from_the_global_generators() -> None:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    here = augment()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    with new_streams().active() as streams:
        streams.ticket = 1
        augment()
        there = on_thread(augment)
    assert there == here
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_activation_nests() -> None:
    def outer() -> Any:
        values = [random.random(), np.random.rand(), torch.rand(1).item()]
        with new_streams(seed=9).active() as streams:
            streams.ticket = 5
            values.append(augment())
        return [*values, random.random(), np.random.rand(), torch.rand(1).item()]

    def flat() -> Any:
        return [draw() for _ in (0, 1) for draw in _DRAWS]

    found = as_sample(outer)
    assert found[:3] + found[4:] == as_sample(flat)
    assert found[3] == as_sample(augment, 5, seed=9)


_DRAWS: list[Callable[[], float]] = [
    lambda: random.random(),
    lambda: np.random.rand(),
    lambda: torch.rand(1).item(),
]


def test_the_same_streams_may_be_entered_again() -> None:
    streams = new_streams()
    streams.ticket = 1
    with streams.active(), streams.active():
        first = random.random()
    with streams.active() as again:
        assert again is streams
        second = random.random()
    assert [first, second] == as_sample(lambda: [random.random(), random.random()])


def test_an_exception_leaves_the_thread_as_it_was() -> None:
    with pytest.raises(KeyError), new_streams().active():
        raise KeyError
    assert current.streams is None
    assert torch.overrides._get_current_function_mode_stack() == []


def test_an_exception_in_a_draw_leaves_the_stream_usable() -> None:
    def without() -> Any:
        # So that what fails is not what lets the stream's `RandomState` take over.
        np.random.rand(1)
        return [draw() for draw in _DRAWS]

    def work() -> Any:
        np.random.rand(1)
        with pytest.raises(RuntimeError):
            torch.multinomial(torch.tensor([-1.0]), 1)
        with pytest.raises(ValueError, match="low >= high"):
            np.random.randint(5, 1)
        with pytest.raises(ValueError, match="empty range"):
            random.randint(5, 1)
        return [draw() for draw in _DRAWS]

    assert as_sample(work) == as_sample(without)


def test_installing_again_and_on_many_threads_changes_nothing() -> None:
    before = random.random, np.random.rand, torch.manual_seed.__code__
    with ThreadPoolExecutor(8) as pool:
        for _ in range(16):
            pool.submit(install)
    assert (random.random, np.random.rand, torch.manual_seed.__code__) == before


def test_a_forked_child_goes_on_with_the_sample() -> None:
    """It runs on in the thread that forked, with that thread's streams."""
    with new_streams().active() as streams:
        streams.ticket = 1
        draw_something()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                values = [draw() for draw in _DRAWS]
                os.write(write, pickle.dumps((values, global_state())))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            values, _ = pickle.loads(pipe.read())
        os.waitpid(child, 0)
        assert values == [draw() for draw in _DRAWS]


def test_a_forked_child_of_the_main_thread_has_new_global_randomness_as_ever() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, pickle.dumps([draw() for draw in _DRAWS]))
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        values = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    mine = [draw() for draw in _DRAWS]
    # Python reseeds `random` in a child; numpy and torch do not.
    assert values[0] != mine[0]
    assert values[1:] == mine[1:]
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_worker_rng_follows_the_sample() -> None:
    def work() -> Any:
        rng = current.streams.worker_rng  # type: ignore[union-attr]
        return plain(
            [
                rng.random_generator.random(),
                torch.rand(2, generator=rng.torch_generator),
                rng.numpy_generator.random(2),
                rng.numpy_generator.normal(size=2),
                random.random(),
                torch.rand(2),
                np.random.rand(2),
            ]
        )

    assert as_sample(work, after=2) == as_sample(work)
    assert as_sample(work, 2) != as_sample(work)


def test_a_generator_kept_from_an_earlier_sample_is_the_present_ones() -> None:
    with new_streams().active() as streams:
        streams.ticket = 2
        kept = streams.worker_rng.torch_generator
        torch.rand(5)
        streams.ticket = 1
        found = torch.rand(1, generator=kept).item(), torch.poisson(torch.ones(3), kept).tolist()
    assert found == as_sample(lambda: (torch.rand(1).item(), torch.poisson(torch.ones(3)).tolist()))
