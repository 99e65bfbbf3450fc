"""`numpy.random`: its hidden `RandomState` asks which thread is calling.

Imported only where numpy is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import mtrand

from minato_async.seeding.current import NO_SAMPLE, current
from minato_async.seeding.rebinding import Replacements

if TYPE_CHECKING:
    from minato_async.seeding.streams import SampleStreams

#: What `RandomState.get_state(legacy=False)` returns, and the state of what took its place.
NumpyState = dict[str, Any]


class NumpyStream:
    """The numbers that `numpy.random` gives to the current sample of `streams`: a `RandomState`,
    reseeded for each sample."""

    __slots__ = ("_generator", "_own", "_state", "_streams", "sample")

    def __init__(self, streams: SampleStreams) -> None:
        self._streams = streams
        #: The ticket of the sample that the state belongs to.
        self.sample: Any = NO_SAMPLE
        self._own = np.random.RandomState(0)
        # Another object only if the sample installed a bit generator of its own.
        self._state = self._own
        self._generator: np.random.Generator | None = None

    def state(self) -> np.random.RandomState:
        """The current sample's stream."""
        streams = self._streams
        if self.sample is not streams.ticket:
            # 32 bits, for a RandomState takes long to seed from more. The upper half of a product
            # depends on all bits of the lower, so seeds that differ in a few low bits are apart.
            own = self._own
            own.seed(streams.seed() * 0x9E3779B97F4A7C15 >> 32 & 0xFFFFFFFF)
            self._state = own
            self.sample = streams.ticket
        return self._state

    def set_bit_generator(self, bit_generator: Any) -> None:
        """Draw from `bit_generator` for the rest of the sample."""
        self._state = np.random.RandomState(bit_generator)
        self.sample = self._streams.ticket

    @property
    def generator(self) -> np.random.Generator:
        """The same stream of bits as a `numpy.random.Generator`."""
        bits = self.state()._bit_generator
        if self._generator is None or self._generator.bit_generator is not bits:
            self._generator = np.random.Generator(bits)
        return self._generator

    def save(self) -> NumpyState:
        """Everything about the stream, picklable."""
        return self._state.get_state(legacy=False)

    def restore(self, state: NumpyState) -> None:
        """Go on from a saved stream, as the current sample's."""
        self._state = self._own
        if state["bit_generator"] != "MT19937":
            self._state = np.random.RandomState(getattr(np.random, state["bit_generator"])())
        self._state.set_state(state)
        self.sample = self._streams.ticket


_global: Any = mtrand._rand  # before `install`


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
        seed = np.frombuffer(streams.numpy.state().bytes(16), np.uint32)
    return _default_rng(seed)


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
