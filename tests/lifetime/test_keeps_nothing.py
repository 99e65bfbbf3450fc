"""What errors and stuck workers keep: nothing, and that without the collector's help."""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minato_async import MinatoLoader
from minato_async.errors import forget_frames
from minato_async.lifecycle import shutdown
from tests.lifetime.support import (
    PATIENCE,
    Gate,
    Samples,
    as_list,
    eventually,
    no_collector,
    our_threads,
)


@pytest.fixture(autouse=True)
def without_the_collector() -> Iterator[None]:
    with no_collector():
        yield


on_each = pytest.mark.parametrize("executor", ["thread", "process"])
in_any_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "any order"])


class Raw(bytearray):
    """What a sample has read before it fails."""


class Bad:
    """Samples of which every other one fails, in a way of its own."""

    def __init__(self, fail: Callable[[Any, int], Any]) -> None:
        self.fail = fail
        self.alive: list[weakref.ref[Raw]] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        raw = Raw(10)
        self.alive.append(weakref.ref(raw))
        if index % 2:
            self.fail(raw, index)
        return index


def skipping(fail: Callable[[Any, int], Any], in_order: bool, executor: str) -> MinatoLoader[Any]:
    """A loader with one worker, which leaves out what `fail` makes fail."""
    return MinatoLoader(
        Bad(fail),  # type: ignore[arg-type]
        batch_size=4,
        num_workers=1,
        in_order=in_order,
        on_error="skip",
        executor=executor,
        collate_fn=as_list,
        timeout=PATIENCE,
    )


def plainly(raw: Raw, index: int) -> None:
    raise ValueError(f"corrupt {index}")


def from_another(raw: Raw, index: int) -> None:
    try:
        plainly(raw, index)
    except ValueError as error:
        raise KeyError(index) from error


def in_the_handler_of_another(raw: Raw, index: int) -> None:
    try:
        plainly(raw, index)
    except ValueError:
        raise KeyError(index)  # noqa: B904 - what is tested


def in_a_group(raw: Raw, index: int) -> None:
    errors: list[Exception] = []
    for fail in (plainly, from_another):
        try:
            fail(raw, index)
        except Exception as error:
            errors.append(error)
    try:
        raise ExceptionGroup("several", errors)
    finally:
        errors.clear()


def by_an_attribute(raw: Raw, index: int) -> None:
    raw.decode_it()  # type: ignore[attr-defined]


def by_stopping(raw: Raw, index: int) -> None:
    next(iter(()))


WAYS = [plainly, from_another, in_the_handler_of_another, in_a_group, by_an_attribute, by_stopping]


@in_any_order
class TestSkipped:
    @pytest.mark.parametrize("fail", WAYS, ids=lambda way: str(way.__name__))
    @pytest.mark.parametrize("steps", [1, 2])
    def test_errors_keep_no_frames(
        self, fail: Callable[[Any, int], Any], in_order: bool, steps: int
    ) -> None:
        dataset = Bad(fail)
        loader = MinatoLoader(
            dataset,  # type: ignore[arg-type]
            batch_size=4,
            num_workers=2,
            in_order=in_order,
            on_error="skip",
            executor="thread",
            collate_fn=as_list,
            transforms=[int] * (steps - 1),
            timeout=PATIENCE,
        )
        iterator = iter(loader)
        kept = [weakref.ref(thing) for thing in (iterator, iterator._engine, iterator._epoch)]  # type: ignore[attr-defined]
        assert sorted(i for batch in iterator for i in batch) == list(range(0, 40, 2))
        skipped = iterator.stats.skipped
        del iterator
        assert len(loader.stats.skipped) == len(skipped) == 20
        assert eventually(lambda: not any(raw() for raw in dataset.alive))
        assert eventually(lambda: not any(thing() for thing in kept))

    @on_each
    @pytest.mark.parametrize("fail", WAYS, ids=lambda way: str(way.__name__))
    def test_errors_say_where_they_were_raised(
        self, fail: Callable[[Any, int], Any], in_order: bool, executor: str
    ) -> None:
        loader = skipping(fail, in_order, executor)
        for _ in loader:
            pass
        for index, error in loader.stats.skipped:
            notes = "\n".join(error.__notes__)
            assert f"sample index {index}" in notes
            assert "test_keeps_nothing.py" in notes
            assert "in __getitem__" in notes or "ExceptionGroup" in notes
            assert fail.__name__ in notes

    @on_each
    def test_stats_keep_neither_the_iterator_nor_the_engine(
        self, in_order: bool, executor: str
    ) -> None:
        loader = skipping(plainly, in_order, executor)
        iterator = iter(loader)
        kept = [weakref.ref(thing) for thing in (iterator, iterator._engine, iterator._epoch)]  # type: ignore[attr-defined]
        for _ in iterator:
            pass
        del iterator
        assert len(loader.stats.skipped) == 20
        assert eventually(lambda: not any(thing() for thing in kept))


