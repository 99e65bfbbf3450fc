"""Iterable datasets go on where their consumer was: by their own state, or by reading again."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from minato_async import MinatoLoader
from tests.resuming.loaders import as_is, flat

N = 40


def part(n: int = N) -> range:
    """What the calling worker reads."""
    info = get_worker_info()
    # The shards are of different lengths.
    return range(n) if info is None else range(info.id * info.id, n, info.num_workers)


def draw() -> list[float]:
    return [random.random(), float(torch.rand(()))]


class Plain(IterableDataset[Any]):
    """No state: what came is read again."""

    def __iter__(self) -> Iterator[Any]:
        for number in part():
            yield [number, *draw()]


class Failing(IterableDataset[Any]):
    """An iterator that goes on after a failure."""

    def __iter__(self) -> Iterator[Any]:
        return map(self.sample, part())

    @staticmethod
    def sample(number: int) -> Any:
        if number % 9 == 4:
            raise ValueError(f"sample {number} is broken")
        return [number, *draw()]


class WithState(IterableDataset[Any]):
    """A state of the dataset, which its next iterator begins with: how far it is, and a number that
    cannot be had without all before it."""

    def __init__(self) -> None:
        self.next, self.number = 0, 5
        self.loaded = False

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.next, self.number = 0, 5
        self.loaded = False
        mine = part()
        while self.next < len(mine):
            number = mine[self.next]
            self.next += 1
            self.number = self.number * 48271 % 2147483647
            yield [number, *draw(), self.number]

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.number, self.loaded = state["next"], state["number"], True


class Walk(Iterator[Any]):
    """An iterator with a state."""

    #: An entry each time that one was asked for a sample, in this process: two threads may ask at
    #: once, which `+= 1` does not count.
    steps: ClassVar[deque[None]] = deque()

    def __init__(self) -> None:
        self.mine, self.at = part(), 0

    def __next__(self) -> Any:
        if self.at == len(self.mine):
            raise StopIteration
        Walk.steps.append(None)
        self.at += 1
        return [self.mine[self.at - 1], *draw()]

    def state_dict(self) -> dict[str, Any]:
        return {"at": [self.at]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (self.at,) = state["at"]


class Walking(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return Walk()


KINDS = {kind.__name__: kind for kind in (Plain, Failing, WithState, Walking)}
WAYS: dict[str, dict[str, Any]] = {
    "serial": {"num_workers": 0},
    "one thread": {"num_workers": 1, "executor": "thread"},
    "threads": {"num_workers": 3, "executor": "thread"},
    "processes": {"num_workers": 3, "executor": "process"},
    "shared": {"num_workers": 3, "executor": "thread", "iterable_mode": "shared"},
    "shared processes": {"num_workers": 2, "executor": "process", "iterable_mode": "shared"},
}
#: How it was loaded, and how what is left.
PAIRS = [
    ("serial", "serial"),
    ("serial", "one thread"),
    ("threads", "threads"),
    ("threads", "processes"),
    ("processes", "threads"),
    ("shared", "serial"),
    ("shared", "shared processes"),
    ("shared processes", "shared"),
]


def noised(sample: Any) -> Any:
    return [*sample, random.random()]


def make(kind: str, way: str, **options: Any) -> MinatoLoader[Any]:
    given = {"batch_size": 4, "seed": 3, "collate_fn": as_is, "transforms": [noised]}
    return MinatoLoader(KINDS[kind](), **(given | {"in_order": True} | WAYS[way] | options))


def items(iterator: Iterator[Any]) -> Iterator[Any]:
    """Batches, and failures as what they say of the sample."""
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except ValueError as error:
            yield str(error)


def both(kind: str, one: str, other: str, **options: Any) -> Iterator[tuple[Any, ...]]:
    """For each batch of an epoch: what came up to it, what comes when it is resumed after it, the
    whole epoch, the epoch after it when resumed, and that when not."""
    loader = make(kind, one, **options)
    list(items(iter(loader)))
    iterator = iter(loader)
    states, whole = [loader.state_dict()], []
    for item in items(iterator):
        whole.append(item)
        states.append(loader.state_dict())
    following = list(items(iter(loader)))
    for received, state in enumerate(states):
        again = make(kind, other, **options)
        again.load_state_dict(state)
        rest = list(items(iter(again)))
        yield whole[:received], rest, whole, list(items(iter(again))), following


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_the_rest_is_the_same(kind: str, one: str, other: str) -> None:
    for before, rest, whole, then, following in both(kind, one, other):
        assert before + rest == whole
        assert then == following


@pytest.mark.parametrize("kind", ["Plain", "WithState"])
@pytest.mark.parametrize("snapshot_every_n_steps", [3, 1000])
def test_snapshots_now_and_then(kind: str, snapshot_every_n_steps: int) -> None:
    options = {"snapshot_every_n_steps": snapshot_every_n_steps}
    for before, rest, whole, _, _ in both(kind, "threads", "processes", **options):
        assert before + rest == whole


@pytest.mark.parametrize("way", ["threads", "processes"])
def test_whichever_shard_is_faster(way: str) -> None:
    options = {"in_order": False}
    for before, rest, whole, _, _ in both("Walking", way, way, **options):
        assert sorted(flat(before + rest)) == sorted(flat(whole))


def test_single_samples() -> None:
    for before, rest, whole, _, _ in both("Walking", "threads", "threads", batch_size=None):
        assert before + rest == whole


def test_drop_last() -> None:
    for before, rest, whole, _, _ in both("Plain", "threads", "processes", drop_last=True):
        assert before + rest == whole


@pytest.mark.parametrize("way", ["serial", "threads"])
def test_what_has_a_state_is_not_read_again(way: str) -> None:
    loader = make("Walking", way)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    again = make("Walking", way)
    again.load_state_dict(loader.state_dict())
    iterator.close()  # its workers read on meanwhile
    Walk.steps.clear()
    rest = list(again)
    assert len(Walk.steps) == len(flat(rest))


@pytest.mark.parametrize("way", ["serial", "threads"])
def test_what_has_none_is_read_again_without_transforms(way: str) -> None:
    transformed = []

    def transform(sample: Any) -> Any:
        transformed.append(sample)
        return sample

    loader = make("Plain", way)
    for _ in itertools.islice(loader, 4):
        pass
    again = make("Plain", way, transforms=[transform])
    again.load_state_dict(loader.state_dict())
    rest = list(again)
    assert len(transformed) == len(flat(rest)) > 0


def test_the_training_thread_draws_what_it_would_have_drawn() -> None:
    """Without workers and a seed, an iterator draws from the program's own generators: what is read
    again does not."""
    loader = make("Plain", "serial", seed=None)
    for _ in itertools.islice(loader, 4):
        pass
    state, generator = loader.state_dict(), (random.getstate(), torch.get_rng_state())
    again = make("Plain", "serial", seed=None)
    again.load_state_dict(state)
    random.setstate(generator[0])
    torch.set_rng_state(generator[1])
    iter(again)
    assert random.getstate() == generator[0]
    assert torch.equal(torch.get_rng_state(), generator[1])


def test_another_number_of_shards_is_refused() -> None:
    loader = make("Plain", "threads")
    next(iter(loader))
    again = make("Plain", "threads", num_workers=2)
    with pytest.raises(ValueError, match=r"saved of 3 shards, and this loader reads 2"):
        again.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("way", ["threads", "processes"])
def test_persistent_workers(way: str) -> None:
    loader = make("Walking", way, persistent_workers=True)
    iterator = iter(loader)
    before = list(itertools.islice(iterator, 3))
    state = loader.state_dict()
    rest = list(iterator)
    loader.load_state_dict(state)
    assert list(loader) == rest
    assert len(flat(list(loader))) == len(flat(before + rest))
    iterator.close()


def test_the_length_that_was_reported_counts_what_came_before() -> None:
    class Short(Plain):
        def __len__(self) -> int:
            return 3

    loader = MinatoLoader(Short(), batch_size=None, collate_fn=as_is)
    for _ in itertools.islice(loader, 3):
        pass
    again = MinatoLoader(Short(), batch_size=None, collate_fn=as_is)
    again.load_state_dict(loader.state_dict())
    assert len(again) == 3
    with pytest.warns(UserWarning, match="but 4 samples have been fetched"):
        next(iter(again))
