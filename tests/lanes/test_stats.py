"""`loader.stats`: a snapshot of what is being loaded."""

from __future__ import annotations

import dataclasses
import math
import pickle
import threading
import weakref
from typing import Any

import pytest

from minato_async import MinatoLoader, Stats

from .support import PATIENCE, Made, busy, flat, until, wait_for


def loader_of(dataset: Any, **options: Any) -> MinatoLoader[Any]:
    usual = {"batch_size": 4, "num_workers": 2, "collate_fn": list, "in_order": False}
    return MinatoLoader(dataset, **(usual | {"timeout": PATIENCE} | options))


def test_without_an_iterator_and_without_workers_it_is_empty() -> None:
    loader = loader_of(Made(8))
    assert loader.stats == Stats()
    serial = loader_of(Made(8), num_workers=0, timeout=0)
    iterator = iter(serial)
    next(iterator)
    assert serial.stats == Stats()


def test_a_loop_that_came_to_its_end_leaves_them_behind() -> None:
    loader = loader_of(Made(24, odd_one_fails), on_error="skip")
    assert len(flat(loader)) == 23
    ((index, error),) = loader.stats.skipped
    assert index == 3
    assert isinstance(error, ValueError)
    assert (loader.stats.delivered, loader.stats.finished) == (6, 24)
    # An iterator that is dropped before tells nothing.
    for _ in loader:
        break
    assert loader.stats == Stats()
    flat(loader)
    assert pickle.loads(pickle.dumps(loader)).stats == Stats()


def odd_one_fails(index: int) -> int:
    if index == 3:
        raise ValueError
    return index


def test_it_is_frozen_and_stays_as_it_was() -> None:
    loader = loader_of(Made(24))
    iterator = iter(loader)
    next(iterator)
    before = loader.stats
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.workers = 3  # type: ignore[misc]
    delivered = before.delivered
    flat(iterator)
    assert (before.delivered, loader.stats.delivered) == (delivered, 6)


def test_the_numbers_while_everything_stands_still() -> None:
    go_on, held = threading.Event(), threading.Semaphore(0)

    def load(index: int) -> int:
        if index >= 4:
            held.release()
            wait_for(go_on)
        return index

    loader = loader_of(Made(24, load), max_queue_size=12)
    iterator = iter(loader)
    assert sorted(next(iterator)) == [0, 1, 2, 3]
    for _ in range(2):
        assert held.acquire(timeout=PATIENCE)
    # The claim of a worker may hold more than the sample that it is in.
    until(lambda: loader.stats.in_window + loader.stats.unclaimed == 12)
    stats = loader.stats
    assert (stats.workers, stats.active, stats.threads) == (2, 2, 2)
    assert (stats.finished, stats.delivered, stats.ready_batches) == (4, 1, 0)
    assert stats.window == 12
    assert 2 <= stats.in_window <= 12
    assert (stats.failed, stats.skipped, stats.diverted, stats.temp_queue) == (0, (), 0, 0)
    assert stats.seconds >= stats.data_wait >= 0
    assert stats.throughput == pytest.approx(4 / stats.seconds)
    go_on.set()
    assert len(flat(iterator)) == 20


def test_torchs_window_is_no_number_of_samples() -> None:
    iterator = iter(loader_of(Made(24)))
    assert iterator.stats.window is None  # what is drawn bounds it


def test_at_the_end() -> None:
    loader = loader_of(Made(24, lambda index: busy(0.002) or index), transforms=[lambda i: i])
    iterator = iter(loader)
    assert len(flat(iterator)) == 24
    stats = loader.stats
    assert (stats.finished, stats.delivered, stats.in_window, stats.unclaimed) == (24, 6, 0, 0)
    first, second = stats.steps
    assert first.name == "Made.__getitem__"
    assert second.name.startswith("transforms[0]")
    for step in stats.steps:
        assert step.samples == 24
        assert 0 <= step.p50 <= step.p75 <= step.p90 <= step.p99 <= step.max
    assert first.p50 >= 0.002 > second.p50
    assert math.isfinite(stats.threshold)


def test_ready_batches_and_their_bytes() -> None:
    import torch

    loader = MinatoLoader(
        Made(8, lambda index: torch.zeros(100)), batch_size=4, num_workers=2, max_queue_size=8
    )
    iterator = iter(loader)
    until(lambda: loader.stats.ready_batches == 2)
    assert loader.stats.ready_bytes == 2 * 4 * 100 * 4
    assert len(list(iterator)) == 2
    assert loader.stats.ready_bytes == 0


def test_counts_are_of_this_epoch() -> None:
    def load(index: int) -> int:
        if index == 3:
            raise ValueError
        return index

    loader = loader_of(Made(24, load), persistent_workers=True, on_error="skip")
    for _ in range(2):
        assert len(flat(loader)) == 23
        assert loader.stats.failed == 1
        assert len(loader.stats.skipped) == 1
        assert loader.stats.delivered == 6


def test_other_threads_may_ask_all_the_time() -> None:
    over, asked, errors = threading.Event(), [0], []
    loader = loader_of(Made(600), transforms=[lambda index: index], timeout_threshold=1e-9)

    def ask() -> None:
        try:
            while not over.is_set():
                stats = loader.stats
                assert 0 <= stats.in_window <= 4 * 4
                assert 0 <= stats.slow_active <= 2
                assert stats.parked >= 0
                asked[0] += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(3):
            assert len(flat(loader)) == 600
    finally:
        over.set()
        thread.join()
    assert not errors
    assert asked[0]


def test_it_does_not_keep_the_iterator() -> None:
    loader = loader_of(Made(8))
    iterator = iter(loader)
    gone = weakref.ref(iterator)
    flat(iterator)
    del iterator
    until(lambda: gone() is None)
