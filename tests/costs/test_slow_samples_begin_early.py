"""Loaders with a cost book: what it calls slow is begun early, and nothing else changes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler, Sampler, SubsetRandomSampler

from minato_async import MinatoLoader, share
from minato_async.scheduling.cost_book import CostBook, CostFile
from tests.loaders import on_each_executor
from tests.processes.support import Countdown, flat, once_each
from tests.semantics.support import iterating

N, BATCH, WORKERS = 203, 10, 3
FAST, SLOW = 0.01, 1.0


class Begun(Dataset[int]):
    """Each index is its own sample; it tells when that of `watched` is begun. `bad` ones raise."""

    def __init__(self, watched: int = -1, bad: Sequence[int] = ()) -> None:
        self.begun = share(Countdown(0))
        self.watched, self.bad = watched, bad

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        if index == self.watched:
            self.begun.add()
        if index in self.bad:
            raise KeyError(index)
        return index


def book(folder: Path, slow: Iterable[int], dataset: str = "Begun") -> Path:
    """A file that says so."""
    costs = np.full(N, FAST)
    costs[list(slow)] = SLOW
    made = CostBook(N)
    made.restore({"costs": costs, "totals": (costs.sum(), N)})
    CostFile(folder / "costs.npz", made, dataset).save()
    return folder / "costs.npz"


def loader(dataset: Any, costs: Any, **options: Any) -> MinatoLoader[Any]:
    own = {"batch_size": BATCH, "num_workers": WORKERS, "prefetch_factor": 1, "in_order": True}
    return MinatoLoader(dataset, **(own | {"costs": costs} | options))


ORDERS = pytest.mark.parametrize("in_order", [True, False], ids=["in-order", "any-order"])
WINDOWS = pytest.mark.parametrize("window", [None, 30], ids=["prefetch", "window"])


@on_each_executor
@ORDERS
@WINDOWS
def test_known_slow_sample_is_begun_before_anything_is_taken(
    tmp_path: Path, in_order: bool, window: int | None
) -> None:
    dataset = Begun(watched=150)
    ours = loader(dataset, book(tmp_path, [150]), in_order=in_order, max_queue_size=window)
    with iterating(ours) as iterator:
        assert dataset.begun.wait()
        assert iterator.stats.delivered == 0
        assert iterator.stats.claimed_early == 1
        found = flat(iterator)
    once_each(found, N)
    if in_order:
        assert found == list(range(N))


@on_each_executor
def test_without_a_book_it_is_begun_in_its_turn() -> None:
    dataset = Begun(watched=150)
    taken = 0
    with iterating(loader(dataset, None)) as iterator:
        while not dataset.begun.take():
            next(iterator)
            taken += 1
    assert taken >= (150 - WORKERS * BATCH) // BATCH


@on_each_executor
@ORDERS
def test_what_is_begun_early_takes_its_place_in_the_window(tmp_path: Path, in_order: bool) -> None:
    dataset = Begun(watched=150)
    slow = range(100, 200, 5)
    with iterating(loader(dataset, book(tmp_path, slow), in_order=in_order)) as iterator:
        found = []
        for batch in iterator:
            found += flat([batch])
            stats = iterator.stats
            assert stats.window == WORKERS * BATCH
            assert 0 <= stats.in_window <= stats.window
    once_each(found, N)


@on_each_executor
def test_next_epoch_knows_what_was_slow() -> None:
    class Slow(Begun):
        def __getitem__(self, index: int) -> int:
            time.sleep(0.1 if index == 190 else 0.001)
            return super().__getitem__(index)

    dataset = Slow(watched=190)
    ours = loader(dataset, "auto")
    assert flat(ours) == list(range(N))
    assert ours.stats.claimed_early == 0
    assert dataset.begun.wait()
    with iterating(ours) as iterator:
        assert dataset.begun.wait()
        assert iterator.stats.delivered == 0
        assert flat(iterator) == list(range(N))
        assert iterator.stats.claimed_early > 0


@on_each_executor
def test_next_run_knows_what_was_slow(tmp_path: Path) -> None:
    class Slow(Begun):
        def __getitem__(self, index: int) -> int:
            time.sleep(0.1 if index == 190 else 0.001)
            return super().__getitem__(index)

    path = tmp_path / "costs.npz"
    flat(loader(Slow(), path))
    with np.load(path) as kept:
        assert kept["costs"][190] > 0.05
    again = loader(Slow(), str(path))
    assert flat(again) == list(range(N))
    assert again.stats.claimed_early > 0


@on_each_executor
def test_failure_of_a_sample_begun_early_is_raised_in_its_turn(tmp_path: Path) -> None:
    dataset = Begun(watched=155, bad=[155, 152])
    found = []
    with iterating(loader(dataset, book(tmp_path, [155]))) as iterator:
        assert dataset.begun.wait()
        for _ in range(15):
            found += flat([next(iterator)])
        assert found == list(range(150))
        with pytest.raises(KeyError, match="152"):  # as without a book: the first of its batch
            next(iterator)
        assert flat(iterator) == list(range(160, N))


@on_each_executor
@ORDERS
def test_failed_samples_are_skipped_wherever_they_are_begun(tmp_path: Path, in_order: bool) -> None:
    bad = [3, 150, 151, *range(160, 170)]
    dataset = Begun(bad=bad)
    slow = [150, 3, 20, *range(160, 170), 202]
    ours = loader(dataset, book(tmp_path, slow), in_order=in_order, on_error="skip")
    found = flat(ours)
    assert sorted(found) == [index for index in range(N) if index not in bad]
    assert sorted(index for index, _ in ours.stats.skipped) == sorted(bad)  # type: ignore[type-var]


@pytest.mark.parametrize("drop_last", [True, False])
@ORDERS
def test_short_last_batch_comes_last(tmp_path: Path, in_order: bool, drop_last: bool) -> None:
    slow = [200, 201, 202, 5, 100]
    ours = loader(Begun(), book(tmp_path, slow), in_order=in_order, drop_last=drop_last)
    sizes = [len(batch) for batch in ours]
    assert sizes == [BATCH] * (N // BATCH) + ([] if drop_last else [N % BATCH])


class TestGenerators:
    """The numbers that are left for the user are those that torch leaves, at any moment."""

    def states(self, sampler: Any, generator: torch.Generator, costs: Any) -> Iterator[Any]:
        generator.manual_seed(3)
        torch.manual_seed(5)
        ours = loader(Begun(), costs, sampler=sampler)
        with iterating(ours) as iterator:
            for batch in iterator:
                yield batch.tolist(), generator.get_state().tolist(), torch.get_rng_state().tolist()
        yield generator.get_state().tolist(), torch.get_rng_state().tolist()

    @pytest.mark.parametrize("n", [N, 200, 50])
    @pytest.mark.parametrize("given", [True, False], ids=["given", "own"])
    def test_of_random_sampler(self, tmp_path: Path, given: bool, n: int) -> None:
        generator = torch.Generator()
        data = range(n)
        sampler: Any = RandomSampler(data, generator=generator if given else None)
        self.check(tmp_path, sampler, generator)

    def test_of_subset_random_sampler(self, tmp_path: Path) -> None:
        generator = torch.Generator()
        self.check(tmp_path, SubsetRandomSampler(range(3, N), generator), generator)

    @pytest.mark.parametrize("options", [{"replacement": True}, {"num_samples": 2 * N + 3}])
    def test_of_random_sampler_that_draws_later(
        self, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        generator = torch.Generator()
        sampler: Any = RandomSampler(range(N), generator=generator, **options)
        self.check(tmp_path, sampler, generator)

    def check(self, tmp_path: Path, sampler: Any, generator: torch.Generator) -> None:
        costs = book(tmp_path, range(0, N, 9))
        with_book = self.states(sampler, generator, costs)
        found = list(with_book)
        assert found == list(self.states(sampler, generator, None))


class Recorded(Sampler[int]):
    """A sampler of the user's, who sees when it is asked."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(N):
            self.drawn += 1
            yield index

    def __len__(self) -> int:
        return N


