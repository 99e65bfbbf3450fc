"""The random state of the samples that one thread runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from minato_async.seeding.current import NO_SAMPLE, Streams, current
from minato_async.seeding.held_in_sample import HeldInSample
from minato_async.seeding.python_random import (
    PythonState,
    PythonStream,
    module_generator,
)
from minato_async.seeding.torch_random import TorchState, TorchStream

try:
    from minato_async.seeding.numpy_random import NumpyStream
except ImportError:  # torch runs without numpy, and so do we
    HAS_NUMPY = False
else:
    HAS_NUMPY = True

if TYPE_CHECKING:
    import random

    from minato_async.seeding.numpy_random import NumpyState


@dataclass(frozen=True, slots=True)
class SampleState:
    """Where a partly made sample stands in its streams; None for a library it has not drawn from.

    Picklable.
    """

    python: PythonState | None = None
    numpy: NumpyState | None = None
    torch: TorchState | None = None
    #: Of generators that the user's objects hold, by place.
    held: dict[str, Any] | None = None


class SampleStreams:
    """The streams that one thread draws from: those of the sample that it runs.

    Nothing is seeded before a sample's first draw, so a sample that draws nothing pays nothing but
    the store of its `ticket`. One thread at a time may use an instance.
    """

    __slots__ = (
        "_resolve",
        "_seed",
        "_seeded",
        "held",
        "numpy",
        "python",
        "ticket",
        "torch",
        "worker_rng",
    )

    def __init__(self) -> None:
        #: What identifies the sample that this thread runs. Another value begins another sample;
        #: identity decides, so one object must not stand for two samples in a row.
        self.ticket: Any = None
        self._resolve: Callable[[Any], int] = _entropy
        self._seed = 0
        self._seeded: Any = NO_SAMPLE
        self.held = HeldInSample(self)
        self.python = PythonStream(self)
        if HAS_NUMPY:
            self.numpy = NumpyStream(self)
        self.torch: Any = self._make_torch()
        #: For `WorkerInfo.rng` of the worker whose streams these are.
        self.worker_rng: Any = WorkerRng(self)

    def _make_torch(self) -> Any:
        return TorchStream(self)

    @property
    def hooked(self) -> TorchStream | None:
        """From what torch's functions are to draw instead of from the global generator."""
        stream: TorchStream = self.torch
        return stream

    def active(self) -> Activation:
        """Make the thread that enters the returned context draw from here until it leaves it."""
        return Activation(self)

    def begin(self, resolve: Callable[[Any], int], draws: bool = True) -> None:
        """Forget the last sample. `resolve` gives the 64-bit seed for a ticket; it is called at
        the first draw of each sample that draws. `draws`: what follows may draw; where nothing is
        prepared before the first draw, that does not matter."""
        self._resolve = resolve
        self._forget()

    def end(self) -> None:
        """Keep nothing of the last sample: no others may follow for a while."""
        self._resolve = _entropy
        self.ticket = None
        self._forget()

    def dissolve(self) -> None:
        """Nobody draws any more: part from the streams, which refer to this. In a circle they would
        be left to the collector, which comes rarely where Python is free-threaded."""
        for name in ("held", "python", "numpy", "torch", "worker_rng"):
            if hasattr(self, name):
                delattr(self, name)

    def _streams(self) -> list[Any]:
        return [self.python, self.numpy, self.torch] if HAS_NUMPY else [self.python, self.torch]

    def _forget(self) -> None:
        self._seeded = NO_SAMPLE
        for stream in self._streams():
            stream.sample = NO_SAMPLE
        self.held.forget()

    def seed(self) -> int:
        """The current sample's seed, 64 bits."""
        ticket = self.ticket
        if self._seeded is not ticket:
            self._seed = self._resolve(ticket)
            self._seeded = ticket
        return self._seed

    def detach(self) -> SampleState | None:
        """Take the current sample's streams away, to go on elsewhere; None if it drew nothing.

        What this thread draws before it gets another ticket begins the sample's streams anew.
        """
        states: dict[str, Any] = {
            name: stream.save()
            for name in ("python", "numpy", "torch")
            if (stream := getattr(self, name, None)) is not None and stream.begun
        }
        if held := self.held.save():
            states["held"] = held
        self._forget()
        return SampleState(**states) if states else None

    def attach(self, state: SampleState | None) -> None:
        """Go on with a detached sample, after `begin` and the store of its ticket. What it has not
        drawn from yet asks `resolve`, as on the thread where it began."""
        if state is None:
            return
        for name in ("python", "numpy", "torch"):
            if (saved := getattr(state, name)) is not None:
                getattr(self, name).restore(saved)
        if state.held:
            self.held.restore(state.held)


class Activation:
    """While it is entered, the thread draws from its streams. May be nested."""

    __slots__ = ("_before", "_streams")

    def __init__(self, streams: SampleStreams) -> None:
        self._streams = streams
        self._before: list[tuple[Streams | None, Any]] = []

    def __enter__(self) -> SampleStreams:
        self._before.append((current.streams, current.torch))
        current.streams, current.torch = self._streams, self._streams.hooked
        return self._streams

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current.streams, current.torch = self._before.pop()


class WorkerRng:
    """Stands in a worker's `WorkerInfo.rng`, where `torch.random.thread_safe_generator` looks.

    Its attributes are the current sample's streams; use them only on the worker's own thread.
    """

    def __init__(self, streams: SampleStreams) -> None:
        self._streams = streams

    @property
    def random_generator(self) -> random.Random:
        """For Python's `random`."""
        return module_generator()

    @property
    def torch_generator(self) -> torch.Generator:
        """For torch on the CPU."""
        generator: torch.Generator = self._streams.torch.cpu()
        return generator

    @property
    def numpy_generator(self) -> Any:
        """A `numpy.random.Generator`, or None without numpy."""
        return self._streams.numpy.generator if HAS_NUMPY else None


def _entropy(_: Any) -> int:
    return secrets.randbits(64)
