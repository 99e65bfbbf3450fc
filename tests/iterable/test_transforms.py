"""`transforms=` on what an iterable dataset yields."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from minato_async import MinatoLoader
from minato_async.engine.bell import DueBells

from .datasets import SOON, Range, iterating, lists, outcomes

#: The consumer's thread, workers with a shard each, workers that share one iterator.
SERIAL: dict[str, Any] = {}
THREADS = {"num_workers": 2, "executor": "thread"}
PROCESSES = {"num_workers": 2, "executor": "process"}
SHARED = {"num_workers": 2, "executor": "thread", "iterable_mode": "shared"}
SHARED_BY_PROCESSES = {"num_workers": 2, "executor": "process", "iterable_mode": "shared"}
WAYS = pytest.mark.parametrize(
    "way",
    [SERIAL, THREADS, PROCESSES, SHARED, SHARED_BY_PROCESSES],
    ids=["serial", "threads", "processes", "shared", "shared by processes"],
)


def tenfold(value: int) -> int:
    return value * 10


def add_one(value: int) -> int:
    return value + 1


@WAYS
def test_they_are_applied_one_after_the_other(way: dict[str, Any]) -> None:
    loader = MinatoLoader(Range(0, 4), batch_size=2, transforms=[tenfold, add_one], **way)
    shards = 2 if way in (THREADS, PROCESSES) else 1
    found = sorted(sample for batch in lists(loader) for sample in batch)
    assert found == sorted([1, 11, 21, 31] * shards)


@WAYS
def test_without_batches(way: dict[str, Any]) -> None:
    loader = MinatoLoader(Range(0, 3), batch_size=None, transforms=[str, lambda s: s + "!"], **way)
    assert set(loader) == {"0!", "1!", "2!"}


@WAYS
def test_an_error_names_sample_and_step(way: dict[str, Any]) -> None:
    def fail(value: int) -> int:
        if value == 10:
            raise ValueError("ten")
        return value

    loader = MinatoLoader(Range(0, 3), batch_size=None, transforms=[tenfold, fail], **way)
    with pytest.raises(ValueError, match="ten") as caught:
        list(loader)
    (note,) = caught.value.__notes__
    assert "sample 1" in note
    assert "transforms[1]" in note
    assert "fail" in note


@WAYS
def test_an_error_costs_its_batch_and_no_other(way: dict[str, Any]) -> None:
    def fail(value: int) -> int:
        if value in (4, 5):
            raise ValueError(value)
        return value

    loader = MinatoLoader(Range(0, 8), batch_size=3, transforms=[fail], in_order=True, **way)
    shards = 2 if way in (THREADS, PROCESSES) else 1
    expected = [[0, 1, 2], ValueError, [6, 7]]
    with iterating(loader) as iterator:
        assert outcomes(iterator) == [batch for batch in expected for _ in range(shards)]


def test_a_failure_that_is_taken_at_once_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer has it before the worker, which has just handed it over, goes on."""
    failed, taken = threading.Event(), threading.Event()
    ring = DueBells.ring

    def ring_and_wait(bells: DueBells) -> None:
        ring(bells)
        if failed.is_set() and threading.current_thread() is not threading.main_thread():
            assert taken.wait(SOON)

    def fail(value: int) -> int:
        if value == 0:
            failed.set()
            raise ValueError(value)
        return value

    monkeypatch.setattr(DueBells, "ring", ring_and_wait)
    loader = MinatoLoader(
        Range(0, 3), 1, num_workers=1, transforms=[fail], in_order=False, executor="thread"
    )
    with iterating(loader) as iterator:
        with pytest.raises(ValueError, match="0"):
            next(iterator)
        taken.set()
        assert outcomes(iterator) == [[1], [2]]


@WAYS
def test_stop_iteration_is_no_end(way: dict[str, Any]) -> None:
    def stop(value: int) -> int:
        raise StopIteration

    loader = MinatoLoader(Range(0, 3), batch_size=None, transforms=[stop], **way)
    with pytest.raises(RuntimeError, match=r"transforms\[0\].*StopIteration"):
        list(loader)


def test_they_run_on_workers_which_are_told_their_shard() -> None:
    caller, seen = threading.get_ident(), set()

    def look(value: int) -> int:
        info = get_worker_info()
        assert info is not None
        seen.add((info.id, threading.get_ident() == caller))
        return value

    loader = MinatoLoader(Range(0, 3), batch_size=None, num_workers=2, transforms=[look])
    assert len(list(loader)) == 6
    assert seen == {(0, False), (1, False)}


@pytest.mark.parametrize("way", [THREADS, PROCESSES, SHARED, SHARED_BY_PROCESSES])
def test_they_draw_from_the_samples_own_stream(way: dict[str, Any]) -> None:
    def draw(value: int) -> tuple[int, float]:
        return value, random.random()

    def once() -> list[Any]:
        loader = MinatoLoader(
            Range(0, 5), batch_size=2, seed=3, transforms=[draw], collate_fn=list, **way
        )
        return [sample for batch in loader for sample in batch]

    first = once()
    assert len({value for _, value in first}) == len(first)
    random.seed(1)
    assert once() == first


@pytest.mark.parametrize(
    "option", [{"on_error": "skip"}, {"sample_timeout": 1.0}, {"max_displacement": 0}]
)
def test_what_iterators_cannot_promise_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} is for map-style"):
        MinatoLoader(Range(0, 3), num_workers=1, **option)
