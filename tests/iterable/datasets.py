"""Iterable datasets for the tests, and what is expected of a loader over them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from minato_async import share
from tests.loaders import LoaderKind

#: Seconds after which something that should happen at once is said not to happen.
SOON = 60.0


def shard_number() -> int:
    info = get_worker_info()
    return 0 if info is None else int(info.id)


def lists(batches: Any) -> list[Any]:
    """What a loader delivers, as plain values."""
    return [b.tolist() if isinstance(b, torch.Tensor) else b for b in batches]


def outcomes(loader: Any) -> list[Any]:
    """As `lists`, with the type of each exception that comes out of `next()` in its place."""
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            found += lists([next(iterator)])
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error))


@contextlib.contextmanager
def iterating(loader: Any) -> Iterator[Iterator[Any]]:
    """An iterator that is closed in the end, torch's too: dropped, its workers take seconds."""
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        close = getattr(iterator, "close", None) or iterator._shutdown_workers
        close()


def name(shard: int, ordinal: int) -> int:
    return 1000 * shard + ordinal


def in_turn(sizes: Sequence[int], batch_size: int | None, drop_last: bool = False) -> list[Any]:
    """The batches that torch makes of shards of these sizes, in its order."""
    shards: list[list[Any]] = []
    for shard, size in enumerate(sizes):
        samples = [name(shard, ordinal) for ordinal in range(size)]
        if batch_size is None:
            shards.append(samples)
            continue
        full = size // batch_size if drop_last else math.ceil(size / batch_size)
        shards.append([samples[batch_size * i : batch_size * (i + 1)] for i in range(full)])
    rounds = max(map(len, shards), default=0)
    return [shard[i] for i in range(rounds) for shard in shards if i < len(shard)]


def workers(kind: LoaderKind, count: int) -> LoaderKind:
    return dataclasses.replace(kind, num_workers=count)


class Sized(IterableDataset[int]):
    """Shard s yields as many samples as `sizes[s]` says."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        shard = shard_number()
        return (name(shard, ordinal) for ordinal in range(self.sizes[shard]))


class Range(IterableDataset[int]):
    """The example in torch's documentation of IterableDataset."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def divide_range(worker_id: int) -> None:
    """The `worker_init_fn` of that example."""
    worker_info = get_worker_info()
    assert worker_info is not None
    dataset: Any = worker_info.dataset
    start, end = dataset.start, dataset.end
    share = math.ceil((end - start) / worker_info.num_workers)
    dataset.start = start + worker_id * share
    dataset.end = min(dataset.start + share, end)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return (name(shard_number(), ordinal) for ordinal in count())


class Failing(IterableDataset[int]):
    """Shard s yields 4 samples, but `fail` is called before each with its shard and ordinal."""

    def __init__(self, fail: Callable[[int, int], None], as_generator: bool = True) -> None:
        self.fail = fail
        self.as_generator = as_generator

    def __iter__(self) -> Iterator[int]:
        shard = shard_number()
        self.fail(shard, -1)
        return self.generate(shard) if self.as_generator else Counter(shard, self.fail)

    def generate(self, shard: int) -> Iterator[int]:
        for ordinal in range(4):
            self.fail(shard, ordinal)
            yield name(shard, ordinal)


class Counter:
    """An iterator that can go on after an error, which a generator cannot."""

    def __init__(self, shard: int, fail: Callable[[int, int], None]) -> None:
        self.shard = shard
        self.fail = fail
        self.ordinal = -1

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.ordinal += 1
        if self.ordinal == 4:
            raise StopIteration
        self.fail(self.shard, self.ordinal)
        return name(self.shard, self.ordinal)


class Gated(IterableDataset[int]):
    """Threads only: shard `closed` waits for `gate` before its sample `first`.

    It tells when a worker is `stuck` there, and keeps the number of workers that were inside one
    iterator at the same time.
    """

    def __init__(self, sizes: Sequence[int], closed: int = 0, first: int = 0) -> None:
        self.sizes = sizes
        self.closed = closed
        self.first = first
        self.gate = threading.Event()
        self.stuck = threading.Event()
        self.most_inside: list[int] = [0]
        self.ended_in: list[str] = []
        self.all_ended = threading.Semaphore(0)
        share(self, "most_inside", "ended_in")

    def __iter__(self) -> Iterator[int]:
        return GatedIterator(self, shard_number())


class GatedIterator:
    def __init__(self, dataset: Gated, shard: int) -> None:
        self.dataset = dataset
        self.shard = shard
        self.ordinal = -1
        self.inside = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        dataset = self.dataset
        self.inside += 1
        dataset.most_inside.append(self.inside)
        try:
            self.ordinal += 1
            if self.ordinal == dataset.sizes[self.shard]:
                raise StopIteration
            if self.shard == dataset.closed and self.ordinal == dataset.first:
                dataset.stuck.set()
                assert dataset.gate.wait(SOON)
            return name(self.shard, self.ordinal)
        finally:
            self.inside -= 1


class Closing(IterableDataset[int]):
    """Threads only: endless generators that tell in which thread they are closed."""

    def __init__(self) -> None:
        self.closed_in: list[str] = []
        self.closed = threading.Semaphore(0)
        share(self, "closed_in")

    def __iter__(self) -> Iterator[int]:
        try:
            yield from map(int, count())
        finally:
            self.closed_in.append(threading.current_thread().name)
            self.closed.release()

    def await_closed(self, generators: int) -> None:
        for _ in range(generators):
            assert self.closed.acquire(timeout=SOON)
