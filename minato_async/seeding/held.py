"""Random generators that objects of the user's hold: in a sample they draw from its streams.

Each place where a generator is held has a stream of its own, whose seed is made of the sample's and
of the place. A worker's replica has one of these in the place of each original: of the same kind,
seeded at the first draw of a sample that draws from it. A `torch.Generator` cannot be asked first:
its methods are not what draws. So it is seeded before each step in which it may be drawn from.
"""

from __future__ import annotations

import functools
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from minato_async.seeding.current import NO_SAMPLE, current
from minato_async.seeding.keys import key_number, mix64, nth
from minato_async.seeding.torch_random import dump, load


def place_key(place: str) -> int:
    """What tells the streams of one place from those of all others, 64 bits."""
    return key_number(place)


def reseed(generator: Any, seed: int) -> None:
    """Let `generator`, of whatever library, begin anew from 64 bits."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
    elif isinstance(generator, random.Random):
        random.Random.seed(generator, seed)
    else:
        bits = bits_of(generator)
        if isinstance(generator, np.random.RandomState) and type(bits) is np.random.MT19937:
            # From 32 bits, for it takes long to seed one from more.
            np.random.RandomState.seed(generator, seed >> 32)
        else:
            bits.state = _fresh_state(type(bits), seed)


def bits_of(generator: Any) -> Any:
    """The bit generator of one of numpy's."""
    if isinstance(generator, np.random.RandomState):
        return _state_bits.__get__(generator)
    return _generator_bits.__get__(generator)


def _fresh_state(kind: Any, seed: int) -> Any:
    if kind.__name__ == "PCG64":
        # As good as what its constructor makes of a seed, in a twentieth of the time.
        state = nth(seed, 1) << 64 | nth(seed, 2)
        increment = nth(seed, 3) << 64 | nth(seed, 4) | 1
        return {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }
    return kind(np.random.SeedSequence(seed)).state


def save(generator: Any) -> Any:
    """The state of `generator`, picklable without shared memory."""
    if isinstance(generator, torch.Generator):
        return dump(generator)
    if isinstance(generator, random.Random):
        return random.Random.getstate(generator)
    if isinstance(generator, np.random.RandomState):
        return np.random.RandomState.__getstate__(generator)
    return bits_of(generator).state


def restore(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        load(generator, state)
    elif isinstance(generator, random.Random):
        random.Random.setstate(generator, state)
    elif isinstance(generator, np.random.RandomState):
        np.random.RandomState.__setstate__(generator, state)
    else:
        bits_of(generator).state = state


class Place:
    """Where one generator is held, in the replica of one worker. Knows which sample its state
    belongs to; the state itself is the generator's."""

    __slots__ = ("_expected", "_key", "_refer", "name", "sample", "seeded", "stays")

    def __init__(self, name: str, generator: Any, knows_place: bool = False) -> None:
        """`knows_place`: the generator refers to this, and not both to each other: in a circle
        they would be left to the collector, which comes rarely where Python is free-threaded."""
        self.name = name
        self._key = place_key(name)
        self._refer: Callable[[], Any] = (
            weakref.ref(generator) if knows_place else lambda: generator
        )
        self.sample: Any = NO_SAMPLE
        #: The user's code has seeded it; of torch's it is seen by the seed.
        self.seeded = False
        self._expected = 0
        #: It was `worker_init_fn` that did: what it draws is the user's affair.
        self.stays = False

    def begin(self, streams: Any) -> None:
        """Draw from the stream of the current sample of `streams`, from now on."""
        if self.stays:
            self.sample = streams.ticket
            return
        # Before it is known whose it is: the last sample's places are forgotten in there.
        state = streams.held.join(self)
        self.sample = streams.ticket
        if state is None:
            reseed(self.generator, mix64(streams.seed() ^ self._key))
        else:
            restore(self.generator, state)

    @property
    def generator(self) -> Any:
        return self._refer()

    def expect_seeds(self) -> None:
        """The user's code may seed it from now on, see `was_seeded`."""
        self.here()
        self.seeded = False
        if isinstance(self.generator, torch.Generator):
            self._expected = self.generator.initial_seed()

    def save(self) -> Any:
        """The generator's state, picklable."""
        return save(self.generator)

    @property
    def was_seeded(self) -> bool:
        if isinstance(self.generator, torch.Generator):
            return self.generator.initial_seed() != self._expected
        return self.seeded

    def here(self) -> None:
        """As `begin`, if this is not the sample's first draw and the thread runs samples."""
        streams: Any = current.streams
        if streams is not None and self.sample is not streams.ticket:
            self.begin(streams)


# The generators that ask which sample it is


def _drawing(original: Callable[..., Any], seeds: bool = False) -> Callable[..., Any]:
    """`original`, a method, for a held generator. `seeds`: it sets the state."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        place = self.place
        if place is not None:
            streams = current.streams
            if streams is not None and place.sample is not streams.ticket:
                place.begin(streams)
            if seeds:
                place.seeded = True
        return original(self, *args, **kwargs)

    return method


def _methods(cls: Any, *more: str, seeds: tuple[str, ...]) -> dict[str, Any]:
    public = [
        name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))
    ]
    return {name: _drawing(getattr(cls, name), name in seeds) for name in (*public, *more)}


def _asking_first(descriptor: Any) -> property:
    def get(self: Any) -> Any:
        if self.place is not None:
            self.place.here()
        return descriptor.__get__(self)

    return property(get)


_state_bits: Any = np.random.RandomState._bit_generator
_generator_bits: Any = np.random.Generator.bit_generator


def _class(base: Any, methods: dict[str, Any]) -> Any:
    # By the name that it had: users show it, and compare names.
    names = {"place": None, "__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base,), names | methods)


_HeldState = _class(
    np.random.RandomState,
    _methods(
        np.random.RandomState,
        *("__reduce__", "__getstate__"),
        "__setstate__",
        seeds=("seed", "set_state", "__setstate__"),
    )
    | {"_bit_generator": _asking_first(_state_bits)},
)
_HeldGenerator = _class(
    np.random.Generator,
    _methods(np.random.Generator, "__reduce__", "__getstate__", "__setstate__", seeds=())
    | {"bit_generator": _asking_first(_generator_bits)},
)


def _copy_of_random(self: Any) -> Any:
    # A copy is a plain generator.
    return random.Random, (), self.getstate()


_HeldRandom = _class(
    random.Random,
    {
        name: _drawing(getattr(random.Random, name), name in ("seed", "setstate"))
        for name in ("random", "getrandbits", "gauss", "getstate", "seed", "setstate")
    }
    | {"__reduce__": _copy_of_random},
)


class Following:
    """Makes generators for replicas, see `replicas.random_generators`."""

    classes = (_HeldState, _HeldGenerator, _HeldRandom)

    def held(self, own: Any) -> Any:
        """What stands for `own`, a new generator in its first state, in a replica."""
        if isinstance(own, np.random.RandomState):
            return _HeldState(own._bit_generator)
        if isinstance(own, np.random.Generator):
            return _HeldGenerator(own.bit_generator)
        if isinstance(own, random.Random):
            held = _HeldRandom(0)
            held.setstate(own.getstate())
            return held
        return own

    def place(self, name: str, held: Any) -> Place:
        if isinstance(held, torch.Generator):
            return Place(name, held)
        held.place = place = Place(name, held, knows_place=True)
        return place
