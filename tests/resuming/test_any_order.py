"""Ready samples first: a state says which were received, whatever overtook what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from minato_async import MinatoLoader, share
from tests.resuming import loaders
from tests.resuming.loaders import Random, as_is, flat
from tests.semantics.support import Holding, InThread, outcomes

WAYS = ("threads", "more threads", "processes")
SIZE = 60


class Failing(Random):
    def __getitem__(self, index: Any) -> list[Any]:
        if index % 7 == 3:
            raise ValueError(f"sample {index} is broken")
        return super().__getitem__(index)


def make(way: str, **options: Any) -> MinatoLoader[Any]:
    given: dict[str, Any] = {"dataset": Random(SIZE), "shuffle": True, "in_order": False}
    return loaders.make("sequential", way, **(given | options))


def received(found: list[Any]) -> Counter[int]:
    """The indices in batches, and those that failures name."""
    indices: Counter[int] = Counter()
    for batch in found:
        if isinstance(batch, BaseException):
            indices[int(str(batch).split()[1])] += 1
        else:
            indices.update(sample[0] for sample in batch)
    return indices


@pytest.mark.parametrize("then", [*WAYS, "serial"])
@pytest.mark.parametrize("way", WAYS)
def test_each_sample_comes_once_and_as_it_would_have_come(way: str, then: str) -> None:
    loaders.start_over(1)
    loader = make(way)
    list(loader)
    first, states = [], []
    for batch in loader:
        first.append(batch)
        states.append(loader.state_dict())
    expected = sorted(flat(first))
    for number, state in enumerate(states, 1):
        loaders.start_over(2)
        again = make(then, in_order=number % 3 == 0)
        again.load_state_dict(state)
        rest = list(again)
        assert sorted(flat(first[:number] + rest)) == expected
        assert all(len(batch) == loaders.BATCH for batch in rest)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("in_order", [True, False])
def test_failed_and_skipped_samples_are_received(way: str, on_error: str, in_order: bool) -> None:
    options = {"dataset": Failing(SIZE), "on_error": on_error, "in_order": in_order}
    loader = make(way, **options)
    iterator, first, states = iter(loader), [], []
    while True:
        found = outcomes_of_one(iterator)
        if found is None:
            break
        first.append(found)
        states.append(loader.state_dict())
    broken = {index for index in range(SIZE) if index % 7 == 3}
    for number, state in enumerate(states, 1):
        again = make(way, **options)
        again.load_state_dict(state)
        found = received(first[:number] + outcomes(iter(again)))
        assert max(found.values()) == 1
        if on_error == "raise" and in_order:
            continue  # a failure costs its batch
        assert set(found) == set(range(SIZE)) - (broken if on_error == "skip" else set())


def outcomes_of_one(iterator: Any) -> Any:
    try:
        return next(iterator)
    except StopIteration:
        return None
    except Exception as error:
        return error


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("way", ["threads", "processes"])
def test_without_a_seed_the_one_that_was_drawn_is_in_the_state(way: str, persistent: bool) -> None:
    options = {"seed": None, "in_order": True, "persistent_workers": persistent}
    loaders.start_over(1)
    loader = make(way, **options)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(5)]
    state, rest = loader.state_dict(), list(iterator)
    between, generators = loader.state_dict(), loaders.generators()
    following = list(loader)

    def resumed(state: Any) -> MinatoLoader[Any]:
        loaders.start_over(2)
        again = make(way, **options)
        again.load_state_dict(state)
        return again

    assert list(resumed(state)) == rest
    again = resumed(between)
    loaders.set_generators(generators)
    assert list(again) == following
    assert len(first + rest) == SIZE // loaders.BATCH


@pytest.mark.usefixtures("threads_by_default")
def test_a_pass_for_several_devices_goes_on() -> None:
    """Batches that were given to any of them count."""
    options: dict[str, Any] = {"num_workers": 2, "collate_fn": as_is, "in_order": True, "seed": 3}
    loader = MinatoLoader(Random(SIZE), 4, **options)
    one, two = loader.per_device(["cpu", "cpu"])
    first = [next(one), next(two), next(one)]
    state = one.state_dict()
    assert state == two.state_dict()
    with pytest.raises(RuntimeError, match="one device cannot go back by itself"):
        one.load_state_dict(state)
    one.close()
    two.close()
    again = MinatoLoader(Random(SIZE), 4, **options)
    again.load_state_dict(state)
    one, two = again.per_device(["cpu", "cpu"])
    rest = [*one, *two]
    assert sorted(flat(first + rest)) == sorted(flat(MinatoLoader(Random(SIZE), 4, **options)))


@pytest.mark.usefixtures("threads_by_default")
def test_what_overtook_a_slow_sample_does_not_come_again() -> None:
    dataset = Holding(SIZE, held=[0])
    loader = MinatoLoader(dataset, 4, num_workers=3, in_order=False, max_queue_size=SIZE)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(SIZE // 4 - 1)]
    state = loader.state_dict()
    dataset.release()
    iterator.close()
    assert state["epoch"]["received"]["frontier"] == 0

    again = MinatoLoader(range(SIZE), 4, num_workers=2)
    again.load_state_dict(state)
    rest = list(again)
    assert sorted(flat(first + rest)) == list(range(SIZE))
    assert len(rest) == 1


@pytest.mark.usefixtures("threads_by_default")
def test_a_state_is_that_of_the_consumer_and_not_of_the_workers() -> None:
    """All is read ahead; nothing of it counts before it is received."""
    dataset = Random(SIZE)
    loader = MinatoLoader(
        share(dataset), 4, num_workers=2, in_order=True, max_queue_size=SIZE, collate_fn=as_is
    )
    iterator = iter(loader)
    next(iterator)
    reader = InThread(lambda: wait_until_read(loader))
    reader.result()
    state = loader.state_dict()
    iterator.close()
    assert state["epoch"]["received"]["frontier"] == 4
    again = MinatoLoader(dataset, 4, collate_fn=as_is)
    again.load_state_dict(state)
    assert [sample[0] for sample in flat(again)] == list(range(4, SIZE))


def wait_until_read(loader: MinatoLoader[Any]) -> None:
    while loader.stats.finished < SIZE:
        pass
