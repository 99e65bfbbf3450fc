"""Which streams this thread draws from."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch


class Ticketed(Protocol):
    """The sample that a thread runs, as the streams of single libraries know it."""

    #: What identifies it.
    ticket: Any

    def seed(self) -> int:
        """Its seed, 64 bits."""


class PythonDraws(Protocol):
    """What the functions of `random` ask for."""

    gauss_next: float | None

    def random(self) -> float: ...

    def getrandbits(self, k: int, /) -> int: ...

    def seed(self, a: Any = None, version: int = 2) -> None: ...

    def getstate(self) -> tuple[Any, ...]: ...

    def setstate(self, state: Any) -> None: ...


class NumpyDraws(Protocol):
    """What the functions of `numpy.random` ask for."""

    def state(self) -> Any:
        """The `RandomState` to draw from."""

    def hashed(self) -> int:
        """64 bits for a single number; negative: `state` is to be asked."""

    def set_bit_generator(self, bit_generator: Any) -> None: ...


class Streams(Protocol):
    """What a thread draws from (`streams.SampleStreams`, which knows all the modules that look
    here)."""

    ticket: Any

    @property
    def python(self) -> PythonDraws: ...

    @property
    def numpy(self) -> NumpyDraws: ...


class _Current(threading.local):
    """The streams of this thread; None on every thread that runs no samples.

    A thread-local and not a context variable: a thread that a transform starts may inherit its
    context, and two threads must never draw from one stream.
    """

    streams: Streams | None = None
    #: Where torch's functions are to draw from, on this thread, instead of the global generator.
    #: None in a worker process too, whose global generator is the sample's.
    torch: Any = None


# Kept outside this package: if it is imported anew, the functions that the first import has
# replaced and the loaders that it has made go on with the same threads.
current: _Current = vars(torch.random).setdefault("_minato_async_current", _Current())
#: Unlike every ticket.
NO_SAMPLE: object = vars(torch.random).setdefault("_minato_async_no_sample", object())
