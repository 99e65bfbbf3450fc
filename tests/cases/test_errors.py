"""Cases 1 to 5: errors. What is not here is in `tests/semantics/test_errors.py`."""

from __future__ import annotations

import itertools
import json
import subprocess
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from tests.cases.support import Made, Turnstile
from tests.loaders import LoaderKind
from tests.semantics.support import iterating, lists, outcomes


class KeywordsOnly(Exception):
    """Cannot be made again from its message."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: subprocess.CalledProcessError(3, ["cmd", "-x"], b"out", b"err"),
    lambda: json.JSONDecodeError("bad", "the document", 4),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    lambda: KeywordsOnly(code=7),
    lambda: OSError(2, "gone", "file"),
    lambda: KeyError("x"),
)


def public(error: BaseException) -> dict[str, Any]:
    """What the user may look at: its arguments, message and attributes."""
    found: dict[str, Any] = {"str": str(error)}
    for name in dir(error):
        value = getattr(error, name, None)
        if not name.startswith("_") and not callable(value):
            found[name] = value
    return found


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


@pytest.mark.parametrize("where", ["dataset", "collate_fn", "stream"])
@pytest.mark.parametrize("make", ERRORS, ids=lambda make: type(make()).__name__)
def test_case_1_same_type_arguments_and_traceback(
    any_loader: LoaderKind, make: Callable[[], Exception], where: str
) -> None:
    def the_line_at_fault(_: Any) -> Any:
        raise make()

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield the_line_at_fault(0)

    if where == "dataset":
        loader = any_loader(Made(1, the_line_at_fault))
    elif where == "collate_fn":
        loader = any_loader(range(1), collate_fn=the_line_at_fault)
    else:
        loader = any_loader(Stream())
    with iterating(loader) as iterator, pytest.raises(type(make())) as caught:
        next(iterator)
    assert caught.type is type(make())
    assert public(caught.value) == public(make())
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.name, last.line) == ("the_line_at_fault", "raise make()")


def test_case_2_key_error_has_its_key_and_the_context_is_in_notes(
    any_loader: LoaderKind,
) -> None:
    loader = any_loader({"a": 1, "b": 2}, sampler=["a", "x", "b"])
    with iterating(loader) as iterator:
        first, error, last = outcomes(iterator)
    assert lists([first, last]) == [[1], [2]]
    assert type(error) is KeyError
    assert error.args == ("x",)
    assert str(error) == "'x'"
    if any_loader.is_ours:
        assert "index 'x'" in notes(error)
        assert "step dict.__getitem__" in notes(error)
        where = "worker minato-worker-" if any_loader.num_workers else "the consumer's thread"
        assert where in notes(error)


@pytest.mark.parametrize("failing", [0, 3, 7])
@pytest.mark.parametrize("where", ["dataset", "collate_fn"])
def test_case_4_failed_batch_is_gone_and_the_rest_arrives(
    every_loader: LoaderKind, where: str, failing: int
) -> None:
    def sample(index: int) -> int:
        if where == "dataset" and index == failing:
            raise ValueError(index)
        return index

    def collate(samples: list[int]) -> list[int]:
        if where == "collate_fn" and failing in samples:
            raise ValueError(failing)
        return samples

    with iterating(every_loader(Made(8, sample), 2, collate_fn=collate)) as iterator:
        found = outcomes(iterator)
    expected: list[Any] = [[0, 1], [2, 3], [4, 5], [6, 7]]
    failed = failing // 2
    assert type(found[failed]) is ValueError
    expected[failed] = found[failed]
    assert found == expected


class Raises(Exception):
    """What user code raises in case 5; torch's workers can make it again from its message."""


def fail(*_: Any) -> Any:
    raise Raises("on purpose")


class FailsInIter:
    """A sampler, or a sampler of batches."""

    __iter__ = fail

    def __len__(self) -> int:
        return 8


class FailsLater(FailsInIter):
    def __iter__(self) -> Iterator[Any]:
        yield [0]
        fail()


class StreamFailsInIter(IterableDataset[int]):
    __iter__ = fail


class StreamFailsLater(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1
        fail()


#: What raises, and how a loader is made with it.
FAULTS: dict[str, Callable[[LoaderKind], Any]] = {
    "collate_fn": lambda kind: kind(range(8), collate_fn=fail),
    "sampler": lambda kind: kind(range(8), sampler=FailsInIter()),
    "sampler, later": lambda kind: kind(Made(8, len), batch_size=None, sampler=FailsLater()),
    "batch_sampler": lambda kind: kind(range(8), batch_sampler=FailsInIter()),
    "batch_sampler, later": lambda kind: kind(range(8), batch_sampler=FailsLater()),
    "dataset's iter": lambda kind: kind(StreamFailsInIter()),
    "dataset's iterator": lambda kind: kind(StreamFailsLater()),
}


@pytest.mark.filterwarnings(  # torch's own iterator, which it did not finish making
    "ignore:.*_MultiProcessingDataLoaderIter.__del__:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("fault", FAULTS)
def test_case_5_what_user_code_raises_comes_out_and_nothing_hangs(
    every_loader: LoaderKind, fault: str
) -> None:
    loader = FAULTS[fault](every_loader)
    with pytest.raises(Raises, match="on purpose"), iterating(loader) as iterator:
        for _ in iterator:
            pass


@pytest.mark.parametrize("dataset", ["map", "iterable"])
@pytest.mark.parametrize("failing", [{0, 1, 2}, {1}], ids=["all workers", "one worker"])
def test_case_5_worker_init_fn_that_raises(
    parallel: LoaderKind, failing: set[int], dataset: str
) -> None:
    door = Turnstile()

    def init(worker_id: int) -> None:
        if worker_id in failing:
            raise Raises("on purpose")

    def sample(index: int) -> int:
        # Torch gives each worker its share; with us the others could take all there is.
        if parallel.is_ours:
            door.hold()
        return index

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    data: Any = Made(8, sample) if dataset == "map" else Stream()
    with iterating(parallel(data, worker_init_fn=init)) as iterator:
        with pytest.raises(Raises, match="on purpose") as caught:
            for _ in iterator:
                pass
        door.let_go()
        if parallel.is_ours:
            assert "worker_init_fn" in notes(caught.value)
            # Whoever goes on all the same is not left waiting either.
            *_, last = itertools.islice(_results(iterator), 20)
            assert last in (Raises, StopIteration)


def _results(iterator: Iterator[Any]) -> Iterator[Any]:
    """What `iterator` gives, for ever; exceptions by their types."""
    while True:
        try:
            yield next(iterator)
        except Exception as error:
            yield type(error)
