"""What the engine has to know to turn tickets into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, Protocol

from minato_async.engine.protocols import Worker

#: "raise", "skip", or a function of the index and the error that returns a sample instead.
OnError = str | Callable[[Any, BaseException], Any]


class Rows(Protocol):
    """One batch's tensors, into which finished samples are written row by row."""

    def write(self, row: int, sample: Any) -> Any:
        """Write what can be written of `sample`; returns what to keep in its place. It does not
        raise: the sample has its place already."""

    def collate(self, samples: list[Any]) -> Any:
        """The batch, from what `write` returned and from samples that were never written."""


class RowWriter(Protocol):
    """Decides whether a sample is worth writing straight into its batch."""

    def pays(self, sample: Any) -> bool: ...

    def rows(self, size: int) -> Rows: ...


class Streams(Protocol):
    """The random state that belongs to the sample which a worker is running."""

    #: Set before each sample; a value unlike the one before begins a new stream.
    ticket: Any

    @property
    def worker_rng(self) -> Any:
        """What goes into torch's `WorkerInfo.rng`."""

    def begin(self, resolve: Callable[[Any], int], draws: bool = True) -> None:
        """What follows are other tickets. `resolve` gives the seed of one, at its first draw or
        before. `draws`: there may be draws."""

    def end(self) -> None:
        """Keep nothing of the last ticket."""

    def detach(self) -> Any:
        """The state of the running sample's stream, which goes on elsewhere."""

    def attach(self, state: Any) -> None:
        """Go on with a stream that was detached, for the ticket announced last."""


class BoundRecipe(Protocol):
    """A recipe in the hands of one worker, for one epoch."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def steps(self) -> Sequence[Callable[[Any], Any]]:
        """What makes a sample of an index: the dataset, then each transform."""

    @property
    def collate(self) -> Callable[[list[Any]], Any]:
        """Makes a batch of samples."""

    @property
    def finish(self) -> Callable[[Any], Any]:
        """Applied to every batch by the worker that has collated it, in whichever way."""

    @property
    def on_error(self) -> OnError:
        """What to do with a failed sample: the worker's own, if it is a function."""

    @property
    def streams(self) -> Streams: ...

    @property
    def context(self) -> Context:
        """The context variables in which user code runs; a copy of the worker's own."""


class Recipe(Protocol):
    """How a ticket's index becomes a sample and how samples become a batch."""

    def step_name(self, step: int) -> str:
        """Names a step in error messages."""

    @property
    def on_error(self) -> OnError:
        """What to do with a failed sample."""

    @property
    def row_writer(self) -> RowWriter | None:
        """None: every batch goes through `collate`."""

    @property
    def collates_by_default(self) -> bool:
        """Batches are made by torch's own functions, which draw no random numbers."""

    def bind(self, worker: Worker) -> BoundRecipe:
        """The recipe for `worker`, in whose thread this is called, for every job."""

    def seed(self, key: Any, repeat: int, position: int) -> int:
        """The seed of the sample of index `key` at `position` of the epoch, drawn `repeat` times
        before in it."""