def test_an_error_that_is_raised_over_and_over_collects_no_traces() -> None:
    error = ValueError("always the same")
    for _ in range(20):
        try:
            raise error
        except ValueError:
            forget_frames(error)
    assert error.__traceback__ is None
    assert len(error.__notes__) == 1


@in_any_order
@pytest.mark.parametrize("fail", WAYS, ids=lambda way: str(way.__name__))
def test_errors_that_are_raised_keep_nothing_once_they_are_dropped(
    fail: Callable[[Any, int], Any], in_order: bool
) -> None:
    dataset = Bad(fail)
    loader = MinatoLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=4,
        num_workers=2,
        in_order=in_order,
        executor="thread",
        collate_fn=as_list,
        transforms=[int],
        timeout=PATIENCE,
    )
    for most in (100, 1, 3):
        iterator = iter(loader)
        kept = [weakref.ref(thing) for thing in (iterator, iterator._engine, iterator._epoch)]  # type: ignore[attr-defined]
        consume(iterator, most)
        del iterator
        assert eventually(lambda: not any(raw() for raw in dataset.alive))
        assert eventually(lambda kept=kept: not any(thing() for thing in kept))  # type: ignore[misc]


def consume(iterator: Any, most: int) -> None:
    for _ in range(most):
        try:
            next(iterator)
        except StopIteration:
            return
        except Exception:
            pass


class BreaksDown:
    """A sampler that raises after a few batches, in its own code or in what it calls."""

    def __init__(self, deep: bool) -> None:
        self.deep = deep
        self.went_on = 0

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(4):
            yield [number]
        if self.deep:
            self._fail()
        raise OSError("sampler")

    def _fail(self) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise OSError("sampler") from error


@on_each
@pytest.mark.parametrize("deep", [False, True])
class TestSamplerError:
    def loader(self, deep: bool, executor: str) -> MinatoLoader[Any]:
        return MinatoLoader(
            list(range(10)),  # type: ignore[arg-type]
            batch_sampler=BreaksDown(deep),
            num_workers=2,
            prefetch_factor=4,
            collate_fn=as_list,
            executor=executor,
            timeout=PATIENCE,
        )

    def test_it_does_not_keep_an_iterator_that_is_dropped(self, deep: bool, executor: str) -> None:
        for _ in self.loader(deep, executor):
            break
        assert eventually(lambda: not our_threads())

    def test_it_comes_after_what_was_drawn_and_says_where(self, deep: bool, executor: str) -> None:
        iterator = iter(self.loader(deep, executor))
        assert [next(iterator) for _ in range(4)] == [[0], [1], [2], [3]]
        with pytest.raises(OSError, match="sampler") as caught:
            next(iterator)
        text = "".join(traceback.format_exception(caught.value))
        assert "in __iter__" in text
        assert ("in _fail" in text and "inner" in text) == deep
        del iterator, caught


class TestGivenUp:
    def test_the_engine_is_forgotten_when_the_last_thread_ends(self) -> None:
        gate = Gate(free=range(1, 8))
        loader = MinatoLoader(
            Samples(8, gate),
            batch_size=2,
            num_workers=2,
            collate_fn=as_list,
            executor="thread",
            sample_timeout=0.1,
            on_error="skip",
        )
        before = set(shutdown._running)
        for _ in range(3):
            assert sorted(i for batch in loader for i in batch) == list(range(1, 8))
        engines = [weakref.ref(engine) for engine in shutdown._running - before]
        assert len(engines) == 3
        assert len([t for t in threading.enumerate() if t.name.startswith("minato-worker")]) == 3
        gate.let_go()
        assert eventually(lambda: shutdown._running <= before)
        assert eventually(lambda: not our_threads())
        assert eventually(lambda: not any(engine() for engine in engines))
