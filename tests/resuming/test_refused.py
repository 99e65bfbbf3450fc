"""States that are not this loader's are refused, and change nothing."""

from __future__ import annotations

import copy
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler
from torch.utils.data.distributed import DistributedSampler

from minato_async import MinatoLoader
from tests.resuming import loaders
from tests.resuming.loaders import flat


def make(**options: Any) -> MinatoLoader[Any]:
    return MinatoLoader(**({"dataset": range(20), "batch_size": 4} | options))


def state_after(loader: MinatoLoader[Any], batches: int) -> dict[str, Any]:
    for _ in itertools.islice(loader, batches):
        pass
    return loader.state_dict()


def ranked(rank: int, replicas: int = 2, **options: Any) -> MinatoLoader[Any]:
    return make(sampler=DistributedSampler(range(20), replicas, rank), batch_size=2, **options)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"dataset": range(21)}, "20 samples, this loader's has 21"),
        ({"shuffle": True}, "SequentialSampler, this loader has .*RandomSampler"),
        ({"sampler": loaders.Shuffled()}, "SequentialSampler, this loader has .*Shuffled"),
        ({"dataset": torch.utils.data.ChainDataset([])}, "kind 'map', this loader's .*'iterable'"),
    ],
)
def test_of_another_loader(other: dict[str, Any], said: str) -> None:
    state, loader = state_after(make(), 2), make(**other)
    before = loader.state_dict()
    with pytest.raises(ValueError, match=said):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_of_another_number_of_samples() -> None:
    def drawing(count: int) -> MinatoLoader[Any]:
        return make(sampler=RandomSampler(range(20), num_samples=count))

    state = state_after(drawing(40), 2)
    with pytest.raises(ValueError, match=r"num_samples=40 \(here 30\)"):
        drawing(30).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda state: 3, TypeError, "a state is a dict"),
        (lambda state: {"_num_yielded": 3}, ValueError, "not the state of a MinatoLoader.*_num"),
        (lambda state: state | {"version": 99}, ValueError, "version 99.*version 1"),
    ],
)
def test_of_another_format(change: Any, error: type[Exception], said: str) -> None:
    state = change(state_after(make(), 2))
    with pytest.raises(error, match=said):
        make().load_state_dict(state)


def test_of_another_number_of_ranks() -> None:
    state = state_after(ranked(0), 1)
    with pytest.raises(ValueError, match=r"one of 2 ranks, and here are 4.*merge_states"):
        ranked(0, 4).load_state_dict(state)


@pytest.mark.usefixtures("threads_by_default")
def test_of_another_rank_is_taken_where_all_are_equally_far() -> None:
    state = state_after(ranked(0), 2)
    loader = ranked(1)
    expected = list(map(torch.Tensor.tolist, ranked(1)))[2:]
    loader.load_state_dict(state)
    assert list(map(torch.Tensor.tolist, loader)) == expected

    state["epoch"]["in_order"] = False
    with pytest.raises(ValueError, match="state of rank 0, and this is rank 1"):
        ranked(1).load_state_dict(state)


def test_of_a_dataset_that_fetches_other_batches() -> None:
    state = state_after(make(dataset=loaders.Fetching()), 1)
    with pytest.raises(ValueError, match=r"batches of 4.*batch_size=5"):
        make(dataset=loaders.Fetching(), batch_size=5).load_state_dict(state)


class Unrepeatable:
    """Never twice the same order, and no state to ask for."""

    def __init__(self) -> None:
        self._order = torch.Generator()
        self._order.seed()

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(20, generator=self._order).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_something_else(workers: int) -> None:
    def unrepeatable() -> MinatoLoader[Any]:
        # Fewer are drawn ahead than there are.
        ahead = 1 if workers else None
        return make(
            sampler=Unrepeatable(), num_workers=workers, prefetch_factor=ahead, batch_size=2
        )

    state, loader = state_after(unrepeatable(), 2), unrepeatable()
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"the sampler \(Unrepeatable\) does not draw what it"):
        iter(loader)
    with pytest.raises(RuntimeError, match="does not draw"):
        iter(loader)


def test_a_sampler_that_has_drawn_all_need_not_draw_again() -> None:
    loader = make(sampler=Unrepeatable(), num_workers=2, max_queue_size=100, batch_size=2)
    first = list(itertools.islice(loader, 3))
    again = make(sampler=Unrepeatable(), batch_size=2)
    again.load_state_dict(loader.state_dict())
    assert sorted(flat(first + list(again))) == list(range(20))
    assert len(list(again)) == 10


class TestTheDict:
    def test_is_fresh(self) -> None:
        loader = make(sampler=loaders.Remembering(), dataset=loaders.Random(), collate_fn=list)
        state = state_after(loader, 2)
        kept = copy.deepcopy(state)
        list(loader)
        assert state == kept
        loader.load_state_dict(state)
        list(loader)
        assert state == kept

    @pytest.mark.parametrize("kind", [kind for kind in loaders.KINDS if kind != "objects"])
    def test_is_plain_enough_for_torch_load_and_for_json(self, kind: str) -> None:
        state = state_after(loaders.make(kind, "serial"), 2)
        assert json.loads(json.dumps(state)) == state
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        assert torch.load(file, weights_only=True) == state
        assert len(file.getvalue()) < 40_000

    def test_of_a_loader_that_has_not_begun(self) -> None:
        loader = make(shuffle=True, generator=loaders.generator(3))
        state = loader.state_dict()
        expected = [[batch.tolist() for batch in loader] for _ in range(2)]
        again = make(shuffle=True, generator=loaders.generator(4))
        again.load_state_dict(state)
        assert [[batch.tolist() for batch in again] for _ in range(2)] == expected

    def test_saved_and_restored_over_and_over(self) -> None:
        expected = list(loaders.make("generator", "serial"))
        found: list[Any] = []
        state = loaders.make("generator", "serial").state_dict()
        for _ in expected:
            loader = loaders.make("generator", "serial")
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            found += itertools.islice(loader, 1)
            state = loader.state_dict()
        assert found == expected


class TestIterators:
    def test_have_a_state_too(self, our_kind: Any) -> None:
        loader = our_kind(range(20), 4)
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = iterator.state_dict()
        rest = sorted(flat(iterator))
        iterator.load_state_dict(state)
        assert sorted(flat(iterator)) == rest
        assert len(rest) == 12
        iterator.close()

    def test_persistent_workers_resume(self, our_kind: Any) -> None:
        if not our_kind.num_workers:
            pytest.skip("it has none")
        loader = our_kind(range(20), 4, persistent_workers=True, in_order=True)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        assert len(list(iterator)) == 4
        loader.load_state_dict(state)
        assert iter(loader) is iterator
        assert [batch.tolist()[0] for batch in iterator] == [4, 8, 12, 16]
        assert len(list(loader)) == 5
        iterator.close()
