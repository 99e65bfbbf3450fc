"""`pin_memory` on worker processes: by a thread of the parent that is not the consumer's."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from tests.lifetime.support import all_ours_end
from tests.processes.support import Made, processes
from tests.semantics.support import iterating, outcomes

PARENT = os.getpid()


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
    loader = processes(
        dataset,
        2,
        num_workers=1,
        collate_fn=Batch,
        pin_memory=True,
        persistent_workers=persistent,
    )
    with iterating(loader):
        for _ in range(2):
            first, error, *rest = outcomes(iter(loader))
            assert [batch.samples for batch in (first, *rest)] == [[0, 1], [4, 5], [6, 7]]
            assert {batch.by for batch in (first, *rest)} == {"minato-pin"}
            assert type(error) is MemoryError
            assert "[2, 3]" in error.__notes__[0]


def test_nothing_is_pinned_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    loader = processes(Made(4), 2, collate_fn=Batch, pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert {batch.by for batch in loader} == {None}


def test_thread_that_cannot_be_started_is_told_of_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "minato-pin":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with iterating(processes(Made(8), 2, collate_fn=Batch, pin_memory=True)) as iterator:
        with pytest.raises(RuntimeError, match="engine has failed") as caught:
            next(iterator)
        assert str(caught.value.__cause__) == "can't start new thread"
    # Not even for a moment: there is nobody who could say that it has ended.
    all_ours_end()


inside, go_on = threading.Event(), threading.Event()


class Slow(Batch):
    def pin_memory(self) -> Batch:
        inside.set()
        go_on.wait(20)
        return self


def test_dropped_while_a_batch_is_being_pinned() -> None:
    iterator = iter(processes(Made(8), 2, collate_fn=Slow, pin_memory=True))
    began = inside.wait(20)
    iterator.close()
    go_on.set()
    # That the thread ends is seen by what looks after every test.
    assert began
