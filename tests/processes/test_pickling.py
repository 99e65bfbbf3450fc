"""What raises on its way between processes: keys, samples, batches and exceptions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.processes.support import Made, pause, processes
from tests.semantics.support import iterating

PARENT = os.getpid()


class Stop(BaseException):
    """What `except Exception` does not catch."""


RAISED = pytest.mark.parametrize("kind", [ValueError, Stop])


def results(loader: Any) -> list[Any]:
    """The batches, and what was raised in their place."""
    found: list[Any] = []
    with iterating(loader) as iterator:
        while len(found) < 1000:
            try:
                batch = next(iterator)
            except StopIteration:
                return found
            except BaseException as error:
                found.append(error)
            else:
                found.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
    raise AssertionError(f"no end: {found[-3:]}")


class Key:
    """A key of a sampler, with a `__reduce__` of the test's."""

    def __init__(self, index: int, reduce: Callable[[], Any] | None = None) -> None:
        self.index = index
        self.reduce = reduce

    def __repr__(self) -> str:
        return f"Key {self.index}"

    def __reduce__(self) -> Any:
        return (Key, (self.index,)) if self.reduce is None else self.reduce()


class Keyed(Made):
    def __getitem__(self, key: Any) -> int:
        return int(key.index)


def raising(kind: type[BaseException]) -> Any:
    raise kind("on its way")


def raising_here(kind: type[BaseException], value: Any, here: bool) -> Any:
    """What is unpickled: raises in the parent alone, or in workers alone."""
    if (os.getpid() == PARENT) is here:
        raise kind("on its way")
    return value


class Bad(Exception):
    """An exception that has a method of the test's."""


def bad(method: str, kind: type[BaseException]) -> Exception:
    def raises(*_: Any) -> Any:
        raise kind("on its way")

    cls: Any = type("Bad", (Bad,), {method: raises})
    error: Exception = cls("the original")
    error.__dict__["detail"] = {"deep": 1}
    return error


def loaded(sample: Callable[[int], Any], n: int = 8, **options: Any) -> list[Any]:
    return results(processes(Made(n, sample), 2, **options))


@RAISED
@pytest.mark.parametrize("method", ["__reduce__", "__reduce_ex__", "__str__", "add_note"])
def test_exception_whose_class_raises(method: str, kind: type[BaseException]) -> None:
    def sample(index: int) -> int:
        if index == 3:
            raise bad(method, kind)
        return index

    first, error, *rest = loaded(sample)
    assert [first, *rest] == [[0, 1], [4, 5], [6, 7]]
    # Such a class is one that nobody else has, which cannot be pickled as it is.
    assert type(error) is RuntimeError
    assert "Bad, which cannot be pickled" in str(error)
    if method != "__str__":
        assert "the original" in str(error)
        assert "in sample" in str(error)


@RAISED
def test_exception_that_cannot_be_made_anew_here(kind: type[BaseException]) -> None:
    def sample(index: int) -> int:
        if index == 3:
            raise Elsewhere(kind, "the original")
        return index

    first, error, *rest = loaded(sample)
    assert [first, *rest] == [[0, 1], [4, 5], [6, 7]]
    assert type(error) is RuntimeError
    assert str(error).startswith("Elsewhere: ")
    assert "the original" in str(error)
    assert type(error.__cause__) is kind


class Elsewhere(Exception):
    """One that can be made anew in workers alone."""

    def __init__(self, kind: type[BaseException], text: str) -> None:
        super().__init__(kind, text)

    def __reduce__(self) -> Any:
        return made_elsewhere, self.args


def made_elsewhere(kind: type[BaseException], text: str) -> Elsewhere:
    error: Elsewhere = raising_here(kind, Elsewhere(kind, text), here=True)
    return error


@pytest.mark.parametrize(
    ("kind", "batch_size", "in_order"), [(ValueError, 4, True), (Stop, 4, False), (Stop, 1, True)]
)
def test_key_that_cannot_be_pickled(
    kind: type[BaseException], batch_size: int, in_order: bool
) -> None:
    keys = [Key(index) for index in range(12)]
    keys[5] = Key(5, lambda: raising(kind))
    loader = processes(Keyed(12), batch_size, sampler=keys, in_order=in_order)
    error = the_only_failure(results(loader), 12, batch_size, in_order)
    assert type(error) is TypeError
    assert "a key of type Key cannot be sent" in str(error)
    assert type(error.__cause__) is kind
    assert "Key 5" in error.__notes__[0]


