"""`pin_memory`: by a thread that is neither a worker's nor the consumer's, on whatever executor."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from minato_async import MinatoLoader
from minato_async.device.backend import PlainBackend
from minato_async.sample.pinning import empty_pinned
from tests.cases.support import Made, Turnstile
from tests.lifetime.support import all_ours_end, eventually, wait_for_end
from tests.semantics.support import iterating, outcomes

PARENT = os.getpid()

pytestmark = pytest.mark.usefixtures("executor")


def workers(dataset: Any, *args: Any, **options: Any) -> Any:
    own = {"num_workers": 2, "in_order": True, "pin_memory": True}
    return MinatoLoader(dataset, *args, **(own | options))


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """There seems to be one: without, nothing is pinned. What is pinned says how itself."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)


class Batch:
    """A batch with a way of its own to be pinned."""

    def __init__(self, samples: list[int]) -> None:
        self.samples = samples
        self.by: str | None = None

    def pin_memory(self) -> Batch:
        if 3 in self.samples:
            raise MemoryError("nothing can be pinned")
        assert os.getpid() == PARENT
        self.by = threading.current_thread().name
        return self


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


@pytest.mark.parametrize("dataset", [Made(8), Numbers()], ids=["map", "iterable"])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_pinned_off_the_consumers_thread(dataset: Any, persistent: bool) -> None:
    loader = workers(
        dataset,
        2,
        num_workers=1,
        collate_fn=Batch,
        persistent_workers=persistent,
    )
    with iterating(loader):
        for _ in range(2):
            first, error, *rest = outcomes(iter(loader))
            assert [batch.samples for batch in (first, *rest)] == [[0, 1], [4, 5], [6, 7]]
            assert {batch.by for batch in (first, *rest)} == {"minato-stage"}
            assert type(error) is MemoryError
            assert "[2, 3]" in error.__notes__[0]


@pytest.mark.parametrize("options", [{"pin_memory": True}, {"device": "cuda"}], ids=str)
def test_large_samples_are_written_straight_into_pinned_memory(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """On threads; what comes to be pinned is that memory, so torch need not copy it."""
    pinned: list[int] = []
    seen: list[int] = []

    def empty_pinned(shape: Any, dtype: Any) -> torch.Tensor:
        made = torch.empty(shape, dtype=dtype)
        pinned.append(made.data_ptr())
        return made

    def pin(batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.data_ptr())
        return batch

    monkeypatch.setattr("minato_async.sample.map_recipe.empty_pinned", empty_pinned)
    monkeypatch.setattr("minato_async.iteration.stage_work.pin", pin)
    monkeypatch.setattr("minato_async.iteration.stage_work.backend_for", PlainBackend)
    data = Made(16, lambda index: torch.full((1 << 16,), float(index)))
    monkeypatch.setattr(PlainBackend, "copy", lambda self, tensor: tensor)
    own = {"pin_memory": False, "executor": "thread", "batch_size": 4}
    batches = list(workers(data, **(own | options)))
    assert [batch[:, 0].tolist() for batch in batches] == [
        [float(index) for index in range(first, first + 4)] for first in range(0, 16, 4)
    ]
    assert len(seen) == 4
    assert set(seen) <= set(pinned)


def test_where_no_more_can_be_pinned_rows_lie_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def refuses(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", refuses)
    assert empty_pinned((2, 3), torch.int16).shape == (2, 3)


def test_nothing_is_pinned_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    loader = workers(Made(4), 2, collate_fn=Batch)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert {batch.by for batch in loader} == {None}


def test_thread_that_cannot_be_started_is_told_of_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "minato-stage":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with iterating(workers(Made(8), 2, collate_fn=Batch)) as iterator:
        with pytest.raises(RuntimeError, match="engine has failed") as caught:
            next(iterator)
        assert str(caught.value.__cause__) == "can't start new thread"
    # Not even for a moment: there is nobody who could say that it has ended.
    all_ours_end()


inside, go_on = threading.Event(), threading.Event()


class Slow(Batch):
    def pin_memory(self) -> Batch:
        inside.set()
        assert go_on.wait(60)
        return self


def test_dropped_while_a_batch_is_being_pinned() -> None:
    inside.clear()
    go_on.clear()
    iterator = iter(workers(Made(8), 2, collate_fn=Slow))
    began = inside.wait(60)
    stage = next(t for t in threading.enumerate() if t.name == "minato-stage")
    iterator._engine.close_soon()
    # Nobody waits for the workers any more; only what is being pinned comes to its end.
    assert eventually(lambda: iterator._engine._workers_ended.is_set())
    # The engine is not over before its threads are: with 0.1 s for one that has said so.
    assert not iterator._engine.join(0.3)
    assert stage.is_alive()
    go_on.set()
    wait_for_end([stage])
    with pytest.raises(StopIteration):
        next(iterator)
    assert began


def test_the_due_batch_is_pinned_though_later_ones_are_there(executor: str) -> None:
    """In order, with the first batch the last to be collated: the others are pinned meanwhile."""
    turnstile = Turnstile()

    def make(index: int) -> int:
        if index == 0:
            turnstile.hold()
        return index

    loader = workers(Made(16, make), 2, collate_fn=Batch)
    with iterating(loader):
        iterator = iter(loader)
        turnstile.wait_for(1)
        pinned = iterator._epoch.stage
        assert eventually(lambda: pinned.begun == 3 and not pinned.pending)
        assert iterator.stats.in_stage == 3
        turnstile.let_go()
        assert next(iterator).samples == [0, 1]
        with pytest.raises(MemoryError):
            next(iterator)
        assert [batch.samples[0] for batch in iterator] == [4, 6, 8, 10, 12, 14]