def test_samplers_of_the_users_are_asked_when_torch_asks_them(tmp_path: Path) -> None:
    sampler = Recorded()
    with iterating(loader(Begun(), book(tmp_path, [150]), sampler=sampler)) as iterator:
        next(iterator)
        assert sampler.drawn == (WORKERS + 1) * BATCH
        # Among what is drawn, slow ones are begun early all the same.
        assert len(flat(iterator)) == N - BATCH


def test_none_is_no_book() -> None:
    ours = loader(Begun(), None)
    flat(ours)
    assert ours._kept_costs is None


def test_batches_that_belong_to_workers_are_loaded_as_ever(tmp_path: Path) -> None:
    ours = loader(Begun(), book(tmp_path, [150]), assignment="batch")
    assert flat(ours) == list(range(N))
    assert ours.stats.claimed_early == 0


def test_copy_of_a_loader_has_a_book_of_its_own() -> None:
    import copy

    ours = loader(Begun(), "auto")
    flat(ours)
    twin = copy.copy(ours)
    flat(twin)
    assert ours._kept_costs is not None
    assert twin._kept_costs is not None
    assert twin._kept_costs.book is not ours._kept_costs.book


@pytest.mark.parametrize(("costs", "error"), [(3, TypeError), (True, TypeError), ("", ValueError)])
def test_bad_values_are_refused(costs: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="costs must be"):
        loader(Begun(), costs)