@pytest.mark.parametrize(
    ("kind", "batch_size", "in_order"), [(ValueError, 4, True), (Stop, 4, False), (Stop, 1, True)]
)
def test_key_that_cannot_be_unpickled(
    kind: type[BaseException], batch_size: int, in_order: bool
) -> None:
    keys = [Key(index) for index in range(12)]
    keys[5] = Key(5, lambda: (raising, (kind,)))
    loader = processes(Keyed(12), batch_size, sampler=keys, in_order=in_order)
    error = the_only_failure(results(loader), 12, batch_size, in_order)
    assert type(error) is kind
    assert str(error) == "on its way"
    assert "sample index Key 5, step unpickling this key of type Key" in error.__notes__[0]


def the_only_failure(found: list[Any], n: int, batch_size: int, in_order: bool) -> BaseException:
    """Of sample 5; the others are whole."""
    (error,) = [result for result in found if isinstance(result, BaseException)]
    samples = sorted(i for result in found if isinstance(result, list) for i in result)
    lost = range(5 // batch_size * batch_size, (5 // batch_size + 1) * batch_size)
    assert samples == [i for i in range(n) if (i not in lost if in_order else i != 5)]
    return error


def test_key_that_cannot_be_read_can_be_skipped() -> None:
    keys = [Key(index) for index in range(6)]
    keys[2] = Key(2, lambda: (raising, (SystemExit,)))
    iterator = iter(processes(Keyed(6), 2, sampler=keys, on_error="skip"))
    assert [batch.tolist() for batch in iterator] == [[0, 1], [3], [4, 5]]
    ((key, error),) = iterator.stats.skipped
    assert key is keys[2]
    assert type(error) is SystemExit


class Value:
    """A sample that raises when it is pickled, or unpickled in workers, or in the parent."""

    def __init__(self, index: int, when: str, kind: type[BaseException]) -> None:
        self.index = index
        self.when = when
        self.kind = kind

    def __reduce__(self) -> Any:
        if self.when == "pickled":
            raise self.kind("on its way")
        return raising_here, (self.kind, self.index, self.when == "unpickled in the parent")


@RAISED
@pytest.mark.parametrize("when", ["pickled", "unpickled in a worker"])
def test_samples_that_raise_when_they_travel(when: str, kind: type[BaseException]) -> None:
    """Collated by the worker that made them, they need not."""

    def sample(index: int) -> Any:
        pause(0.005)  # so that batches are shared out among the workers
        return Value(index, when, kind)

    def collate(samples: list[Any]) -> list[int]:
        return [sample.index for sample in samples]

    found = loaded(sample, 40, collate_fn=collate)
    if when == "pickled":
        assert found == [[index, index + 1] for index in range(0, 40, 2)]
        return
    for number, result in enumerate(found):
        if isinstance(result, BaseException):
            assert type(result) is kind
            assert "unpickling what another worker has made" in result.__notes__[0]
        else:
            assert result == [2 * number, 2 * number + 1]
    assert len(found) == 20


@RAISED
@pytest.mark.parametrize("when", ["pickled", "unpickled in the parent"])
def test_batch_that_raises_when_it_travels(when: str, kind: type[BaseException]) -> None:
    def collate(samples: list[int]) -> Any:
        return Value(0, when, kind) if 2 in samples else samples

    first, error, *rest = loaded(lambda index: index, collate_fn=collate)
    assert [first, *rest] == [[0, 1], [4, 5], [6, 7]]
    assert type(error) is kind
    assert str(error) == "on its way"


@RAISED
@pytest.mark.parametrize("when", ["pickled", "unpickled in a worker"])
def test_diverted_sample_that_raises_when_it_travels(when: str, kind: type[BaseException]) -> None:
    def first(index: int) -> Any:
        if index == 2:
            pause(0.05)
            return Value(index, when, kind)
        return index

    def second(value: Any) -> int:
        return value.index if isinstance(value, Value) else value

    loader = processes(
        Made(12, first), 1, in_order=False, transforms=[second], timeout_threshold=0.02
    )
    found = results(loader)
    errors = [result for result in found if isinstance(result, BaseException)]
    rest = sorted(result[0] for result in found if isinstance(result, list))
    if when == "pickled":  # then it stays where it is
        assert (errors, rest) == ([], list(range(12)))
    else:
        (error,) = errors
        assert type(error) is kind
        assert "sample index 2, step transforms[0]" in error.__notes__[0]
        assert rest == [i for i in range(12) if i != 2]


@pytest.mark.parametrize("kind", [Stop])
def test_change_between_epochs_that_cannot_be_unpickled_is_not_seen(
    kind: type[BaseException],
) -> None:
    dataset: Any = Made(4)
    dataset.other = 1
    loader = processes(dataset, 2, persistent_workers=True)
    with iterating(loader):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        dataset.other = Value(0, "unpickled in a worker", kind)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
