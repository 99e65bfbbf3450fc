"""What a loader draws from torch's generators: as much as torch's own, and at the same time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from minato_async import MinatoLoader
from tests.loaders import on_each_executor

from .support import lists

Make = Callable[..., DataLoader[Any]]


class DrawsWhenAsked:
    """A sampler that draws one number for each index, from torch's global generator."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.n):
            yield int(torch.randint(1000, ()))

    def __len__(self) -> int:
        return self.n


class DrawsInIter:
    """A sampler of batches that draws all its numbers in `__iter__`."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([indices.tolist() for indices in torch.randperm(12).split(3)])


def ours(*args: Any, **options: Any) -> DataLoader[Any]:
    return MinatoLoader(*args, in_order=True, **options)


def in_any_order(*args: Any, **options: Any) -> DataLoader[Any]:
    return MinatoLoader(*args, in_order=False, **options)


def same_as_torch(scenario: Callable[[Make], Any], make: Make = ours) -> None:
    """`scenario` gives the same with a loader of torch's and with one of ours, and leaves the same
    global random state behind."""

    def run(maker: Make) -> tuple[Any, float]:
        torch.manual_seed(0)
        return scenario(maker), torch.rand(()).item()

    assert run(make) == run(DataLoader)


@pytest.mark.parametrize(
    ("num_workers", "persistent"),
    [(0, False), (2, False), (2, True)],
    ids=["serial", "workers", "persistent"],
)
class TestGlobalGenerator:
    @on_each_executor
    def test_several_epochs(self, num_workers: int, persistent: bool) -> None:
        def scenario(make: Make) -> list[Any]:
            loader = make(
                range(11), 3, True, num_workers=num_workers, persistent_workers=persistent
            )
            found: list[Any] = []
            for _ in range(3):
                found += [lists(loader), torch.rand(()).item()]
            return found

        same_as_torch(scenario)

    def test_epochs_broken_off(self, num_workers: int, persistent: bool) -> None:
        def scenario(make: Make) -> list[Any]:
            loader = make(
                range(50), 3, True, num_workers=num_workers, persistent_workers=persistent
            )
            found = []
            for taken in (0, 1, 4):
                iterator = iter(loader)
                found.append([next(iterator).tolist() for _ in range(taken)])
                found.append(torch.rand(()).item())
            return found

        same_as_torch(scenario)

    @on_each_executor
    def test_numbers_are_drawn_when_torch_draws_them(
        self, num_workers: int, persistent: bool
    ) -> None:
        def scenario(make: Make) -> list[Any]:
            loader = make(
                range(1000),
                2,
                sampler=DrawsWhenAsked(30),
                num_workers=num_workers,
                persistent_workers=persistent,
            )
            found = []
            for _ in range(2):
                iterator = iter(loader)
                found.append(torch.rand(()).item())
                for batch in iterator:
                    found += [batch.tolist(), torch.rand(()).item()]
            return found

        same_as_torch(scenario)

    def test_sampler_that_draws_in_iter(self, num_workers: int, persistent: bool) -> None:
        def scenario(make: Make) -> list[Any]:
            loader = make(
                range(12),
                batch_sampler=DrawsInIter(),
                num_workers=num_workers,
                persistent_workers=persistent,
            )
            return [(lists(loader), torch.rand(()).item()) for _ in range(2)]

        same_as_torch(scenario)


class TestPrefetch:
    @pytest.mark.parametrize("prefetch_factor", [1, 3])
    def test_decides_when_numbers_are_drawn(self, prefetch_factor: int) -> None:
        def scenario(make: Make) -> list[Any]:
            loader = make(
                range(1000),
                4,
                sampler=DrawsWhenAsked(40),
                num_workers=2,
                prefetch_factor=prefetch_factor,
            )
            return [(batch.tolist(), torch.rand(()).item()) for batch in loader]

        same_as_torch(scenario)

    @on_each_executor
    def test_in_any_order(self) -> None:
        def scenario(make: Make) -> list[Any]:
            loader = make(range(1000), 4, sampler=DrawsWhenAsked(38), num_workers=2)
            return [torch.rand(()).item() for _ in loader]

        same_as_torch(scenario, in_any_order)

    def test_in_any_order_where_the_dataset_fetches_batches(self) -> None:
        class Fetches:
            def __getitems__(self, indices: list[int]) -> list[int]:
                return indices

        def scenario(make: Make) -> list[Any]:
            loader = make(Fetches(), 4, sampler=DrawsWhenAsked(38), num_workers=2)
            return [torch.rand(()).item() for _ in loader]

        same_as_torch(scenario, in_any_order)


@pytest.mark.parametrize("num_workers", [0, 2])
class TestGivenGenerator:
    @on_each_executor
    def test_is_drawn_from_as_torch_does(self, num_workers: int) -> None:
        def scenario(make: Make) -> list[Any]:
            generator = torch.Generator().manual_seed(5)
            loader = make(range(11), 3, True, num_workers=num_workers, generator=generator)
            return [(lists(loader), generator.get_state().tolist()) for _ in range(3)]

        same_as_torch(scenario)

    def test_of_the_sampler_alone(self, num_workers: int) -> None:
        def scenario(make: Make) -> list[Any]:
            generator = torch.Generator().manual_seed(5)
            sampler = RandomSampler(range(100), generator=generator)
            loader = make(range(100), 9, sampler=sampler, num_workers=num_workers)
            return [(lists(loader), generator.get_state().tolist()) for _ in range(2)]

        same_as_torch(scenario)

    def test_makes_the_epoch_repeatable(self, num_workers: int) -> None:
        def epochs() -> list[Any]:
            generator = torch.Generator().manual_seed(5)
            loader = MinatoLoader(
                range(40), 7, shuffle=True, num_workers=num_workers, generator=generator
            )
            return [lists(loader) for _ in range(2)]

        assert epochs() == epochs()


@on_each_executor
@pytest.mark.parametrize("num_workers", [0, 2])
def test_other_generators_are_left_alone(num_workers: int) -> None:
    """Python's and numpy's global generators belong to the user."""
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    list(MinatoLoader(range(20), 3, shuffle=True, num_workers=num_workers))
    assert (random.random(), np.random.random()) == expected
