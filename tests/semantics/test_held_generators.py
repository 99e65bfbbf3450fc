"""Random generators that the user's objects hold draw from the sample's streams."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from minato_async import MinatoLoader, sample_rng, share
from tests.loaders import on_each_executor

N = 24


class ByClass:
    """As MONAI's `Randomizable`: until it is seeded, all objects have the one of the class."""

    R = np.random.RandomState()

    def __call__(self, sample: list[Any]) -> list[Any]:
        return [*sample, int(self.R.randint(1 << 30))]


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def draw(self) -> float:
        return float(self.rng.normal())


def draw_from(rng: random.Random) -> float:
    return rng.random()


class Everywhere:
    """Holds one of each, in many places; each sample shows what it has drawn from all of them."""

    def __init__(self) -> None:
        self.state = np.random.RandomState()
        self.generator = np.random.default_rng()
        self.philox = np.random.Generator(np.random.Philox())
        self.python = random.Random()
        self.torch = torch.Generator()
        self.torch.seed()
        self.listed = [np.random.RandomState(), (random.Random(),), {"a": torch.Generator()}]
        self.slotted = Slotted()
        self.partial = partial(draw_from, random.Random())
        own = np.random.default_rng()
        self.closure = lambda: float(own.random())
        self.bound = np.random.RandomState().randint
        self.again = self.state

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> list[Any]:
        return [
            index,
            float(self.state.rand()),
            *self.state.permutation(5).tolist(),
            float(self.generator.random()),
            int(self.generator.integers(1 << 40)),
            float(self.philox.normal()),
            self.python.random(),
            self.python.gauss(0, 1),
            self.python.randint(0, 1 << 40),
            *torch.randn(2, generator=self.torch).tolist(),
            float(self.listed[0].uniform()),
            self.listed[1][0].random(),
            *torch.rand(2, generator=self.listed[2]["a"]).tolist(),
            self.slotted.draw(),
            self.partial(),
            self.closure(),
            int(self.bound(1 << 30)),
            int(self.again.randint(1 << 30)),
        ]


def loaded(dataset: Any, num_workers: int, executor: str = "thread", **options: Any) -> list[Any]:
    usual = {"batch_size": 4, "collate_fn": list, "seed": 7}
    loader = MinatoLoader(dataset, num_workers=num_workers, executor=executor, **(usual | options))
    return sorted(sample for batch in loader for sample in batch)


WAYS = [(0, "thread"), (1, "thread"), (4, "thread"), (1, "process"), (2, "process")]


def same_everywhere(make: Callable[[], Any], **options: Any) -> list[Any]:
    """What is loaded, the same in all ways, from objects that are made anew for each."""
    first, *others = [loaded(make(), *way, **options) for way in WAYS]
    for way, other in zip(WAYS[1:], others, strict=True):
        assert other == first, way
    return first


def all_unlike(samples: list[Any]) -> None:
    """No two samples have drawn alike, at no place; and at no two places."""
    drawn = [value for sample in samples for value in sample[1:] if isinstance(value, float)]
    assert len(set(drawn)) == len(drawn)


class TestTheSameSamples:
    def test_wherever_they_are_held(self) -> None:
        samples = same_everywhere(Everywhere)
        assert [sample[0] for sample in samples] == list(range(N))
        all_unlike(samples)

    def test_whatever_the_order(self) -> None:
        all_unlike(same_everywhere(Everywhere, shuffle=True, in_order=False))

    def test_in_transforms_of_the_loaders_own(self) -> None:
        held = [np.random.RandomState() for _ in range(2)]
        transforms = [
            partial(lambda rng, sample: [*sample, float(rng.rand())], held[0]),
            ByClass(),
            partial(lambda rng, sample: [*sample, float(rng.rand())], held[1]),
            ByClass(),
        ]
        samples = same_everywhere(Everywhere, transforms=transforms)
        all_unlike(samples)
        assert len({sample[-3] for sample in samples}) == N

    def test_another_seed_and_another_epoch_give_others(self) -> None:
        dataset = Everywhere()
        assert loaded(dataset, 2) != loaded(dataset, 2, seed=8)
        loader = MinatoLoader(dataset, batch_size=4, num_workers=2, collate_fn=list, seed=7)
        epochs = [[s for batch in loader for s in batch] for _ in range(2)]
        assert epochs[0] == loaded(dataset, 2)
        all_unlike(epochs[0] + epochs[1])

    def test_an_index_that_comes_again_draws_others(self) -> None:
        for way in WAYS:
            samples = loaded(Everywhere(), *way, sampler=[3] * 8)
            all_unlike(samples)

    def test_batches_begin_anew_though_rows_have_the_same_numbers(self) -> None:
        """Only one row of each batch draws: the last that drew had the number of this one."""

        class Some:
            def __init__(self) -> None:
                self.rng = np.random.RandomState()
                self.torch = torch.Generator()

            def __len__(self) -> int:
                return 16

            def __getitem__(self, index: int) -> list[float]:
                if index % 4 != 2:
                    return [index]
                return [index, self.rng.rand(), float(torch.rand((), generator=self.torch))]

        all_unlike(same_everywhere(Some))


