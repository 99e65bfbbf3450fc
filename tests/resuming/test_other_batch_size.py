"""An epoch that is resumed in batches of another size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, RandomSampler, Sampler

from minato_async import MinatoLoader
from tests.loaders import on_each_executor

LENGTH = 103


class Noisy(Dataset[Any]):
    """(index, noise)."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(())


class Backwards(Sampler[int]):
    """Nobody knows that it draws the same again."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH - 1, -1, -1))

    def __len__(self) -> int:
        return LENGTH


class Stateful(Backwards):
    """Has a state of its own."""

    def __init__(self) -> None:
        self.given = 0
        self.start = 0

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        for self.given in range(start + 1, LENGTH + 1):
            yield LENGTH - self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["given"]


SAMPLERS: dict[str, Any] = {
    "in order": lambda: {},
    "shuffled": lambda: {"shuffle": True},
    "with a generator": lambda: {
        "sampler": RandomSampler(range(LENGTH), generator=torch.Generator().manual_seed(3))
    },
    "unknown": lambda: {"sampler": Backwards()},
    "with a state": lambda: {"sampler": Stateful()},
}


def make(kind: str, size: int, **options: Any) -> MinatoLoader[Any]:
    torch.manual_seed(5)
    own = (
        {"num_workers": 2, "seed": 1, "in_order": True, "executor": "thread"}
        | SAMPLERS[kind]()
        | options
    )
    return MinatoLoader(Noisy(), size, **own)


def samples(batches: Any) -> list[tuple[int, float]]:
    return [
        (int(index), float(noise))
        for indices, noises in batches
        for index, noise in zip(indices, noises, strict=True)
    ]


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize(("size", "other"), [(8, 4), (8, 7), (5, 64)])
def test_the_samples_are_the_same_in_batches_of_the_new_size(
    kind: str, size: int, other: int
) -> None:
    whole = samples(make(kind, size))
    for taken in (1, 4, LENGTH // size):
        iterator = iter(loader := make(kind, size))
        before = samples(next(iterator) for _ in range(taken))
        state = loader.state_dict()
        del iterator, loader
        resumed = make(kind, other)
        resumed.load_state_dict(state)
        after = list(resumed)
        assert before + samples(after) == whole
        sizes = [len(indices) for indices, _ in after]
        assert all(found == other for found in sizes[:-1])
        # And the epoch after it is a whole one.
        assert len(samples(resumed)) == LENGTH


@on_each_executor
def test_in_any_order_each_sample_comes_once() -> None:
    iterator = iter(loader := make("shuffled", 8, in_order=False, executor="auto"))
    before = samples(next(iterator) for _ in range(4))
    state = loader.state_dict()
    resumed = make("shuffled", 5, in_order=False, executor="auto")
    resumed.load_state_dict(state)
    assert sorted(i for i, _ in before + samples(resumed)) == list(range(LENGTH))


def test_another_order_is_refused_all_the_same() -> None:
    iterator = iter(loader := make("unknown", 8))
    next(iterator), next(iterator)
    state = loader.state_dict()

    class Forwards(Backwards):
        def __iter__(self) -> Iterator[int]:
            return iter(range(LENGTH))

    Forwards.__qualname__ = Backwards.__qualname__
    resumed = MinatoLoader(Noisy(), 4, sampler=Forwards(), num_workers=2, seed=1)
    resumed.load_state_dict(state)
    with pytest.raises(RuntimeError, match="does not draw what it drew"):
        iter(resumed)


@pytest.mark.parametrize("kind", ["in order", "shuffled", "with a generator"])
@pytest.mark.parametrize(("size", "other"), [(10, 7), (7, 10), (8, 8), (25, 2)])
def test_with_drop_last_no_whole_batch_is_dropped(kind: str, size: int, other: int) -> None:
    for taken in (1, LENGTH // size):
        loader = make(kind, size, drop_last=True)
        iterator = iter(loader)
        before = samples(next(iterator) for _ in range(taken))
        state = loader.state_dict()
        del iterator
        resumed = make(kind, other, drop_last=True)
        resumed.load_state_dict(state)
        iterator = iter(resumed)
        sizes = [len(indices) for indices, _ in [next(iterator)]] if len(before) <= 93 else []
        # As many batches again, of a loader that is resumed in its turn.
        state = resumed.state_dict()
        del iterator
        again = make(kind, other, drop_last=True)
        again.load_state_dict(state)
        sizes += [len(indices) for indices, _ in again]
        assert sizes == [other] * ((LENGTH - len(before)) // other)
