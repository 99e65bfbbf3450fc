"""The `random` module: its hidden generator asks which thread is calling."""

from __future__ import annotations

import _random
import random
from typing import Any

from minato_async.seeding.current import current
from minato_async.seeding.keys import GOLDEN, MASK64, mix64
from minato_async.seeding.rebinding import Replacements

#: Draws of a sample that come straight from a hash of its seed. Seeding a Mersenne Twister from
#: 64 bits costs as much as a dozen of them, and most samples draw less than that.
HASHED_DRAWS = 8

#: State of a `PythonStream`: key, hashed draws left, twister's state or None, second gauss value.
PythonState = tuple[int, int, Any, float | None]


class PythonStream:
    """The numbers that `random` gives to one sample.

    The first come from splitmix64 over the sample's seed, the rest from a `random.Random`. What
    needs a real state (`seed`, `getstate`, `setstate`) goes to the latter at once, so a seed that
    user code sets gives the numbers that it gives everywhere.
    """

    __slots__ = ("_hashed_left", "_key", "_seeded", "_twister")

    def __init__(self) -> None:
        self._twister = random.Random(0)
        self._seeded = True
        self._hashed_left = 0
        self._key = 0

    def start(self, seed: int) -> None:
        """Begin the stream of `seed`, 64 bits."""
        self._key = seed
        self._hashed_left = HASHED_DRAWS
        self._seeded = False
        self._twister.gauss_next = None  # type: ignore[attr-defined]

    def _generator(self) -> random.Random:
        """The twister, from now on the source of all draws."""
        self._hashed_left = 0
        if not self._seeded:
            # Not `Random.seed`, which would forget the second value of `gauss`.
            _c_seed(self._twister, self._key)
            self._seeded = True
        return self._twister

    def random(self) -> float:
        if (left := self._hashed_left) > 0:
            self._hashed_left = left - 1
            # 53 bits, the precision of a float in [0, 1).
            return (mix64(self._key + GOLDEN * left) >> 11) * 2.0**-53
        return self._generator().random()

    def getrandbits(self, k: int) -> int:
        if (left := self._hashed_left) > 0 and type(k) is int and 0 < k <= 64:
            self._hashed_left = left - 1
            return mix64(self._key + GOLDEN * left) >> (64 - k)
        return self._generator().getrandbits(k)

    def seed(self, *args: Any, **kwargs: Any) -> None:
        self._generator().seed(*args, **kwargs)

    def getstate(self) -> tuple[Any, ...]:
        return self._generator().getstate()

    def setstate(self, state: Any) -> None:
        self._generator().setstate(state)

    @property
    def gauss_next(self) -> float | None:
        """The second of the two values that `random.gauss` makes at a time."""
        return self._twister.gauss_next  # type: ignore[attr-defined,no-any-return]

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        self._twister.gauss_next = value  # type: ignore[attr-defined]

    def save(self) -> PythonState:
        """Everything about the stream, picklable."""
        twister = self._twister.getstate() if self._seeded else None
        return self._key, self._hashed_left, twister, self.gauss_next

    def restore(self, state: PythonState) -> None:
        self._key, self._hashed_left, twister, second = state
        self._seeded = twister is not None
        if twister is not None:
            self._twister.setstate(twister)
        self.gauss_next = second


class _ThreadRandom(random.Random):
    """The class of the `random` module's hidden generator after `install`.

    `random.uniform`, `randint`, `choice` and the others are Python methods bound to that generator,
    which draw through ``self``: they follow wherever they were bound. Outside a worker the calls
    go to the same C state as before.
    """

    def random(self) -> float:
        streams = current.streams
        return _c_random(self) if streams is None else streams.python().random()

    def getrandbits(self, k: int, /) -> int:
        streams = current.streams
        return _c_getrandbits(self, k) if streams is None else streams.python().getrandbits(k)

    def seed(self, a: Any = None, version: int = 2) -> None:
        streams = current.streams
        # `Random.__init__` calls this, but no instance is ever made of this class.
        if streams is None:
            super().seed(a, version)
        else:
            streams.python().seed(a, version)

    def getstate(self) -> tuple[Any, ...]:
        streams = current.streams
        return super().getstate() if streams is None else streams.python().getstate()

    def setstate(self, state: Any) -> None:
        streams = current.streams
        if streams is None:
            super().setstate(state)
        else:
            streams.python().setstate(state)

    @property
    def gauss_next(self) -> float | None:
        streams = current.streams
        if streams is None:
            return vars(self).get("gauss_next")
        return streams.python().gauss_next

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        streams = current.streams
        if streams is None:
            vars(self)["gauss_next"] = value
        else:
            streams.python().gauss_next = value

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy is a plain generator, as a copy of the module's generator always was.
        return random.Random, (), self.getstate()


_c_random = _random.Random.random
_c_seed = _random.Random.seed
_c_getrandbits = _random.Random.getrandbits
#: Names of the module that are C methods, or Python methods that end in one through `super`.
_NAMES = ("random", "getrandbits", "seed", "getstate", "setstate")

for _name in _NAMES:
    _method, _original = getattr(_ThreadRandom, _name), getattr(random.Random, _name)
    _method.__doc__ = _original.__doc__
    _method.__module__, _method.__qualname__ = "random", f"Random.{_name}"
_ThreadRandom.__name__ = _ThreadRandom.__qualname__ = "Random"
_ThreadRandom.__module__ = "random"


def install() -> Replacements:
    """Make the `random` module's generator ask which thread is calling; returns which objects
    are to be replaced under the names that hold them."""
    generator: Any = random._inst
    old = {name: getattr(random, name) for name in _NAMES}
    generator.__class__ = _ThreadRandom
    replacements: Replacements = {}
    for name, bound in old.items():
        # Something else that stands under the name, a test's fake for one, is left alone.
        if getattr(bound, "__self__", None) is generator:
            replacements[id(bound)] = bound, getattr(generator, name)
    return replacements


def module_generator() -> random.Random:
    """The generator behind `random`'s functions, which follows the calling thread."""
    return random._inst


def python_seed(seed: int) -> int:
    """The part of a sample's seed that `random` gets."""
    return (seed ^ 0x7261_6E64_6F6D_2E70) & MASK64
