"""The random state of the samples that one thread runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from minato_async.seeding.current import current
from minato_async.seeding.python_random import (
    PythonState,
    PythonStream,
    module_generator,
    python_seed,
)
from minato_async.seeding.torch_mode import SampleMode
from minato_async.seeding.torch_random import TorchState, TorchStream, torch_seed

try:
    from minato_async.seeding.numpy_random import NumpyStream, numpy_seed
except ImportError:  # torch runs without numpy, and so do we
    HAS_NUMPY = False
else:
    HAS_NUMPY = True

if TYPE_CHECKING:
    import random

#: Unlike every ticket.
_NONE = object()


@dataclass(frozen=True, slots=True)
class SampleState:
    """Where a partly made sample stands in its streams; None for a library it has not drawn from.

    Picklable.
    """

    python: PythonState | None
    numpy: dict[str, Any] | None
    torch: TorchState | None


class SampleStreams:
    """The streams that one thread draws from: those of the sample it runs.

    Nothing is seeded before a sample's first draw, so a sample that draws nothing pays nothing but
    the store of its `ticket`. One thread at a time may use an instance.
    """

    def __init__(self) -> None:
        #: What identifies the sample that this thread runs. A new value begins a new sample; the
        #: comparison is by identity, so the same object must not stand for two samples in a row.
        self.ticket: Any = None
        self.mode = SampleMode(self)
        self.worker_rng = WorkerRng(self)
        self._resolve: Callable[[Any], int] = _entropy
        self._seed = 0
        self._seed_of: Any = _NONE
        self._python = PythonStream()
        self._python_of: Any = _NONE
        self._torch = TorchStream()
        self._torch_of: Any = _NONE
        self._numpy_of: Any = _NONE
        if HAS_NUMPY:
            self._numpy = NumpyStream()

    def active(self) -> Activation:
        """Make the thread that enters the returned context draw from here until it leaves it."""
        return Activation(self)

    def begin(self, resolve: Callable[[Any], int]) -> None:
        """Forget the last sample. `resolve` gives the 64-bit seed for a ticket; it is called at
        the first draw of each sample that draws."""
        self._resolve = resolve
        self._forget()

    def _forget(self) -> None:
        self._seed_of = self._python_of = self._numpy_of = self._torch_of = _NONE

    def detach(self) -> SampleState | None:
        """Take the current sample's streams away, to go on elsewhere; None if it drew nothing.

        What this thread draws before it gets a new ticket begins the sample's streams anew.
        """
        ticket = self.ticket
        state = SampleState(
            self._python.save() if self._python_of is ticket else None,
            self._numpy.save() if self._numpy_of is ticket else None,
            self._torch.save() if self._torch_of is ticket else None,
        )
        self._forget()
        return None if state == SampleState(None, None, None) else state

    def attach(self, state: SampleState | None) -> None:
        """Go on with a detached sample, whose ticket has been set. Its further first draws ask
        `resolve`, as on the thread where it began."""
        if state is None:
            return
        if state.python is not None:
            self._python.restore(state.python)
            self._python_of = self.ticket
        if state.numpy is not None:
            self._numpy.restore(state.numpy)
            self._numpy_of = self.ticket
        if state.torch is not None:
            self._torch.restore(state.torch)
            self._torch_of = self.ticket

    def seed(self) -> int:
        """The current sample's seed."""
        if self._seed_of is not (ticket := self.ticket):
            self._seed = self._resolve(ticket)
            self._seed_of = ticket
        return self._seed

    def python(self) -> PythonStream:
        """The current sample's stream for `random`."""
        if self._python_of is not (ticket := self.ticket):
            self._python.start(python_seed(self.seed()))
            self._python_of = ticket
        return self._python

    def numpy(self) -> NumpyStream:
        """The current sample's stream for `numpy.random`."""
        if self._numpy_of is not (ticket := self.ticket):
            self._numpy.start(numpy_seed(self.seed()))
            self._numpy_of = ticket
        return self._numpy

    def torch(self) -> TorchStream:
        """The current sample's stream for torch."""
        if self._torch_of is not (ticket := self.ticket):
            self._torch.start(torch_seed(self.seed()))
            self._torch_of = ticket
        return self._torch

    def owns_generator(self, generator: Any) -> bool:
        """Whether a torch generator is this thread's, reused for sample after sample."""
        return generator is self._torch.cpu


class Activation:
    """While it is entered, the thread draws from its streams. May be nested."""

    __slots__ = ("_before", "_streams")

    def __init__(self, streams: SampleStreams) -> None:
        self._streams = streams
        self._before: list[SampleStreams | None] = []

    def __enter__(self) -> SampleStreams:
        self._before.append(current.streams)
        self._streams.mode.__enter__()  # type: ignore[no-untyped-call]
        current.streams = self._streams
        return self._streams

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current.streams = self._before.pop()
        self._streams.mode.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]


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
        return self._streams.torch().cpu

    @property
    def numpy_generator(self) -> Any:
        """A `numpy.random.Generator`, or None without numpy."""
        return self._streams.numpy().generator if HAS_NUMPY else None


def _entropy(_: Any) -> int:
    return secrets.randbits(64)
