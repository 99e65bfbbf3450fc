"""`numpy.random`: its hidden `RandomState` asks which thread is calling.

Imported only where numpy is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import mtrand

from minato_async.seeding.current import current
from minato_async.seeding.keys import GOLDEN
from minato_async.seeding.rebinding import Replacements

#: What `RandomState.get_state(legacy=False)` returns, and the state of what took its place.
NumpyState = dict[str, Any]


class NumpyStream:
    """The numbers that `numpy.random` gives to one sample: a `RandomState`, reseeded for each."""

    __slots__ = ("_generator", "_own", "state")

    def __init__(self) -> None:
        self._own = np.random.RandomState(0)
        #: The stream itself. Another object only if a sample installed a bit generator of its own.
        self.state = self._own
        self._generator: np.random.Generator | None = None

    def start(self, seed: int) -> None:
        """Begin the stream of `seed`, 32 bits."""
        self.state = self._own
        self._own.seed(seed)

    def set_bit_generator(self, bit_generator: Any) -> None:
        """Draw from `bit_generator` for the rest of the sample."""
        self.state = np.random.RandomState(bit_generator)

    @property
    def generator(self) -> np.random.Generator:
        """The same stream of bits as a `numpy.random.Generator`."""
        bits = self.state._bit_generator
        if self._generator is None or self._generator.bit_generator is not bits:
            self._generator = np.random.Generator(bits)
        return self._generator

    def save(self) -> NumpyState:
        """Everything about the stream, picklable."""
        return self.state.get_state(legacy=False)

    def restore(self, state: NumpyState) -> None:
        if state["bit_generator"] == "MT19937":
            self.state = self._own
        else:
            kind = getattr(np.random, state["bit_generator"])
            self.state = np.random.RandomState(kind())
        self.state.set_state(state)


_global: Any = mtrand._rand  # before `install`


def _target() -> Any:
    """The `RandomState` that the calling thread draws from."""
    streams = current.streams
    return _global if streams is None else streams.numpy().state


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
        return getattr(streams.numpy().state, name)(*args, **kwargs)

    return method


_METHODS = [
    name
    for name in dir(np.random.RandomState)
    if not name.startswith("_") and callable(getattr(np.random.RandomState, name))
]


_default_rng = np.random.default_rng
_set_bit_generator: Any = mtrand.set_bit_generator


@functools.wraps(_default_rng)
def _thread_default_rng(seed: Any = None) -> np.random.Generator:
    """With no seed, in a sample: a generator seeded from the sample's stream."""
    streams = current.streams
    if seed is None and streams is not None:
        seed = np.frombuffer(streams.numpy().state.bytes(16), np.uint32)
    return _default_rng(seed)


@functools.wraps(_set_bit_generator)
def _thread_set_bit_generator(bitgen: Any) -> None:
    streams = current.streams
    if streams is None:
        # What numpy's own function does to the object under the name that we have replaced.
        _global.__init__(bitgen)
    else:
        streams.numpy().set_bit_generator(bitgen)


def install() -> Replacements:
    """Which objects are to be replaced, under the names that hold them, to make `numpy.random` ask
    which thread is calling."""
    methods = {name: _follow(name) for name in _METHODS}
    dispatcher: Any = type("RandomState", (_ThreadState,), methods)()
    replacements: Replacements = {
        id(_global): (_global, dispatcher),
        id(_default_rng): (_default_rng, _thread_default_rng),
        id(_set_bit_generator): (_set_bit_generator, _thread_set_bit_generator),
    }
    for bound in vars(mtrand).values():
        if getattr(bound, "__self__", None) is _global:
            replacements[id(bound)] = bound, getattr(dispatcher, bound.__name__)
    return replacements


def numpy_seed(seed: int) -> int:
    """The part of a sample's seed that numpy gets: 32 bits, which RandomState takes cheaply.

    The upper half of a product depends on all bits of the lower half, so that loaders' seeds that
    differ in a few low bits (one a worker) give different streams too.
    """
    return (seed * GOLDEN >> 32) & 0xFFFFFFFF
