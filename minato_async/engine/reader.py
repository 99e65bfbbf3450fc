"""Reading batches of samples off one iterator."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import GeneratorType
from typing import Any

from minato_async.engine.recipe import Streams


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

    @property
    def sample(self) -> str:
        """Names the sample being read."""
        return f"sample {max(0, self.ordinal)}"

    def read(self, streams: Streams, stop: Callable[[], bool] = _never) -> list[Any]:
        """The samples of the next batch; none, if there are not enough left for one.

        What the iterator raises is raised. The samples read before it for the same batch are
        lost then, and the next call asks the iterator for more, as with torch: a generator that
        has raised is at its end, other iterators may go on. `stop` cuts the batch short.
        """
        size = self._batch_size or 1
        samples: list[Any] = []
        if self.ended and self._batch_size is not None:
            return samples
        while len(samples) < size and not stop():
            self.ordinal += 1
            self.step = 0
            # The sample's ticket, announced before any of its code runs.
            streams.ticket = self.ordinal
            try:
                sample = next(self._iterator)
            except StopIteration:
                self.ended = True
                return [] if self._drop_last else samples
            for transform in self._transforms:
                self.step += 1
                sample = transform(sample)
            samples.append(sample)
        return samples

    def release(self) -> None:
        """Let go of the iterator, in this thread and now.

        A generator closes when it is dropped; but on free-threaded CPython, what was made by
        another thread is only freed when that thread next runs, which may be an epoch later. One
        that the dataset keeps for itself is left as it is.
        """
        iterator = self._iterator
        self._iterator = iter(())
        # This frame's variable and the argument of getrefcount.
        if isinstance(iterator, GeneratorType) and sys.getrefcount(iterator) <= 2:
            try:
                iterator.close()
            except BaseException:
                # Nobody waits for it any more: told as what a thread raises in the end.
                kind, error, traceback = sys.exc_info()
                assert kind is not None
                args = (kind, error, traceback, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(args))
                del error, traceback, args