@on_each_executor
class TestOnEachExecutor:
    def test_what_was_diverted_goes_on(self, executor: str) -> None:
        dataset = Everywhere()

        def slow(sample: list[Any]) -> list[Any]:
            time.sleep(0.02 * (sample[0] % 6 == 1))
            return sample

        def draw(sample: list[Any]) -> list[Any]:
            more = Everywhere.__getitem__(dataset_of(), sample[0])
            return [*sample, *more[1:]]

        def dataset_of() -> Everywhere:
            return torch.utils.data.get_worker_info().dataset if workers else dataset

        workers = 0
        options: dict[str, Any] = {"transforms": [slow, draw], "in_order": False}
        expected = loaded(dataset, 0, **options)
        workers = 3
        loader = MinatoLoader(
            dataset,
            batch_size=4,
            collate_fn=list,
            seed=7,
            num_workers=3,
            timeout_threshold=0.01,
            executor=executor,
            **options,
        )
        assert sorted(s for batch in loader for s in batch) == expected
        assert loader.stats.diverted >= 4
        all_unlike(expected)

    def test_what_worker_init_fn_seeds_stays_so(self, executor: str) -> None:
        def seeds(worker: int) -> None:
            dataset: Any = torch.utils.data.get_worker_info().dataset
            dataset.state.seed(worker)
            dataset.generator = np.random.default_rng(worker)
            dataset.python.seed(worker)
            dataset.torch.manual_seed(worker)

        samples = loaded(
            Everywhere(), 1, executor, worker_init_fn=seeds, sampler=range(3), batch_size=1
        )
        state, python = np.random.RandomState(0), random.Random(0)
        generator, gentorch = np.random.default_rng(0), torch.Generator().manual_seed(0)
        for sample in samples:
            assert sample[1] == state.rand()
            assert sample[2:7] == state.permutation(5).tolist()
            assert sample[7] == generator.random()
            assert sample[8] == generator.integers(1 << 40)
            assert sample[10] == python.random()
            python.gauss(0, 1), python.randint(0, 1 << 40)
            assert sample[13:15] == torch.randn(2, generator=gentorch).tolist()
            state.randint(1 << 30)
        others = loaded(Everywhere(), 1, executor, sampler=range(3), batch_size=1)
        assert [s[9] for s in samples] == [s[9] for s in others]

    def test_what_a_sample_seeds_ends_with_it(self, executor: str) -> None:
        class Seeding(Everywhere):
            def __getitem__(self, index: int) -> list[Any]:
                if index % 2:
                    self.state.seed(index)
                return [index, float(self.state.rand())]

        samples = loaded(Seeding(), 2, executor)
        for index, drawn in samples[1::2]:
            assert drawn == np.random.RandomState(index).rand()
        plain = loaded(Everywhere(), 2, executor)
        assert [s[1] for s in samples[::2]] == [s[1] for s in plain[::2]]

    def test_without_isolation_they_are_as_they_were(self, executor: str) -> None:
        """On threads each worker's own, in processes a copy of the original."""

        class One(Everywhere):
            def __getitem__(self, index: int) -> list[Any]:
                return [index, float(self.state.rand()), os.getpid()]

        dataset = One()
        dataset.state.seed(3)
        samples = loaded(dataset, 1, executor, seed=False)
        drawn = [sample[1] for sample in samples]
        assert len(set(drawn)) == N
        copy = np.random.RandomState(3)
        assert (drawn == [copy.rand() for _ in range(N)]) == (executor == "process")

    def test_explicit_ones_of_the_sample(self, executor: str) -> None:
        class Explicit:
            def __init__(self, noisy: bool) -> None:
                self.noisy = noisy

            def __len__(self) -> int:
                return N

            def __getitem__(self, index: int) -> list[Any]:
                if self.noisy:
                    random.random(), np.random.rand(), torch.rand(())
                rng = sample_rng()
                first = [rng.python.random(), float(rng.numpy.random())]
                drawn = torch.rand(2, generator=sample_rng().torch).tolist()
                return [index, *first, *drawn, sample_rng().python.random()]

        samples = loaded(Explicit(False), 2, executor)
        all_unlike(samples)
        assert samples == loaded(Explicit(True), 3, executor) == loaded(Explicit(True), 0)


def test_explicit_ones_go_along_with_a_diverted_sample() -> None:
    def draw(value: Any) -> list[Any]:
        before = value if isinstance(value, list) else [value]
        rng = sample_rng()
        torch_drawn = float(torch.rand((), generator=rng.torch))
        time.sleep(0.02 * (before[0] % 6 == 1))
        return [*before, rng.python.random(), float(rng.numpy.random()), torch_drawn]

    options: dict[str, Any] = {"transforms": [draw, draw], "in_order": False}
    expected = loaded(range(N), 0, **options)
    all_unlike(expected)
    for executor in ("thread", "process"):
        found = loaded(range(N), 3, executor, timeout_threshold=0.01, **options)
        assert found == expected


def test_explicit_ones_outside_of_a_sample_follow_torchs_seed() -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        rng = sample_rng()
        drawn.append([rng.python.random(), float(rng.numpy.random()), rng.python.random()])
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 3


@pytest.mark.usefixtures("threads_by_default")
def test_what_all_share_does_not_follow() -> None:
    dataset = share(Everywhere(), "state")
    samples = loaded(dataset, 3)
    assert [s[7] for s in samples] == [s[7] for s in loaded(Everywhere(), 3)]
    assert [s[1] for s in samples] != [s[1] for s in loaded(Everywhere(), 3)]


class Stream(torch.utils.data.IterableDataset[list[Any]]):
    def __init__(self) -> None:
        self.state = np.random.RandomState()
        self.python = random.Random()

    def __iter__(self) -> Any:
        info: Any = torch.utils.data.get_worker_info()
        for index in range(info.id, N, info.num_workers):
            yield [index, float(self.state.rand()), self.python.random()]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_those_of_iterable_datasets_follow_too(num_workers: int) -> None:
    threads, processes = (loaded(Stream(), num_workers, way) for way in ("thread", "process"))
    assert threads == processes
    all_unlike(threads)
