"""The `random` module: its hidden generator asks which thread is calling."""

from __future__ import annotations

import _random
import random
from random import Random
from typing import Any

from minato_async.seeding.current import NO_SAMPLE, Ticketed, current
from minato_async.seeding.keys import nth
from minato_async.seeding.rebinding import Replacements

# A sample's first eight draws come straight from a hash of its seed. Seeding a Mersenne Twister
# from 64 bits costs as much as a dozen of them, and most samples draw less than that.
#
# Numbers in the methods of `PythonStream` stand as literals, for the reason given in `keys`.

#: Stands for the number of hashed draws left, once the twister has been seeded.
_TWISTER = -1

#: State of a `PythonStream`: key, hashed draws left, twister's state or None, second gauss value.
PythonState = tuple[int, int, Any, float | None]


class PythonStream:
    """The numbers that `random` gives to the current sample of `streams`.

    The first come from a hash of the sample's seed, the rest from a `random.Random`. What
    needs a real state (`seed`, `getstate`, `setstate`) goes to the latter at once, so a seed that
    user code sets gives the numbers that it gives everywhere.
    """

    __slots__ = ("_gauss_next", "_hashed_left", "_key", "_streams", "_twister", "sample")

    def __init__(self, streams: Ticketed) -> None:
        self._streams = streams
        #: The ticket of the sample that the fields below belong to.
        self.sample: Any = NO_SAMPLE
        self._key = 0
        # Draws left before the twister takes over.
        self._hashed_left = 0
        self._twister = Random(0)
        self._gauss_next: float | None = None

    def _start(self) -> int:
        """Begin the current sample's stream; returns its first draw, 64 bits."""
        streams = self._streams
        # Another key than torch and numpy get. It is a hash already: the first draw is it itself.
        key = self._key = streams.seed() ^ 0x72616E646F6D2E70
        self.sample = streams.ticket
        self._hashed_left = 7
        self._gauss_next = None
        return key

    def _hashed(self, left: int) -> int:
        """The draw that is the last but `left`, 64 bits."""
        self._hashed_left = left - 1
        return nth(self._key, left)

    def random(self) -> float:
        if self.sample is not self._streams.ticket:
            # 53 bits, the precision of a float in [0, 1).
            return (self._start() >> 11) * 2.0**-53
        if (left := self._hashed_left) > 0:
            return (self._hashed(left) >> 11) * 2.0**-53
        return self._generator().random()

    def getrandbits(self, k: int) -> int:
        if type(k) is int and 0 < k <= 64:
            if self.sample is not self._streams.ticket:
                return self._start() >> 64 - k
            if (left := self._hashed_left) > 0:
                return self._hashed(left) >> 64 - k
        return self._generator().getrandbits(k)

    def _generator(self) -> Random:
        """The twister, from now on the source of all draws of this sample."""
        if self.sample is not self._streams.ticket:
            self._start()
        if self._hashed_left != _TWISTER:
            self._twister.seed(self._key)
            self._hashed_left = _TWISTER
        return self._twister

    def seed(self, *args: Any) -> None:
        self._generator().seed(*args)
        self._gauss_next = None

    def getstate(self) -> tuple[Any, ...]:
        generator: Any = self._generator()
        generator.gauss_next = self._gauss_next
        state: tuple[Any, ...] = generator.getstate()
        return state

    def setstate(self, state: Any) -> None:
        generator: Any = self._generator()
        generator.setstate(state)
        self._gauss_next = generator.gauss_next

    @property
    def gauss_next(self) -> float | None:
        """The second of the two values that `random.gauss` makes at a time."""
        return self._gauss_next if self.sample is self._streams.ticket else None

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        if self.sample is not self._streams.ticket:
            self._start()
        self._gauss_next = value

    @property
    def begun(self) -> bool:
        """Whether the current sample has drawn from here, or seeded this."""
        return self.sample is self._streams.ticket

    def save(self) -> PythonState:
        """Everything about the stream, picklable."""
        twister = self._twister.getstate() if self._hashed_left == _TWISTER else None
        return self._key, self._hashed_left, twister, self._gauss_next

    def restore(self, state: PythonState) -> None:
        """Go on from a saved stream, as the current sample's."""
        self._key, self._hashed_left, twister, self._gauss_next = state
        if twister is not None:
            self._twister.setstate(twister)
        self.sample = self._streams.ticket


class _ThreadRandom(Random):
    """The class of the `random` module's hidden generator after `install`.

    `random.uniform`, `randint`, `choice` and the others are Python methods bound to that generator,
    which draw through ``self``: they follow wherever they were bound. Outside a worker the calls
    go to the same C state as before.
    """

    def random(self) -> float:
        streams = current.streams
        return _c_random(self) if streams is None else streams.python.random()

    def getrandbits(self, k: int, /) -> int:
        streams = current.streams
        return _c_getrandbits(self, k) if streams is None else streams.python.getrandbits(k)

    def seed(self, a: Any = None, version: int = 2) -> None:
        streams = current.streams
        # `Random.__init__` calls this, but no instance is ever made of this class.
        if streams is None:
            super().seed(a, version)
        else:
            streams.python.seed(a, version)

    def getstate(self) -> tuple[Any, ...]:
        streams = current.streams
        return super().getstate() if streams is None else streams.python.getstate()

    def setstate(self, state: Any) -> None:
        streams = current.streams
        if streams is None:
            super().setstate(state)
        else:
            streams.python.setstate(state)

    @property
    def gauss_next(self) -> float | None:
        streams = current.streams
        return vars(self)["gauss_next"] if streams is None else streams.python.gauss_next

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        streams = current.streams
        if streams is None:
            vars(self)["gauss_next"] = value
        else:
            streams.python.gauss_next = value

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy is a plain generator, as a copy of the module's generator always was.
        return Random, (), self.getstate()


_c_random = _random.Random.random
_c_getrandbits = _random.Random.getrandbits
#: Names of the module that are C methods, or Python methods that end in one through `super`.
_NAMES = ("random", "getrandbits", "seed", "getstate", "setstate")

for _name in _NAMES:
    _method, _original = getattr(_ThreadRandom, _name), getattr(Random, _name)
    _method.__doc__, _method.__annotations__ = _original.__doc__, {}
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


def module_generator() -> Random:
    """The generator behind `random`'s functions, which follows the calling thread."""
    return random._inst
