"""`numpy.random`: its hidden `RandomState` asks which thread is calling.

Imported only where numpy is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import mtrand

from minato_async.seeding.current import NO_SAMPLE, Ticketed, current
from minato_async.seeding.keys import nth
from minato_async.seeding.rebinding import Replacements, mark, original_of

# As with `random`, a sample's first eight draws of a single number come straight from a hash of its
# seed, and the rest from a generator that takes long to seed. Numbers in the methods of
# `NumpyStream` stand as literals, for the reason given in `keys`.

#: Stands for the number of hashed draws left, once the twister has been seeded.
_TWISTER = -1

#: State of a `NumpyStream`: key, hashed draws left, the `RandomState`'s state or None.
NumpyState = tuple[int, int, dict[str, Any] | None]


class NumpyStream:
    """The numbers that `numpy.random` gives to the current sample of `streams`.

    The first, where only one is asked for at a time, come from a hash of the sample's seed, all
    others from a `RandomState`. What needs a real state goes to the latter at once.
    """

    __slots__ = ("_generator", "_hashed_left", "_key", "_own", "_state", "_streams", "sample")

    def __init__(self, streams: Ticketed) -> None:
        self._streams = streams
        #: The ticket of the sample that the state belongs to.
        self.sample: Any = NO_SAMPLE
        self._key = 0
        # Single numbers to be drawn before the `RandomState` takes over.
        self._hashed_left = 0
        # Made by the first sample that needs it, for that takes longer than all else that a thread
        # sets up. Seeding it again is quick.
        self._own: np.random.RandomState | None = None
        # Another object only if the sample installed a bit generator of its own. Not there before
        # the first sample that needs one.
        self._state: np.random.RandomState
        self._generator: np.random.Generator | None = None

    def _start(self) -> int:
        """Begin the current sample's stream; returns its first single number, 64 bits."""
        streams = self._streams
        # Another key than torch and `random` get. It is a hash already: it is the first number.
        key = self._key = streams.seed() ^ 0x6E756D70792E7261
        self.sample = streams.ticket
        self._hashed_left = 7
        return key

    def hashed(self) -> int:
        """The next single number, 64 bits; -1 where the `RandomState` is to draw it."""
        if self.sample is not self._streams.ticket:
            return self._start()
        if (left := self._hashed_left) > 0:
            self._hashed_left = left - 1
            return nth(self._key, left)
        return -1

    def state(self) -> np.random.RandomState:
        """The current sample's `RandomState`, from now on the source of all its draws."""
        if self.sample is not self._streams.ticket:
            self._start()
        if self._hashed_left != _TWISTER:
            # 32 bits, for a RandomState takes long to seed from more. The upper half of a product
            # depends on all bits of the lower, so seeds that differ in a few low bits are apart.
            seed = self._key * 0x9E3779B97F4A7C15 >> 32 & 0xFFFFFFFF
            own = self._own
            if own is None:
                own = self._own = np.random.RandomState(seed)
            else:
                own.seed(seed)
            self._state = own
            self._hashed_left = _TWISTER
        return self._state

    def _go_on_with(self, state: np.random.RandomState) -> None:
        self._state = state
        self._hashed_left = _TWISTER
        self.sample = self._streams.ticket

    def set_bit_generator(self, bit_generator: Any) -> None:
        """Draw from `bit_generator` for the rest of the sample."""
        self._go_on_with(np.random.RandomState(bit_generator))

    @property
    def generator(self) -> np.random.Generator:
        """The same stream of bits as a `numpy.random.Generator`."""
        bits = self.state()._bit_generator
        if self._generator is None or self._generator.bit_generator is not bits:
            self._generator = np.random.Generator(bits)
        return self._generator

    @property
    def begun(self) -> bool:
        """Whether the current sample has drawn from here, or seeded this."""
        return self.sample is self._streams.ticket

    def save(self) -> NumpyState:
        """Everything about the stream, picklable."""
        seeded = self._hashed_left == _TWISTER
        state = self._state.get_state(legacy=False) if seeded else None
        return self._key, self._hashed_left, state

    def restore(self, saved: NumpyState) -> None:
        """Go on from a saved stream, as the current sample's."""
        key, left, state = saved
        if state is not None:
            if state["bit_generator"] != "MT19937":
                target = np.random.RandomState(getattr(np.random, state["bit_generator"])())
            else:
                target = self._own = self._own or np.random.RandomState(0)
            target.set_state(state)
            self._go_on_with(target)
        self._key, self._hashed_left = key, left
        self.sample = self._streams.ticket


_global: Any = original_of(mtrand._rand)  # before `install`


def _target() -> Any:
    """The `RandomState` that the calling thread draws from."""
    streams = current.streams
    return _global if streams is None else streams.numpy.state()


