"""In a worker process torch's global generators are the sample's: the numbers are those of threads.

Here this process plays the part of a worker.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minato_async.seeding import sample_seed
from minato_async.seeding.current import current
from minato_async.seeding.process_streams import ProcessStreams
from tests.seeding import test_torch_operators as operators
from tests.seeding.support import as_sample, on_thread, plain

image = torch.linspace(0.2, 0.8, 2 * 4 * 40 * 16).reshape(2, 4, 40, 16)


@pytest.fixture(autouse=True)
def global_generator() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


def new_streams() -> ProcessStreams:
    streams = ProcessStreams()
    streams.begin(functools.partial(sample_seed, 0, 0))
    return streams


def as_process(work: Callable[[], Any], ticket: int = 1) -> Any:
    def main() -> Any:
        streams = new_streams()
        with streams.active():
            for other in (*range(1000, 1002), ticket):
                streams.ticket = other
                result = work()
            return result

    # On a new thread, as `as_sample`. What any thread has set by `torch.set_num_threads` (torch's
    # own thread that pins memory does) holds for new threads, and not for the main one: operators
    # that split their work among other numbers of threads round differently.
    return on_thread(main)


CALLS: dict[str, Callable[[], Any]] = {
    **operators.FUNCTIONAL,
    **operators.MORE,
    "alpha dropout of doubles": lambda: nn.functional.alpha_dropout(
        image.double(), 0.37, training=True
    ),
    "attention of some heads": lambda: nn.functional.scaled_dot_product_attention(
        image, image, image, dropout_p=0.3
    ),
    "attention with a mask": lambda: nn.functional.scaled_dot_product_attention(
        image, image, image, attn_mask=image[..., :1, :1] < 0.5, dropout_p=0.3
    ),
    "dropout of halves": lambda: nn.functional.dropout(image.half(), 0.3),
    "all libraries": lambda: [random.random(), np.random.rand(3), torch.initial_seed()],
    "a seed": lambda: [torch.manual_seed(5).initial_seed(), torch.rand(3)],
}


#: They multiply matrices. How that is rounded is up to the library, which splits it as it likes.
MULTIPLIES = {name for name in CALLS if "attention" in name or name == "svd_lowrank"}


@pytest.mark.parametrize("name", CALLS)
def test_the_numbers_are_those_of_threads(name: str) -> None:
    def work() -> Any:
        return [CALLS[name](), CALLS[name]()]

    here, there = as_process(work), as_sample(work)
    if name in MULTIPLIES:
        # A value that is dropped in one and not in the other is far off.
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-6)
    else:
        assert plain(here) == plain(there)


def test_other_numbers_are_not_taken_for_rounded_ones() -> None:
    assert len(MULTIPLIES) > 4
    for name in MULTIPLIES:
        with pytest.raises(AssertionError):
            torch.testing.assert_close(
                as_process(CALLS[name]), as_sample(CALLS[name], 2), rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("function", operators.INITS, ids=lambda function: function.__name__)
def test_an_initialisation_is_that_of_threads(function: Callable[..., torch.Tensor]) -> None:
    more = (0.5,) if function.__name__ == "sparse_" else ()

    def work() -> Any:
        return plain(function(torch.empty(8, 8), *more))

    assert as_process(work) == as_sample(work)


def test_what_draws_inside_torch_follows_too() -> None:
    """On threads it warns, or draws from the generator of all."""
    layer = nn.LSTM(3, 3, num_layers=2, dropout=0.5)

    @torch.jit.script
    def scripted(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(3) + torch.nn.functional.dropout(x)

    def work() -> Any:
        with torch.no_grad():
            return plain([layer(image[0, 0, :, :3])[0], scripted(image[0, 0, :, :3])])

    assert as_process(work) == as_process(work) != as_process(work, 2)


def test_nothing_is_hooked() -> None:
    with new_streams().active() as streams:
        assert current.streams is streams
        assert current.torch is None
    assert current.streams is None


def test_an_announced_sample_is_not_seeded_again() -> None:
    with new_streams().active() as streams:
        ticket = object()
        streams.begin(lambda _: 5)
        streams.ticket = ticket
        first = torch.rand(1)
        streams.ticket = ticket
        assert torch.rand(1) != first
        streams.begin(lambda _: 5)
        streams.ticket = ticket
        assert torch.rand(1) == first


def test_what_draws_nothing_needs_no_seed() -> None:
    """The seed of a batch is dear."""

    def unwanted(_: Any) -> int:
        raise AssertionError

    with new_streams().active() as streams:
        streams.begin(unwanted, False)
        streams.ticket = object()
        streams.end()


@pytest.mark.parametrize("drawn", [0, 1, 700])
@pytest.mark.parametrize("home", ["process", "thread"])
def test_a_sample_goes_on_elsewhere(drawn: int, home: str) -> None:
    def whole() -> Any:
        torch.rand(drawn)
        return plain([torch.rand(3), random.random()])

    with new_streams().active() as streams:
        streams.ticket = 7
        torch.rand(drawn)
        state = streams.detach()
        assert (state is None) == (drawn == 0)
        again = torch.rand(2)
        streams.ticket = 8
        torch.rand(5)
        streams.begin(functools.partial(sample_seed, 0, 0))
        streams.ticket = 7
        assert torch.equal(torch.rand(2), again)
        if home == "process":
            streams.begin(functools.partial(sample_seed, 0, 0))
            streams.ticket = 7
            streams.attach(state)
            assert plain([torch.rand(3), random.random()]) == as_sample(whole, 7)

    def go_on() -> Any:
        here = current.streams
        assert here is not None
        here.attach(state)
        return plain([torch.rand(3), random.random()])

    if home == "thread":
        assert as_sample(go_on, 7) == as_sample(whole, 7)


class _Device:
    """Plays the part of `torch.cuda`: generators that come into being when the device is used."""

    def __init__(self) -> None:
        self._initialized = False
        self.default_generators = [torch.Generator(), torch.Generator()]
        self._queued: Any = None

    def _is_compiled(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def _lazy_call(self, call: Callable[[], None], seed_all: bool) -> None:
        self._queued = call

    def use(self) -> None:
        self._initialized = True
        self._queued()


def test_devices_follow_from_their_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device()
    monkeypatch.setattr(torch, "cuda", device)
    with new_streams().active() as streams:
        streams.ticket = 1
        seed = torch.initial_seed()
        device.use()
        first = device.default_generators[1]
        assert first.initial_seed() == seed
        drawn = torch.rand(2, generator=first)
        streams.ticket = 2
        assert first.initial_seed() == torch.initial_seed() != seed
        streams.ticket = 1
        assert torch.equal(torch.rand(2, generator=first), drawn)
        state = streams.detach()
        assert state is not None
        following = torch.rand(2, generator=first)
        assert torch.equal(following, drawn)
