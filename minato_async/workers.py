"""What a worker needs before its first sample, and keeps until its last."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Subset

from minato_async import worker_info
from minato_async.compose import TRANSFORM_ATTRIBUTES, with_checkpoints
from minato_async.engine.recipe import BoundRecipe, Streams
from minato_async.errors import WorkerSetupError
from minato_async.executors.base import Worker
from minato_async.openmp import use_one_thread_here
from minato_async.randomness import thread_streams

_MISSING = object()


@dataclass(frozen=True)
class WorkerSetup:
    """How the workers of one epoch are set up, whatever executor they belong to."""

    dataset: Any
    num_workers: int
    #: Worker w is told the seed `base_seed` + w, as with torch.
    base_seed: int
    worker_init_fn: Callable[[int], None] | None


class DatasetCopy:
    """One worker's own shallow copy of the dataset.

    `worker_init_fn` may change the copy's attributes, and a dataset that opens its file at the
    first sample opens one for each worker: both work as they do in torch's worker processes.
    What the user changes in the original reaches the copy at the next `refresh`.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._seen: dict[str, Any] = {}
        # Of what an exact `Subset` is a part of, which is copied too.
        self._whole: DatasetCopy | None = None
        if _can_be_copied(dataset):
            self.dataset = object.__new__(type(dataset))
            self.refresh(dataset)

    def refresh(self, original: Any) -> None:
        """Take over the attributes that were set in `original` since the last time; what the
        worker itself has changed stays."""
        if self.dataset is original:
            return
        current = dict(vars(original))
        for name, value in current.items():
            if self._seen.get(name, _MISSING) is not value:
                if name in TRANSFORM_ATTRIBUTES:
                    value = with_checkpoints(value)
                elif name == "dataset" and type(original) is Subset:
                    self._whole = DatasetCopy(value)
                    value = self._whole.dataset
                self.dataset.__dict__[name] = value
            elif name == "dataset" and self._whole is not None:
                self._whole.refresh(value)
        for name in self._seen.keys() - current.keys():
            self.dataset.__dict__.pop(name, None)
        self._seen = current


def _can_be_copied(dataset: Any) -> bool:
    """Whether copying the instance dictionary copies the dataset.

    Not if part of it lies elsewhere (slots, a built-in base), and not if it has a finaliser,
    which would release what the original still uses.
    """
    cls: Any = type(dataset)
    return (
        hasattr(dataset, "__dict__")
        and cls.__new__ is object.__new__
        and not hasattr(cls, "__del__")
        and not any(vars(base).get("__slots__") for base in cls.__mro__)
    )


class ThreadState:
    """What one worker thread keeps from its first job to its last."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.copy: DatasetCopy | None = None
        #: The recipe of the epoch being loaded, bound to this thread.
        self.bound: BoundRecipe | None = None

    def dataset_for(self, setup: WorkerSetup, worker_id: int) -> Any:
        """This worker's copy of the dataset, up to date, with the worker info that shows it;
        the first time, after `worker_init_fn` has run.

        Raises WorkerSetupError if it fails.
        """
        first = self.copy is None
        if self.copy is None:
            self.copy = DatasetCopy(setup.dataset)
        else:
            self.copy.refresh(setup.dataset)
        seed = setup.base_seed + worker_id
        info = worker_info.make_worker_info(
            worker_id, setup.num_workers, seed, self.copy.dataset, self.streams.worker_rng
        )
        worker_info.show(info)
        if first and setup.worker_init_fn is not None:
            # What it seeds and draws is its own affair: samples have streams of their own.
            self.streams.begin(lambda _: seed)
            self.streams.ticket = setup
            try:
                setup.worker_init_fn(worker_id)
            except BaseException as error:
                error.add_note(f"minato_async: worker_init_fn({worker_id})")
                raise WorkerSetupError(error) from error
        return self.copy.dataset


class _Current(threading.local):
    state: ThreadState | None = None


_current = _Current()


def current_state() -> ThreadState:
    """The state of the calling worker thread."""
    state = _current.state
    assert state is not None, "not called by a worker thread"
    return state


@contextlib.contextmanager
def worker_thread(worker: Worker, isolated: bool) -> Iterator[None]:
    """The context in which a worker's thread runs, from its start to its end. `isolated`: each
    sample has random state of its own."""
    use_one_thread_here()
    with thread_streams(isolated) as streams:
        _current.state = ThreadState(streams)
        try:
            yield
        finally:
            _current.state = None
            worker_info.show(None)