class _ThreadState(np.random.RandomState):
    """Stands in `numpy.random.mtrand._rand` after `install`; its own state is never used.

    Libraries take that object when they are given no seed (scipy, scikit-learn), and numpy's
    `seed`, `ranf` and `sample` look it up at every call.
    """

    @property
    def _bit_generator(self) -> Any:  # type: ignore[override]
        return _target()._bit_generator

    def __getstate__(self) -> Any:
        return _target().__getstate__()

    def __setstate__(self, state: Any) -> None:
        _target().__setstate__(state)

    def __reduce__(self) -> Any:
        # A copy is a plain RandomState, as a copy of numpy's hidden one always was.
        return _target().__reduce__()

    def __repr__(self) -> str:
        return repr(_target())

    def __str__(self) -> str:
        return str(_target())


def _follow(name: str) -> Callable[..., Any]:
    """A method that calls the method `name` of the calling thread's `RandomState`."""
    original = getattr(np.random.RandomState, name)
    on_global = getattr(_global, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        streams = current.streams
        if streams is None:
            return on_global(*args, **kwargs)
        return original(streams.numpy.state(), *args, **kwargs)

    return method


def _random_sample(name: str) -> Callable[..., Any]:
    """`random_sample` under one of its names."""
    follow = _follow(name)

    @functools.wraps(getattr(np.random.RandomState, name))
    def random_sample(self: Any, size: Any = None) -> Any:
        streams = current.streams
        if streams is not None and size is None and (bits := streams.numpy.hashed()) >= 0:
            # 53 bits, the precision of a float in [0, 1).
            return (bits >> 11) * 2.0**-53
        return follow(self, size)

    return random_sample


def _rand() -> Callable[..., Any]:
    follow = _follow("rand")

    @functools.wraps(np.random.RandomState.rand)
    def rand(self: Any, *shape: Any) -> Any:
        streams = current.streams
        if streams is not None and not shape and (bits := streams.numpy.hashed()) >= 0:
            return (bits >> 11) * 2.0**-53
        return follow(self, *shape)

    return rand


def _uniform() -> Callable[..., Any]:
    follow = _follow("uniform")

    @functools.wraps(np.random.RandomState.uniform)
    def uniform(self: Any, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        streams = current.streams
        if (
            streams is not None
            and size is None
            and (type(low) is float or type(low) is int)
            and (type(high) is float or type(high) is int)
            # Beyond it, and where it is not a number, numpy has errors of its own.
            and -1e300 < high - low < 1e300
            and (bits := streams.numpy.hashed()) >= 0
        ):
            return low + (high - low) * ((bits >> 11) * 2.0**-53)
        return follow(self, low, high, size)

    return uniform


def _randint() -> Callable[..., Any]:
    follow = _follow("randint")

    @functools.wraps(np.random.RandomState.randint)
    def randint(self: Any, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        streams = current.streams
        if streams is not None and size is None and dtype is int and type(low) is int:
            first, end = (0, low) if high is None else (low, high)
            # From 64 bits, 32 are drawn without a bias that anybody could find.
            if (
                type(end) is int
                and first < end <= first + 0x100000000
                and first >= -0x8000000000000000
                and end <= 0x8000000000000000
                and (bits := streams.numpy.hashed()) >= 0
            ):
                return first + (bits * (end - first) >> 64)
        return follow(self, low, high, size, dtype)

    return randint


_METHODS = {
    name: _follow(name)
    for name in dir(np.random.RandomState)
    if not name.startswith("_") and callable(getattr(np.random.RandomState, name))
} | {
    "random": _random_sample("random"),
    "random_sample": _random_sample("random_sample"),
    "rand": _rand(),
    "uniform": _uniform(),
    "randint": _randint(),
}


_default_rng: Any = original_of(np.random.default_rng)
_set_bit_generator: Any = original_of(mtrand.set_bit_generator)


@functools.wraps(_default_rng)
def _thread_default_rng(seed: Any = None) -> np.random.Generator:
    """With no seed, in a sample: a generator seeded from the sample's stream."""
    streams = current.streams
    if seed is None and streams is not None:
        seed = np.frombuffer(streams.numpy.state().bytes(16), np.uint32)
    generator: np.random.Generator = _default_rng(seed)
    return generator


@functools.wraps(_set_bit_generator)
def _thread_set_bit_generator(bitgen: Any) -> None:
    streams = current.streams
    if streams is None:
        # What numpy's own function does to the object under the name that we have replaced.
        _global.__init__(bitgen)
    else:
        streams.numpy.set_bit_generator(bitgen)


def install() -> Replacements:
    """Which objects are to be replaced, under the names that hold them, to make `numpy.random` ask
    which thread is calling."""
    dispatcher: Any = type("RandomState", (_ThreadState,), _METHODS)()
    mark(dispatcher, _global)
    mark(_thread_default_rng, _default_rng)
    mark(_thread_set_bit_generator, _set_bit_generator)
    # What stands there now may have been put there by another import of this package.
    installed: Any = mtrand._rand
    replacements: Replacements = {
        id(old): (old, new)
        for old, new in (
            (installed, dispatcher),
            (np.random.default_rng, _thread_default_rng),
            (mtrand.set_bit_generator, _thread_set_bit_generator),
        )
    }
    for bound in vars(mtrand).values():
        if getattr(bound, "__self__", None) is installed:
            replacements[id(bound)] = bound, getattr(dispatcher, bound.__name__)
    return replacements
