"""`device` and `device_transform` where the device is the CPU: all that is not copying."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from minato_async import MinatoLoader
from tests.cases.support import Made
from tests.lifetime.support import eventually, wait_for_end
from tests.semantics.support import iterating, outcomes


def drawn(batch: Any) -> tuple[Any, ...]:
    """The batch with numbers from every generator."""
    return batch, random.random(), float(np.random.rand()), torch.rand(2).tolist()


def made(executor: str, workers: int = 2, **options: Any) -> Any:
    own = {"num_workers": workers, "device": "cpu", "seed": 5, "batch_size": 4}
    return MinatoLoader(Made(24), **(own | {"executor": executor} | options))


def plain(outcome: Any) -> Any:
    batch, *numbers = outcome
    return batch.tolist(), numbers


def test_what_it_draws_depends_on_seed_epoch_and_indices_alone() -> None:
    loaders = [
        made("thread", workers=0, device_transform=drawn),
        *(made("thread", n, device_transform=drawn) for n in (1, 3)),
        made("process", 2, device_transform=drawn),
    ]
    epochs = [[[plain(batch) for batch in loader] for _ in range(2)] for loader in loaders]
    assert all(epoch == epochs[0] for epoch in epochs)
    first, second = epochs[0]
    assert [batch for batch, _ in first] == [batch for batch, _ in second]
    numbers = [str(numbers) for epoch in epochs[0] for _, numbers in epoch]
    assert len(set(numbers)) == len(numbers) == 12


def test_it_draws_otherwise_than_collating_the_same_samples() -> None:
    def collate(samples: list[int]) -> tuple[list[int], float]:
        return samples, random.random()

    loader = made("thread", collate_fn=collate, device_transform=lambda b: (b, random.random()))
    for (_, collating), on_device in loader:
        assert collating != on_device


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(number, 12, count))


def test_iterable_dataset(executor: str) -> None:
    def batches() -> list[Any]:
        loader = MinatoLoader(
            Numbers(), 2, num_workers=2, device="cpu", device_transform=drawn, seed=5
        )
        return [plain(batch) for batch in loader]

    found = batches()
    assert found == batches()
    assert [batch for batch, _ in found] == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11]]
    assert len({str(numbers) for _, numbers in found}) == 6


def fails_at_8(batch: torch.Tensor) -> torch.Tensor:
    if 8 in batch:
        raise ArithmeticError("no")
    return batch * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_error_names_the_batch(executor: str, workers: int) -> None:
    loader = made(executor, workers, device_transform=fails_at_8, in_order=True)
    with iterating(loader):
        found = outcomes(iter(loader))
    error = found.pop(2)
    assert [batch.tolist() for batch in found] == [
        [index * 2 for index in range(first, first + 4)] for first in (0, 4, 12, 16, 20)
    ]
    assert type(error) is ArithmeticError
    (note,) = error.__notes__
    assert "samples with indices [8, 9, 10, 11]" in note
    assert workers == 0 or "device_transform" in note
    assert "fails_at_8" in "".join(traceback.format_tb(error.__traceback__))


def stops(batch: Any) -> Any:
    raise StopIteration


@pytest.mark.parametrize("workers", [0, 2])
def test_stop_iteration_does_not_end_the_epoch(workers: int) -> None:
    loader = made("thread", workers, device_transform=stops)
    with iterating(loader) as iterator, pytest.raises(RuntimeError, match="raised StopIteration"):
        next(iterator)


def test_async_for() -> None:
    async def batches() -> list[Any]:
        return [batch.tolist() async for batch in made("thread", device_transform=lambda b: b + 1)]

    assert asyncio.run(batches())[0] == [1, 2, 3, 4]


def test_grad_mode_is_that_of_the_thread_that_starts_the_epoch(executor: str) -> None:
    def graph(batch: torch.Tensor) -> bool:
        weight = torch.ones((), requires_grad=True)
        return bool((batch * weight).requires_grad)

    with torch.no_grad():
        assert list(made(executor, device_transform=graph, batch_size=24)) == [False]
    assert list(made(executor, device_transform=graph, batch_size=24)) == [True]


class Counted:
    """Counts its calls, and waits from the `held` one on."""

    def __init__(self, held: int = 1000) -> None:
        self.calls = 0
        self.threads: set[str] = set()
        self._held = held
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self, batch: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        self.calls += 1
        if self.calls >= self._held:
            self.inside.set()
            assert self.go_on.wait(60)
        return batch


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("bound", [1, 3])
def test_no_more_are_ahead_than_prefetch_factor(executor: str, in_order: bool, bound: int) -> None:
    transform = Counted()
    loader = made(
        executor,
        device_transform=transform,
        prefetch_factor=bound,
        in_order=in_order,
        max_queue_size=24,
    )
    with iterating(loader) as iterator:
        stage = iterator._epoch.stage
        for taken in range(7):
            expected = min(6, taken + bound)
            assert eventually(lambda expected=expected: transform.calls == expected)
            # All others wait, collated.
            assert eventually(lambda n=6 - expected: stage.pending == n)
            assert transform.calls == expected
            if taken < 6:
                next(iterator)
    assert transform.threads == {"minato-stage"}


def test_closed_while_it_runs(executor: str) -> None:
    """Nothing else is waited for, and what comes late is dropped."""
    transform = Counted(held=2)
    iterator = iter(made(executor, device_transform=transform, prefetch_factor=1))
    next(iterator)
    assert transform.inside.wait(60)
    stage = next(t for t in threading.enumerate() if t.name == "minato-stage")
    iterator._engine.close_soon()
    assert eventually(lambda: iterator._engine._workers_ended.is_set())
    transform.go_on.set()
    wait_for_end([stage])
    assert transform.calls == 2
    with pytest.raises(StopIteration):
        next(iterator)


def test_next_epoch_begins_while_the_last_one_is_worked_on(executor: str) -> None:
    transform = Counted(held=2)
    loader = made(executor, device_transform=transform, persistent_workers=True, prefetch_factor=1)
    with iterating(loader) as iterator:
        next(iterator)
        assert transform.inside.wait(60)
        again = iter(loader)
        transform.go_on.set()
        assert [batch[0].item() for batch in again] == [0, 4, 8, 12, 16, 20]


def test_nothing_is_pinned_without_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    loader = made("thread", pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batches = list(loader)
    assert [batch.tolist() for batch in batches] == [list(range(n, n + 4)) for n in range(0, 24, 4)]
    assert not any(batch.is_pinned() for batch in batches)


def test_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
    with pytest.raises(RuntimeError, match="device='cuda:1' was asked for, but torch finds no acc"):
        iter(made("thread", device="cuda:1"))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"device": 1.5}, TypeError, "device must be"),
        ({"device": True}, TypeError, "device must be"),
        ({"device": "gpu?"}, ValueError, "device must be"),
        ({"device": "meta"}, ValueError, "no memory"),
        ({"device": "cpu", "device_transform": 3}, TypeError, "must be a callable"),
        ({"device": None, "device_transform": len}, ValueError, "give device"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        made("thread", **options)


def test_attributes_are_kept_as_given() -> None:
    loader = made("thread", device="cpu", device_transform=drawn)
    assert (loader.device, loader.device_transform) == ("cpu", drawn)


def test_stats_of_what_needs_no_copy() -> None:
    loader = made("thread", device_transform=lambda batch: batch)
    assert len(list(loader)) == 6
    stats = loader.stats
    assert (stats.copied_batches, stats.copied_bytes, stats.copy_waits) == (6, 0, 0)
    assert (stats.copy_hidden, stats.in_stage) == (1.0, 0)
    assert stats.copy_rate != stats.copy_rate


def test_a_timeout_says_what_is_done_with_which_batch(executor: str) -> None:
    begun, door = threading.Event(), threading.Event()

    def transform(batch: Any) -> Any:
        begun.set()
        door.wait()
        return batch

    loader = made(executor, device_transform=transform, timeout=0.2, in_order=True)
    with iterating(loader) as iterator:
        try:
            while not begun.is_set():
                with contextlib.suppress(RuntimeError):
                    next(iterator)
            named = r"device_transform on samples with indices \[\d+, "
            with pytest.raises(RuntimeError, match=named):
                next(iterator)
        finally:
            door.set()
