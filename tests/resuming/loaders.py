"""Loaders over random samples, with every kind of sampler: made anew by whoever resumes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from minato_async import MinatoLoader

N = 22
BATCH = 4
#: Epochs of a run that is not interrupted, and the one in which states are saved.
EPOCHS = 3
INTERRUPTED = 1


class Random:
    """Samples of its index and of numbers from the three libraries."""

    def __init__(self, n: int = N) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> list[Any]:
        return [index, random.random(), float(np.random.rand()), float(torch.rand(()))]


class Fetching(Random):
    def __getitems__(self, indices: list[int]) -> list[list[Any]]:
        return [self[index] for index in indices]


class Shuffled:
    """A sampler of a user's, that shuffles with the module `random` and has no state."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(N))
        random.shuffle(order)
        yield from order


class OneByOne:
    """Draws from numpy whenever it is asked: so it is other numbers again if anybody else draws."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield int(np.random.randint(N))


class Remembering:
    """A sampler with a state: its own generator, and how far it is."""

    def __init__(self) -> None:
        self.rng = np.random.RandomState(3)
        #: What is left of the epoch; None: it has not begun.
        self.order: list[int] | None = None

    def new(self) -> list[int]:
        order: list[int] = self.rng.permutation(N).tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        if self.order is None:
            self.order = self.new()
        while self.order:
            yield self.order.pop()
        self.order = None

    def state_dict(self) -> dict[str, Any]:
        name, numbers, *rest = self.rng.get_state()
        return {"rng": [name, numbers.tolist(), *rest], "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.set_state(tuple(state["rng"]))
        self.order = None if state["order"] is None else list(state["order"])


class Repeating(Remembering):
    """As that, but an index comes more than once."""

    def new(self) -> list[int]:
        order: list[int] = self.rng.randint(0, 5, N).tolist()
        return order


class Buckets:
    """A batch sampler of a user's: batches of different sizes, one of them empty."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(8)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(N, generator=self.generator).tolist()
        sizes = [3, 1, 6, 4, 5, 3]
        for size in sizes:
            yield [order.pop() for _ in range(size)]


class Remembered:
    """A batch sampler with a state."""

    def __init__(self) -> None:
        self.inner = Remembering()

    def __iter__(self) -> Iterator[list[int]]:
        for index in self.inner:
            yield [index, index + 1 if index + 1 < N else 0]

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


class Names:
    def __iter__(self) -> Iterator[str]:
        names = [f"name-{number}" for number in range(N)]
        random.shuffle(names)
        yield from names


class Opaque:
    """A key without a value to look at: its sample is seeded by its position."""

    def __init__(self, number: int) -> None:
        self.number = number


class Objects:
    def __iter__(self) -> Iterator[Opaque]:
        yield from map(Opaque, range(N))


class OfObjects(Random):
    def __getitem__(self, index: Any) -> list[Any]:
        return super().__getitem__(index.number)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights() -> list[float]:
    return [1.0 + index % 3 for index in range(N)]


#: What a loader is made of, by a name. Called anew for each, as a program does that starts again.
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": dict,
    "shuffle": lambda: {"shuffle": True},
    "generator": lambda: {"shuffle": True, "generator": generator(5)},
    "whole batches": lambda: {"shuffle": True, "generator": generator(5), "batch_size": 2},
    "drop_last": lambda: {"shuffle": True, "drop_last": True},
    "random": lambda: {"sampler": RandomSampler(range(N), generator=generator(6))},
    "replacement": lambda: {
        "sampler": RandomSampler(
            range(N), replacement=True, num_samples=3 * N, generator=generator(6)
        )
    },
    "more than all": lambda: {"sampler": RandomSampler(range(N), num_samples=2 * N + 3)},
    "weighted": lambda: {"sampler": WeightedRandomSampler(weights(), 2 * N)},
    "weighted, generator": lambda: {
        "sampler": WeightedRandomSampler(weights(), N, generator=generator(4))
    },
    "subset random": lambda: {"sampler": SubsetRandomSampler(range(0, N, 2))},
    "distributed": lambda: {"sampler": DistributedSampler(range(N), 2, 1, seed=3)},
    "subset": lambda: {"dataset": Subset(Random(), range(N - 1, 2, -1)), "shuffle": True},
    "batch sampler": lambda: {
        "batch_sampler": BatchSampler(SequentialSampler(range(N)), 5, False),
        "batch_size": 1,
    },
    "buckets": lambda: {"batch_sampler": Buckets(), "batch_size": 1},
    "remembered": lambda: {"batch_sampler": Remembered(), "batch_size": 1},
    "shuffled": lambda: {"sampler": Shuffled()},
    "remembering": lambda: {"sampler": Remembering()},
    "repeating": lambda: {"sampler": Repeating()},
    "names": lambda: {"sampler": Names()},
    "objects": lambda: {"sampler": Objects(), "dataset": OfObjects()},
    "fetching": lambda: {"dataset": Fetching(), "shuffle": True},
    "no batches": lambda: {"sampler": Shuffled(), "batch_size": None},
}

#: How they are loaded.
WAYS: dict[str, dict[str, Any]] = {
    "serial": {"num_workers": 0},
    "threads": {"num_workers": 2, "executor": "thread"},
    "more threads": {"num_workers": 5, "executor": "thread", "prefetch_factor": 1},
    "processes": {"num_workers": 2, "executor": "process"},
}


def as_is(samples: Any) -> Any:
    return samples


def make(kind: str, way: str, **options: Any) -> MinatoLoader[Any]:
    given = {
        "dataset": Random(),
        "batch_size": BATCH,
        "collate_fn": as_is,
        "seed": 11,
        "in_order": True,
        **KINDS[kind](),
        **WAYS[way],
        **options,
    }
    return MinatoLoader(**given)


def flat(batches: Iterable[Any]) -> list[Any]:
    """The samples of batches, which are tensors or lists."""
    return [
        sample
        for batch in batches
        for sample in (batch.tolist() if isinstance(batch, torch.Tensor) else batch)
    ]


def start_over(seed: int) -> None:
    """The process-wide generators are as a program has them that has just seeded them."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def generators() -> list[Any]:
    """What a program saves of them, in a checkpoint."""
    return [random.getstate(), np.random.get_state(), torch.get_rng_state()]


def set_generators(states: list[Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def before(loader: MinatoLoader[Any]) -> None:
    """What a program does at the beginning of an epoch."""
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(loader._epochs)


def uninterrupted(kind: str, way: str) -> tuple[list[list[Any]], list[list[Any]]]:
    """All epochs' batches; and for each batch of one of them the checkpoint after it, the first
    being that before the first batch."""
    start_over(1)
    loader, epochs, saved = make(kind, way), [], []
    for number in range(EPOCHS):
        before(loader)
        iterator, batches = iter(loader), []
        if number == INTERRUPTED:
            saved.append([loader.state_dict(), generators()])
        for batch in iterator:
            batches.append(batch)
            if number == INTERRUPTED:
                saved.append([iterator.state_dict(), generators()])
        if number == INTERRUPTED:
            saved.append([loader.state_dict(), generators()])
        epochs.append(batches)
    return epochs, saved


def resumed(kind: str, way: str, saved: list[Any]) -> tuple[list[Any], list[Any]]:
    """What is left of the epoch, and the one after it."""
    start_over(99)
    loader = make(kind, way)
    loader.load_state_dict(saved[0])
    set_generators(saved[1])
    if saved[0]["epoch"] is None:
        before(loader)
    rest = list(loader)
    before(loader)
    return rest, list(loader)
