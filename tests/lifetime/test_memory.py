"""What was loaded is freed: batches that were used, that nobody took, and that wait no more."""

from __future__ import annotations

import gc
import sysconfig
import threading
from collections import Counter, deque
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
import torch

from minato_async import MinatoLoader, share
from minato_async.engine.engine import Engine
from minato_async.engine.event_loop import EventLoopThread
from minato_async.executors.thread.executor import ThreadExecutor
from minato_async.executors.thread.map_epoch import ThreadMapEpoch
from minato_async.seeding.streams import SampleStreams
from tests.lifetime.support import (
    Gate,
    Samples,
    all_ours_end,
    as_list,
    eventually,
    no_collector,
    resident,
)

MIB = 2**20
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

ORDERS = pytest.mark.parametrize("in_order", [True, False], ids=["in_order", "any_order"])


class Counted:
    """Counts how many of its kind are in memory."""

    def __init__(self) -> None:
        share(self)
        self._lock = threading.Lock()
        self._freed: deque[None] = deque()
        self.most = 0
        self.made = 0

    def __call__(self, index: int) -> Any:
        with self._lock:
            self.made += 1
            self.most = max(self.most, self.alive)
        # No lock there: a sample may be freed by the thread that holds it.
        return _Sample(self._freed)

    @property
    def alive(self) -> int:
        return self.made - len(self._freed)


class _Sample:
    def __init__(self, freed: deque[None]) -> None:
        self._freed = freed

    def __del__(self) -> None:
        self._freed.append(None)


def make_loader(dataset: Any, **options: Any) -> MinatoLoader[Any]:
    defaults: dict[str, Any] = {"num_workers": 3, "collate_fn": as_list, "scheduler": "fixed"}
    return MinatoLoader(dataset, **(defaults | options))


@ORDERS
def test_used_batches_are_freed_while_the_workers_that_made_them_idle(in_order: bool) -> None:
    counted = Counted()
    loader = make_loader(
        Samples(64, counted), batch_size=4, persistent_workers=True, in_order=in_order
    )
    with no_collector():
        for batch in loader:
            del batch
        assert eventually(lambda: counted.alive == 0)
    assert counted.made == 64


@ORDERS
@pytest.mark.parametrize("window", [24, 6])
def test_no_more_than_the_window_is_in_memory(window: int, in_order: bool) -> None:
    counted = Counted()
    loader = make_loader(
        Samples(300, counted), batch_size=4, max_queue_size=window, in_order=in_order
    )
    with no_collector():
        numbers = count()
        for batch in loader:  # and not `enumerate`, which keeps the last one
            del batch
            if next(numbers) % 15 == 0:
                # Free-threaded Python leaves it to the thread that made a sample to free it, which
                # may take that thread a moment.
                assert eventually(lambda: counted.alive <= window)
    assert counted.made == 300
    if not FREE_THREADED:
        # And the batch in hand while the next one is taken.
        assert counted.most <= window + 2 * 4


@ORDERS
@pytest.mark.parametrize("persistent", [False, True])
def test_a_break_frees_what_was_queued(persistent: bool, in_order: bool) -> None:
    counted = Counted()
    size = 8192
    loader = make_loader(
        Samples(8 * size, counted),
        batch_size=size,
        in_order=in_order,
        persistent_workers=persistent,
    )
    with no_collector():
        for batch in loader:
            del batch
            break
        del loader
        all_ours_end()
        assert eventually(lambda: counted.alive == 0)
    assert counted.made > size


@ORDERS
def test_a_new_epoch_frees_what_the_last_has_left(in_order: bool) -> None:
    counted = Counted()
    gate = Gate(free=range(100))

    def make(index: int) -> Any:
        gate(index)
        return counted(index)

    loader = make_loader(
        Samples(200, make), batch_size=10, in_order=in_order, persistent_workers=True
    )
    with no_collector():
        next(iter(loader))
        gate.wait_until(lambda gate: gate.calls.total() >= 60)
        iterator = iter(loader)
        gate.let_go()
        for batch in iterator:
            del batch
        assert eventually(lambda: counted.alive == 0)


@ORDERS
def test_a_failed_batch_is_freed(in_order: bool) -> None:
    counted = Counted()

    def make(index: int) -> Any:
        if index % 8 == 7:
            raise ZeroDivisionError
        return counted(index)

    loader = make_loader(
        Samples(64, make), batch_size=8, in_order=in_order, persistent_workers=True
    )
    failures = 0
    iterator = iter(loader)
    while True:
        try:
            batch = next(iterator)
            del batch
        except ZeroDivisionError:
            failures += 1
        except StopIteration:
            break
    assert failures == 8
    # A traceback refers to frames that refer to the failure: that is for the collector.
    assert eventually(lambda: gc.collect() >= 0 and counted.alive == 0)


def test_large_batches_that_were_queued_go_back_to_the_system() -> None:
    # Such a piece the C library maps by itself and unmaps when it is freed: of smaller ones it
    # keeps what it likes (mallopt(3): at most 32 MiB are taken from what it has).
    large = 40 * MIB
    gate = Gate()
    gate.let_go()

    def make(index: int) -> Any:
        gate(index)
        return np.ones(large, np.uint8)

    before = resident()
    for batch in make_loader(Samples(100, make), batch_size=1, num_workers=2):
        assert len(batch) == 1
        gate.wait_until(lambda gate: gate.calls.total() >= 4)
        assert eventually(lambda: resident() - before > 3 * large)
        break
    del batch
    all_ours_end()
    assert eventually(lambda: resident() - before < large), (resident() - before) / MIB


@ORDERS
@pytest.mark.parametrize("persistent", [False, True])
def test_memory_stays_flat_over_many_epochs(persistent: bool, in_order: bool) -> None:
    def make(index: int) -> torch.Tensor:
        return torch.full((256, 256), float(index))  # 256 KiB

    loader = MinatoLoader(
        Samples(64, make),  # type: ignore[arg-type]
        batch_size=8,
        num_workers=3,
        prefetch_factor=2,
        in_order=in_order,
        persistent_workers=persistent,
    )
    after: list[int] = []
    for _ in range(20):
        assert sum(len(batch) for batch in loader) == 64
        after.append(resident())
    # Kept, the batches of the last ten epochs would be 160 MiB. The allocator keeps what each
    # thread once needed, which on a busy machine is more in some epoch than in those before.
    assert max(after[10:]) - max(after[:5]) < 96 * MIB, [size // MIB for size in after]


@pytest.mark.parametrize("taken", [64, 8], ids=["all", "some"])
def test_workers_that_ended_leave_nothing_to_the_collector(taken: int) -> None:
    """On free-threaded Python it comes only after hundreds of epochs."""

    def machinery() -> list[str]:
        kinds = (Engine, EventLoopThread, ThreadExecutor, ThreadMapEpoch, SampleStreams)
        return [type(thing).__name__ for thing in gc.get_objects() if type(thing) in kinds]

    with no_collector():
        before = Counter(machinery())
        iterator = iter(make_loader(Samples(64, lambda index: torch.rand(2)), batch_size=1))
        for batch in islice(iterator, taken):
            del batch
        assert Counter(machinery())["SampleStreams"] > before["SampleStreams"]
        del iterator
        all_ours_end()
        assert eventually(lambda: not Counter(machinery()) - before), machinery()
