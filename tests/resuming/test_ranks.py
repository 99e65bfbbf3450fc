"""An epoch that several ranks have begun goes on with another number of them."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from torch.utils.data.distributed import DistributedSampler

from minato_async import MinatoLoader, merge_states
from tests.resuming import loaders
from tests.resuming.loaders import as_is, flat

N = 61


def rank_of(rank: int, ranks: int, epoch: int = 3, **options: Any) -> MinatoLoader[Any]:
    dataset = options.pop("dataset", None) or loaders.Random(N)
    sampler = DistributedSampler(
        dataset, ranks, rank, seed=5, drop_last=options.pop("drops", False)
    )
    sampler.set_epoch(epoch)
    given: dict[str, Any] = {"batch_size": 3, "seed": 2, "collate_fn": as_is} | options
    return MinatoLoader(dataset, sampler=sampler, **given)


def begun(ranks: int, batches: list[int], **options: Any) -> tuple[list[Any], list[Any]]:
    """What ranks that have received so many batches have got, and their states."""
    all_loaders = [rank_of(rank, ranks, **options) for rank in range(ranks)]
    got = [list(itertools.islice(one, n)) for one, n in zip(all_loaders, batches, strict=True)]
    return flat(got), [one.state_dict() for one in all_loaders]


def goes_on(ranks: int, merged: Any, **options: Any) -> list[Any]:
    found = []
    for rank in range(ranks):
        loader = rank_of(rank, ranks, **options)
        loader.load_state_dict(merged)
        found.append(list(loader))
    assert len(set(map(len, found))) == 1, "all ranks have as many batches"
    return found


def whole() -> list[Any]:
    """The epoch, as one rank gets it."""
    return sorted(flat(rank_of(0, 1)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("before", [[2, 2], [0, 3], [3, 3, 2, 3]])
def test_nothing_is_lost_and_nothing_comes_twice(before: list[int], ranks: int) -> None:
    got, states = begun(len(before), before)
    rest = goes_on(ranks, merge_states(reversed(states)))
    samples = flat(got) + flat(flat(rest))
    # So that all ranks have as many, some come twice, as torch has it, with another k.
    assert {sample[0] for sample in samples} == set(range(N))
    assert len(samples) - N < ranks
    counts = Counter(sample[0] for sample in flat(got))
    assert all(sample[0] not in counts for sample in flat(flat(rest)))
    assert set(map(tuple, whole())) <= set(map(tuple, samples))


def test_where_ready_samples_come_first() -> None:
    options = {"in_order": False, "num_workers": 3, "executor": "thread"}
    got, states = begun(2, [4, 7], **options)
    rest = goes_on(3, merge_states(states), **options)
    found = Counter(sample[0] for sample in flat(got) + flat(flat(rest)))
    assert set(found) == set(range(N))
    assert found.total() - N < 3


def test_what_goes_on_can_be_interrupted_and_merged_again() -> None:
    got, states = begun(2, [3, 3])
    merged = merge_states(states)
    second = []
    for rank in range(3):
        loader = rank_of(rank, 3)
        loader.load_state_dict(merged)
        got += itertools.islice(loader, 2)
        second.append(loader.state_dict())
    # With as many ranks, each goes on from its own.
    resumed = []
    for rank in range(3):
        loader = rank_of(rank, 3)
        loader.load_state_dict(second[rank])
        resumed += list(loader)
    assert {sample[0] for sample in flat(got + resumed)} == set(range(N))
    assert len(flat(got + resumed)) - N < 3
    # With others, together.
    rest = flat(goes_on(1, merge_states(second)))
    assert sorted(sample[0] for sample in flat(got + rest)) == list(range(N))


def test_datasets_that_fetch_batches() -> None:
    options = {"dataset": loaders.Fetching(N)}
    got, states = begun(2, [2, 3], **options)
    rest = flat(goes_on(1, merge_states(states), batch_size=4, **options))
    assert sorted(sample[0] for sample in flat(got + rest)) == list(range(N))


def test_what_the_ranks_would_have_dropped_is_left() -> None:
    got, states = begun(3, [1, 1, 1], drops=True)
    rest = flat(goes_on(1, merge_states(states), drops=True))
    assert sorted(sample[0] for sample in flat(got + rest)) == list(range(N))


def test_between_epochs() -> None:
    _, states = begun(2, [100, 100])
    loader = rank_of(1, 3, epoch=4)
    loader.load_state_dict(merge_states(states))
    loader.sampler.set_epoch(4)
    expected = rank_of(1, 3, epoch=4)
    expected._epochs = 1
    assert list(loader) == list(expected)


class TestRefused:
    def test_other_samplers(self) -> None:
        loader = loaders.make("shuffle", "serial")
        with pytest.raises(ValueError, match=r"not for the sampler BatchSampler of RandomSampler"):
            merge_states([loader.state_dict()])

    def test_missing_ranks(self) -> None:
        _, states = begun(3, [1, 1, 1])
        with pytest.raises(ValueError, match=r"states of 3 ranks are needed.*\[0, 2\]"):
            merge_states([states[0], states[2]])
        with pytest.raises(ValueError, match="got none"):
            merge_states([])

    def test_other_epochs(self) -> None:
        _, states = begun(2, [1, 1])
        with pytest.raises(ValueError, match="not of one point of one training: epochs"):
            merge_states([states[0], states[1] | {"epochs": 7}])
        _, states = begun(2, [1, 100])
        with pytest.raises(ValueError, match="some ranks had come to the end"):
            merge_states(states)
