"""Datasets that count, hold and fail on purpose, and ways to drain a loader."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from minato_async import share

#: Seconds after which a wait that should have ended long ago fails its test.
PATIENCE = 60.0


Point = namedtuple("Point", ["x", "y"])

#: Lists of samples, of every structure that torch's default collate knows.
COLLATED_SAMPLES: Sequence[Any] = [
    [1, 2, 3],
    [1.5, -2.0],
    ["a", "bc", "d"],
    [b"a", b"bc"],
    [True, False],
    [torch.ones(2, 3), torch.zeros(2, 3)],
    [torch.tensor(3), torch.tensor(4)],
    [np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)],
    [np.float64(1.5), np.float64(2.5)],
    [np.array(3), np.array(4)],
    [np.arange(6, dtype=np.uint8)[::2], np.arange(3, dtype=np.uint8)],
    [(1, 2.0), (3, 4.0)],
    [[1, 2.0], [3, 4.0]],
    [(torch.ones(2), "a"), (torch.zeros(2), "b")],
    [{"a": 1, "b": torch.ones(2)}, {"a": 2, "b": torch.zeros(2)}],
    [Point(1, torch.ones(2)), Point(2, torch.zeros(2))],
    [{"p": Point([1], (2,)), "q": [{"r": "s"}]}, {"p": Point([3], (4,)), "q": [{"r": "t"}]}],
    [(), ()],
    [{}, {}],
    [torch.ones(2, 3).t(), torch.zeros(2, 3).t()],
    [torch.ones(2, dtype=torch.int16), torch.ones(2, dtype=torch.float64)],
    [torch.empty(0), torch.empty(0)],
]


class Counting:
    """`n` samples, each its own index; counts how often each is asked for, by all workers."""

    def __init__(self, n: int) -> None:
        share(self)
        self.n = n
        self.calls: Counter[int] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        with self._changed:
            self.calls[index] += 1
            self._changed.notify_all()
        return self.sample(index)

    def sample(self, index: int) -> Any:
        return index

    def wait_for_calls(self, indices: Iterable[int]) -> None:
        """Wait until each of `indices` has been asked for."""
        wanted = set(indices)
        with self._changed:
            assert self._changed.wait_for(lambda: wanted <= set(self.calls), PATIENCE)


class Holding(Counting):
    """Holds the samples in `held` back until `release` is called."""

    def __init__(self, n: int, held: Iterable[int]) -> None:
        super().__init__(n)
        self.held = set(held)
        self._released = threading.Event()

    def sample(self, index: int) -> Any:
        if index in self.held:
            assert self._released.wait(PATIENCE)
        return index

    def release(self) -> None:
        self._released.set()


class Failing(Counting):
    """Raises what the functions in `errors` return, for the indices that are their keys."""

    def __init__(self, n: int, errors: Mapping[int, Callable[[], BaseException]]) -> None:
        super().__init__(n)
        self.errors = errors

    def sample(self, index: int) -> Any:
        if index in self.errors:
            raise self.errors[index]()
        return index


@contextlib.contextmanager
def iterating(loader: DataLoader[Any]) -> Iterator[Iterator[Any]]:
    """An iterator that is closed at the end, torch's too: left to the garbage collector, those
    take seconds to end their workers."""
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        close = getattr(iterator, "close", None) or getattr(iterator, "_shutdown_workers", None)
        if close is not None:
            close()


def outcomes(iterator: Iterator[Any], most: int = 1000) -> list[Any]:
    """All that `next()` gives until the end: batches, and the exceptions that it raised."""
    found: list[Any] = []
    while len(found) < most:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)
    raise AssertionError(f"no end after {most} batches and errors: {found[-3:]}")


def batches_of(found: Iterable[Any]) -> list[Any]:
    return [item for item in found if not isinstance(item, BaseException)]


def errors_of(found: Iterable[Any]) -> list[BaseException]:
    return [item for item in found if isinstance(item, BaseException)]


def lists(batches: Iterable[Any]) -> list[Any]:
    """Batches of numbers as lists."""
    return [batch.tolist() for batch in batches]


def samples_in(batches: Iterable[Any]) -> Counter[int]:
    """How often each sample was delivered."""
    return Counter(sample for batch in batches for sample in batch.tolist())


def once_each(indices: Iterable[int]) -> Counter[int]:
    return Counter(list(indices))


class InThread:
    """Runs `function` in a thread; `result()` waits for it and returns or raises what it did."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="test-consumer")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        assert self.done, "the thread did not come to an end"
        if self._error is not None:
            raise self._error
        return self._result


def assert_same(one: Any, other: Any) -> None:
    """Both are equal in value, type, dtype, shape, strides and gradient, at every depth."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.layout == other.layout
        assert one.requires_grad == other.requires_grad
        assert one.stride() == other.stride()
        # Bit for bit: NaN is as good as any number.
        assert one.equal(other) or torch.equal(_bits(one), _bits(other))
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, Mapping):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for part, other_part in zip(one, other, strict=True):
            assert_same(part, other_part)
    else:
        assert one == other or (one != one and other != other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
