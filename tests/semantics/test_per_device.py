"""`per_device`: one pass for several devices, here all "cpu"."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from minato_async import MinatoLoader
from tests.loaders import on_each_executor
from tests.semantics.support import PATIENCE

LENGTH = 41
TWO = ["cpu", "cpu"]


class Numbers(Dataset[int]):
    """Sample i is i; those in `failing` fail."""

    def __init__(self, length: int = LENGTH, failing: tuple[int, ...] = ()) -> None:
        self.length = length
        self.failing = failing

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.failing:
            raise ValueError(f"no {index}")
        return index


def make(dataset: Any = None, **options: Any) -> MinatoLoader[Any]:
    given = {"batch_size": 4, "num_workers": 2} | options
    return MinatoLoader(Numbers() if dataset is None else dataset, **given)


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def in_threads(iterators: Any) -> list[list[list[int]]]:
    """What each gets in a thread of its own."""
    got: list[list[list[int]]] = [[] for _ in iterators]

    def consume(number: int) -> None:
        got[number] += lists(iterators[number])

    threads = [threading.Thread(target=consume, args=(n,)) for n in range(len(iterators))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return got


@on_each_executor
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_in_order_batch_i_is_for_device_i_modulo_their_number(devices: int) -> None:
    drawn = lists(DataLoader(Numbers(), 4))
    got = in_threads(make(in_order=True).per_device(["cpu"] * devices))
    assert got == [drawn[number::devices] for number in range(devices)]


@on_each_executor
def test_in_any_order_each_sample_is_for_one_device() -> None:
    for devices in (2, 3):
        got = in_threads(make(in_order=False, shuffle=True).per_device(["cpu"] * devices))
        assert Counter(i for one in got for batch in one for i in batch) == Counter(range(LENGTH))


@on_each_executor
def test_one_thread_may_take_from_all_in_turn() -> None:
    first, second = make(in_order=True).per_device(TWO)
    drawn = lists(DataLoader(Numbers(), 4))
    for number in range(0, len(drawn) - 1, 2):
        assert next(first).tolist() == drawn[number]
        assert next(second).tolist() == drawn[number + 1]
    assert lists(first) == drawn[len(drawn) - 1 :]
    assert lists(second) == []


@on_each_executor
def test_a_slow_device_holds_up_the_others_by_its_own_window_alone() -> None:
    drawn = lists(DataLoader(Numbers(400), 4))
    slow, fast = make(Numbers(400), in_order=True, prefetch_factor=3).per_device(TWO)
    # Its window: what a loader with two workers draws ahead. Nobody takes the slow one's.
    assert lists(next(fast) for _ in range(6)) == drawn[1:12:2]
    waiting = threading.Thread(target=lambda: lists(fast))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "the window of the slow one is not bounded"
    assert lists(slow) == drawn[::2]
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


@on_each_executor
def test_in_any_order_a_device_that_takes_nothing_holds_up_nobody() -> None:
    idle, busy = make(in_order=False).per_device(TWO)
    assert Counter(i for batch in lists(busy) for i in batch) == Counter(range(LENGTH))
    assert lists(idle) == []


@on_each_executor
@pytest.mark.parametrize("in_order", [True, False])
def test_what_is_done_on_a_device_is_done_for_it_alone_and_does_not_depend_on_it(
    in_order: bool,
) -> None:
    def drawn(batch: Any) -> Any:
        return batch, torch.rand(())

    options = {"in_order": in_order, "device": "cpu", "device_transform": drawn, "seed": 3}
    alone = [(batch.tolist(), float(noise)) for batch, noise in make(**options)]
    iterators = make(**options).per_device(TWO)
    got: list[list[Any]] = [[], []]
    ending = [False, False]
    while not all(ending):
        for number, iterator in enumerate(iterators):
            pair = next(iterator, None)
            if pair is None:
                ending[number] = True
            else:
                got[number].append((pair[0].tolist(), float(pair[1])))
    if in_order:
        assert got == [alone[::2], alone[1::2]]
        assert iterators[0].stats.copied_batches == len(alone)
    else:
        samples = Counter(i for one in got for batch, _ in one for i in batch)
        assert samples == Counter(range(LENGTH))
        assert abs(len(got[0]) - len(got[1])) <= 2, "not shared out evenly"


@on_each_executor
def test_what_is_on_a_device_that_takes_nothing_is_bounded() -> None:
    loader = make(
        Numbers(400), in_order=False, device="cpu", device_transform=torch.clone, prefetch_factor=3
    )
    idle, busy = loader.per_device(TWO)
    taken = Counter(i for batch in lists(busy) for i in batch)
    kept = Counter(i for batch in lists(idle) for i in batch)
    assert taken + kept == Counter(range(400))
    assert sum(kept.values()) <= 3 * 4


def test_the_window_bounds_all_devices_together() -> None:
    begun = threading.Semaphore(0)

    class Begun(Numbers):
        def __getitem__(self, index: int) -> int:
            begun.release()
            return index

    loader = make(Begun(400), in_order=True, max_queue_size=16, executor="thread")
    idle, busy = loader.per_device(TWO)
    taking = threading.Thread(target=lambda: lists(busy))
    taking.start()
    # Of seven batches it takes three; the other four, which nobody takes, fill the window.
    for _ in range(28):
        assert begun.acquire(timeout=PATIENCE)
    taking.join(0.2)
    assert not begun.acquire(blocking=False)
    del idle
    taking.join(PATIENCE)
    assert not taking.is_alive()


@on_each_executor
@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_what_is_for_a_device_that_is_gone_is_dropped(how: str) -> None:
    drawn = lists(DataLoader(Numbers(400), 4))
    first, second = make(Numbers(400), in_order=True).per_device(TWO)
    assert next(first).tolist() == drawn[0]
    if how == "closed":
        first.close()
        first.close()
        assert lists(first) == []
    else:
        del first
    assert lists(second) == drawn[1::2]


@on_each_executor
def test_a_device_that_waits_is_woken_when_another_is_gone() -> None:
    first, second = make(Numbers(400), in_order=True).per_device(TWO)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.extend(lists(second)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    first.close()
    waiting.join(PATIENCE)
    assert got == lists(DataLoader(Numbers(400), 4))[1::2]


@on_each_executor
def test_a_failure_is_raised_for_the_device_whose_batch_it_is() -> None:
    drawn = lists(DataLoader(Numbers(), 4))
    first, second = make(Numbers(failing=(5,)), in_order=True).per_device(TWO)
    with pytest.raises(ValueError, match="no 5"):
        next(second)
    assert lists(first) == drawn[::2]
    assert lists(second) == drawn[3::2]


@on_each_executor
def test_a_batch_whose_samples_are_all_skipped_is_for_nobody() -> None:
    drawn = lists(DataLoader(Numbers(), 4))
    loader = make(Numbers(failing=(4, 5, 6, 7)), in_order=True, on_error="skip")
    assert in_threads(loader.per_device(TWO)) == [drawn[::2], drawn[3::2]]


@on_each_executor
@pytest.mark.parametrize("in_order", [True, False])
def test_coroutines_share_a_pass(in_order: bool) -> None:
    async def consume(iterator: Any) -> list[list[int]]:
        return [batch.tolist() async for batch in iterator]

    async def both() -> list[list[list[int]]]:
        iterators = make(in_order=in_order).per_device(TWO)
        return await asyncio.gather(*map(consume, iterators))

    got = asyncio.run(both())
    if in_order:
        drawn = lists(DataLoader(Numbers(), 4))
        assert got == [drawn[::2], drawn[1::2]]
    assert Counter(i for one in got for batch in one for i in batch) == Counter(range(LENGTH))


@on_each_executor
def test_the_next_pass_of_workers_that_persist() -> None:
    loader = make(in_order=True, persistent_workers=True)
    drawn = lists(DataLoader(Numbers(), 4))
    first, second = loader.per_device(TWO)
    assert next(first).tolist() == drawn[0]
    again = loader.per_device(TWO)
    # The pass that was given up gives nothing any more, and takes nothing when it is dropped.
    assert lists(first) == lists(second) == []
    del first, second
    assert in_threads(again) == [drawn[::2], drawn[1::2]]
    assert lists(loader) == drawn
    iterator: Any = loader._iterator
    iterator._shutdown_workers()


def test_random_samples_are_those_of_one_device() -> None:
    class Noise(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(())

    alone = lists(make(Noise(), in_order=True, seed=3))
    got = in_threads(make(Noise(), in_order=True, seed=3).per_device(TWO))
    assert got == [alone[::2], alone[1::2]]


def test_what_it_is_called_with() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(8))

    with pytest.raises(TypeError, match="list of devices"):
        make().per_device("cpu")
    with pytest.raises(ValueError, match="at least one"):
        make().per_device([])
    with pytest.raises(TypeError, match="map-style"):
        make(Stream()).per_device(TWO)
    with pytest.raises(ValueError, match="num_workers > 0"):
        make(num_workers=0).per_device(TWO)
    with pytest.raises(ValueError, match="one consumer"):
        make(in_order=False, max_displacement=2).per_device(TWO)
    with pytest.raises(RuntimeError):
        make().per_device(["no such device"])
