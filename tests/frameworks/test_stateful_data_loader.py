"""Code written for torchdata's StatefulDataLoader runs with the import changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler

from minato_async import MinatoLoader
from tests.frameworks.support import Numbers, values

pytest.importorskip("torchdata.stateful_dataloader")

from torchdata.stateful_dataloader import Stateful, StatefulDataLoader
from torchdata.stateful_dataloader.sampler import (
    BatchSampler,
    StatefulDistributedSampler,
)
from torchdata.stateful_dataloader.sampler import RandomSampler as TheirSampler


class Counting(IterableDataset[Any]):
    """As in torchdata's documentation: a dataset that says how far it is."""

    def __init__(self, n: int = 20) -> None:
        self.n, self.i = n, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.i < self.n:
            self.i += 1
            yield torch.full((2,), float(self.i))
        self.i = 0

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]


def shuffled() -> dict[str, Any]:
    dataset = Numbers(20)
    return {"dataset": dataset, "sampler": RandomSampler(dataset, generator=seeded())}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


DATA: dict[str, Any] = {
    "map": lambda: {"dataset": Numbers(20)},
    "shuffled": shuffled,
    "their sampler": lambda: {
        "dataset": Numbers(20),
        "sampler": TheirSampler(range(20), generator=seeded()),
    },
    "their batch sampler": lambda: {
        "dataset": Numbers(20),
        "batch_sampler": BatchSampler(TheirSampler(range(20), generator=seeded()), 3, False),
        "batch_size": 1,
    },
    "their distributed sampler": lambda: {
        "dataset": Numbers(20),
        "sampler": StatefulDistributedSampler(Numbers(20), 1, 0, seed=4),
    },
    "iterable": lambda: {"dataset": Counting()},
}

both = pytest.mark.parametrize("cls", [StatefulDataLoader, MinatoLoader])
of_any_data = pytest.mark.parametrize("data", DATA)
with_and_without_workers = pytest.mark.parametrize("workers", [0, 2])


def make(cls: Any, data: str, workers: int, **options: Any) -> Any:
    given = {"batch_size": 3, "snapshot_every_n_steps": 1, **DATA[data](), **options}
    if cls is MinatoLoader:
        given["in_order"] = True
    return cls(num_workers=workers, **given)


@both
@of_any_data
@with_and_without_workers
def test_the_rest_of_an_epoch_and_the_next(cls: Any, data: str, workers: int) -> None:
    whole = values(make(cls, data, workers))
    for received in (1, 3):
        loader = make(cls, data, workers)
        iterator = iter(loader)
        for _ in itertools.islice(iterator, received):
            pass
        state = loader.state_dict()
        del iterator
        again = make(cls, data, workers)
        again.load_state_dict(state)
        assert values(again) == whole[received:]
        assert len(values(again)) == len(whole)


@both
@of_any_data
@with_and_without_workers
def test_a_state_from_the_end_begins_anew(cls: Any, data: str, workers: int) -> None:
    if cls is StatefulDataLoader and data == "their distributed sampler" and not workers:
        pytest.skip("theirs stays at the end")
    loader = make(cls, data, workers)
    length = len(values(loader))
    again = make(cls, data, workers)
    again.load_state_dict(loader.state_dict())
    assert len(values(again)) == length


@both
@with_and_without_workers
def test_snapshots_every_few_steps(cls: Any, workers: int) -> None:
    whole = values(make(cls, "iterable", workers))
    loader = make(cls, "iterable", workers, snapshot_every_n_steps=3)
    for _ in itertools.islice(loader, 4):
        pass
    again = make(cls, "iterable", workers, snapshot_every_n_steps=3)
    again.load_state_dict(loader.state_dict())
    assert values(again) == whole[4:]


@both
def test_the_protocol(cls: Any) -> None:
    loader = make(cls, "map", 0)
    assert isinstance(loader, Stateful)
    assert isinstance(loader.state_dict(), dict)


def test_iterators_have_it_too() -> None:
    assert isinstance(iter(make(MinatoLoader, "map", 0)), Stateful)


def test_a_state_of_theirs_is_refused() -> None:
    loader = make(StatefulDataLoader, "map", 0)
    next(iter(loader))
    with pytest.raises(ValueError, match="not the state of a MinatoLoader"):
        make(MinatoLoader, "map", 0).load_state_dict(loader.state_dict())
