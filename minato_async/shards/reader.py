"""Reading batches of samples off one iterator."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import GeneratorType
from typing import Any

from minato_async.engine.recipe import Streams

_END = object()


def _only_in(held: list[object]) -> bool:
    """Whether nothing but this list refers to its one item.

    How many references the question itself adds depends on the version of Python: so it is asked
    of an object of which it is known, too.
    """
    return _references(held) <= _references([object()])


def _references(held: list[object]) -> int:
    return sys.getrefcount(held[0])


def _never() -> bool:
    return False


class Reader:
    """Reads an iterator as torch's fetcher does, and applies `transforms` to what it yields. Has
    one user at a time."""

    def __init__(
        self,
        iterator: Iterator[Any],
        batch_size: int | None,
        drop_last: bool,
        transforms: Sequence[Callable[[Any], Any]] = (),
    ) -> None:
        self._iterator = iterator
        self._transforms = transforms
        self._batch_size = batch_size
        self._drop_last = drop_last
        #: Which sample is being read, or was last; from 0.
        self.ordinal = -1
        #: What it is in: 0 the iterator, n the n-th transform.
        self.step = 0
        self.ended = False
        #: The ordinal of the sample that `step` is about.
        self._named = 0

    @property
    def sample(self) -> str:
        """Names the sample being read."""
        return f"sample {self._named}"

    @property
    def iterator(self) -> Iterator[Any]:
        """What is read."""
        return self._iterator

    def go_to(
        self, ordinal: int, start: int, streams: Streams, stop: Callable[[], bool] = _never
    ) -> None:
        """Read and drop what comes before sample `ordinal`; the iterator is at sample `start`."""
        self.ordinal = start - 1
        while self.ordinal + 1 < ordinal and not (self.ended or stop()):
            with contextlib.suppress(Exception):  # it was delivered then
                self._next(streams)

    def read(self, streams: Streams, stop: Callable[[], bool] = _never) -> list[Any]:
        """The samples of the next batch; none, if there are not enough left for one.

        What the iterator raises is raised. The samples read before it for the same batch are
        lost then, and the next call asks the iterator for more, as with torch: a generator that
        has raised is at its end, other iterators may go on. A transform that raises costs its
        batch and no other: the rest of that is read and dropped, so that where batches begin
        depends on the iterator alone. `stop` cuts the batch short.
        """
        size = self._batch_size or 1
        samples: list[Any] = []
        if self.ended and self._batch_size is not None:
            return samples
        while len(samples) < size and not stop():
            self.step, self._named = 0, self.ordinal + 1
            sample = self._next(streams)
            if sample is _END:
                return [] if self._drop_last else samples
            try:
                samples.append(self._take(sample, streams))
            except BaseException:
                self._drop(size - len(samples) - 1, streams, stop)
                raise
        return samples

    def _next(self, streams: Streams) -> Any:
        self.ordinal += 1
        # The sample's ticket, announced before any of its code runs.
        streams.ticket = self.ordinal
        try:
            return next(self._iterator)
        except StopIteration:
            self.ended = True
            return _END

    def _take(self, sample: Any, streams: Streams) -> Any:
        """What goes into the batch of what the iterator has yielded."""
        for transform in self._transforms:
            self.step += 1
            sample = transform(sample)
        return sample

    def _drop(self, samples: int, streams: Streams, stop: Callable[[], bool]) -> None:
        """Read what is left of a batch that is lost already, to whatever was raised first."""
        with contextlib.suppress(Exception):
            while samples and not stop() and self._next(streams) is not _END:
                samples -= 1

    def release(self) -> None:
        """Let go of the iterator, in this thread and now.

        A generator closes when it is dropped; but on free-threaded CPython, what was made by
        another thread is only freed when that thread next runs, which may be an epoch later. One
        that the dataset keeps for itself is left as it is.
        """
        held: list[Any] = [self._iterator]
        self._iterator = iter(())
        if isinstance(held[0], GeneratorType) and _only_in(held):
            try:
                held[0].close()
            except BaseException:
                # Nobody waits for it any more: told as what a thread raises in the end.
                kind, error, traceback = sys.exc_info()
                assert kind is not None
                args = (kind, error, traceback, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(args))
                del error, traceback, args
