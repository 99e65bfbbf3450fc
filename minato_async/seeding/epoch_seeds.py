"""The random state of one epoch's samples, on whichever thread they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minato_async.engine.recipe import Streams
from minato_async.seeding import (
    SampleStreams,
    UnstableKeyError,
    epoch_seed,
    install,
    seed_in_epoch,
)
from minato_async.seeding.current import current
from minato_async.seeding.process_streams import ProcessStreams


class EpochSeeds:
    """Gives each sample of an epoch its seed, a function of (base seed, epoch, index, repeat)."""

    def __init__(self, base_seed: int, epoch: int) -> None:
        self._base = epoch_seed(base_seed, epoch)

    def seed(self, key: Any, repeat: int, position: int) -> int:
        """The seed of the sample of index `key`, drawn `repeat` times before in this epoch.

        A key without a stable digest is replaced by the sample's `position` in the epoch: with
        one order of the keys that is just as reproducible.
        """
        try:
            return seed_in_epoch(self._base, key, repeat)
        except UnstableKeyError:
            return seed_in_epoch(self._base, ("position", position))


class NoStreams:
    """Stands in for per-sample random state where it is switched off."""

    ticket: Any = None
    #: What torch's `WorkerInfo` carries: nothing of the worker's own.
    worker_rng: Any = None

    def begin(self, resolve: Any, draws: bool = True) -> None:
        """Nothing to do: every draw comes from the process-wide generators."""

    def end(self) -> None:
        self.ticket = None

    def detach(self) -> Any:
        return None

    def attach(self, state: Any) -> None:
        """Nothing to go on with."""


class ThreadRng:
    """Torch's `WorkerInfo.rng` for a shard, which one worker after another runs: the streams of
    whichever asks."""

    @property
    def random_generator(self) -> Any:
        return _streams_here().worker_rng.random_generator

    @property
    def torch_generator(self) -> Any:
        return _streams_here().worker_rng.torch_generator

    @property
    def numpy_generator(self) -> Any:
        return _streams_here().worker_rng.numpy_generator


def _streams_here() -> SampleStreams:
    streams: Any = current.streams
    if streams is None:
        raise RuntimeError("a worker's random state can be used on worker threads alone")
    here: SampleStreams = streams
    return here


@contextmanager
def thread_streams(isolated: bool, own_process: bool = False) -> Iterator[Streams]:
    """The streams from which the calling thread draws, until it leaves the context. `own_process`:
    it is the thread of a worker process."""
    if not isolated:
        yield NoStreams()
        return
    # Most often done already, when the loader was made; but what loads is asked anew at each epoch.
    install(torch=not own_process)
    streams = ProcessStreams() if own_process else SampleStreams()
    try:
        with streams.active():
            yield streams
    finally:
        streams.dissolve()
