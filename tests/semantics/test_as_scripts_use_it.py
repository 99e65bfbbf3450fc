"""What scripts and libraries do with torch's loader beyond iterating, on torch's and on ours."""

from __future__ import annotations

import copy
import itertools
import pickle
import queue
import threading
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from minato_async.stats import Stats
from tests.lifetime.support import our_threads
from tests.loaders import PARALLEL, PROCESSES, SERIAL, TORCH, WORKERS, LoaderKind

from .support import lists

LOADERS = [DataLoader, MinatoLoader]
SEVEN: Any = range(7)
IN_FOUR = [[0, 1], [2, 3], [4, 5], [6]]


class Again:
    """Draws from a sampler over and over."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


def never_ending(base: Any) -> type[DataLoader[Any]]:
    """As timm's and Ultralytics' loaders: one endless epoch, so that the workers stay."""

    class NeverEnding(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
            self.endless = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            return itertools.islice(self.endless, len(self))

        def reset(self) -> None:
            self.endless = self._get_iterator()

    return NeverEnding


def in_background(base: Any) -> type[DataLoader[Any]]:
    """As prefetchers: a thread of its own iterates."""

    class InBackground(base):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            batches = super().__iter__()
            ready: queue.Queue[Any] = queue.Queue()

            def read() -> None:
                for batch in batches:
                    ready.put(batch)
                ready.put(None)

            thread = threading.Thread(target=read)
            thread.start()
            yield from iter(ready.get, None)
            thread.join()

    return InBackground


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("base", LOADERS)
class TestSubclasses:
    def test_one_endless_epoch(self, base: type, num_workers: int) -> None:
        loader: Any = never_ending(base)(SEVEN, 2, num_workers=num_workers)
        assert [lists(loader) for _ in range(3)] == [IN_FOUR] * 3
        next(iter(loader))
        loader.reset()
        assert [lists(loader) for _ in range(2)] == [IN_FOUR] * 2

    def test_background_thread(self, base: type, num_workers: int) -> None:
        loader = in_background(base)(SEVEN, 2, num_workers=num_workers)
        assert [lists(loader) for _ in range(2)] == [IN_FOUR] * 2

    def test_iterator_by_torchs_own_name(self, base: Any, num_workers: int) -> None:
        loader = base(range(7), 2, num_workers=num_workers)
        iterator = loader._get_iterator()
        assert type(iterator) is type(iter(loader))
        assert lists(iterator) == IN_FOUR


@pytest.mark.parametrize("kind", PARALLEL, ids=lambda kind: kind.name)
def test_persistent_workers_are_shut_down_by_torchs_own_name(kind: LoaderKind) -> None:
    loader: Any = kind(range(7), 2, persistent_workers=True)
    assert lists(loader) == IN_FOUR
    assert our_threads() or not kind.is_ours
    loader._iterator._shutdown_workers()
    assert not our_threads()
    loader._iterator = None
    assert lists(loader) == IN_FOUR


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("base", LOADERS)
class TestCopies:
    @pytest.mark.parametrize("used", [False, True])
    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_of_a_loader(self, base: Any, num_workers: int, used: bool, how: str) -> None:
        loader = base(list(range(7)), 2, num_workers=num_workers, in_order=True)
        if used:
            next(iter(loader))
        copied = COPIES[how](loader)
        assert type(copied) is base
        assert (copied.dataset is loader.dataset) == (how == "copy")
        assert lists(copied) == lists(loader) == IN_FOUR
        with pytest.raises(ValueError, match="batch_size attribute should not be set"):
            copied.batch_size = 3


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_torchs_loader_is_not_copied_with_workers_at_work(how: str) -> None:
    loader: Any = DataLoader(list(range(7)), 2, num_workers=2, persistent_workers=True)
    next(iter(loader))
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        COPIES[how](loader)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", [WORKERS, PROCESSES], ids=lambda kind: kind.name)
class TestCopiesWithWorkersAtWork:
    """Ours have the settings of the one that is copied, and workers of their own."""

    @pytest.mark.parametrize("taken", [1, 4, 5])
    def test_of_persistent_workers(self, taken: int, kind: LoaderKind, how: str) -> None:
        loader: Any = kind(list(range(7)), 2, persistent_workers=True, seed=3, prefetch_factor=3)
        iterator = iter(loader)
        assert lists(itertools.islice(iterator, taken)) == IN_FOUR[:taken]
        copied = COPIES[how](loader)
        assert vars(copied).keys() == vars(loader).keys()
        assert copied.stats == Stats()
        for name in ("batch_size", "num_workers", "persistent_workers", "seed", "prefetch_factor"):
            assert getattr(copied, name) == getattr(loader, name)
        assert lists(copied) == IN_FOUR
        assert lists(iterator) == IN_FOUR[taken:]
        for each in (loader, copied):
            assert lists(each) == IN_FOUR
        assert iter(copied) is not iter(loader)
        assert iter(loader) is iterator

    def test_goes_on_when_the_one_that_was_copied_is_gone(self, kind: LoaderKind, how: str) -> None:
        loader = kind(list(range(7)), 2, persistent_workers=True)
        next(iter(loader))
        copied = COPIES[how](loader)
        next(iter(copied))
        del loader
        assert [lists(copied) for _ in range(2)] == [IN_FOUR] * 2


def test_what_is_asked_of_the_class() -> None:
    loader = MinatoLoader[int](range(7), 2)  # type: ignore[arg-type]
    assert isinstance(loader, DataLoader)
    assert typing.get_origin(MinatoLoader[int]) is MinatoLoader
    assert typing.get_args(MinatoLoader[int]) == (int,)
    assert lists(loader) == IN_FOUR
    assert "MinatoLoader object at" in repr(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_whatever_torchs_loader_has_ours_has_too(num_workers: int) -> None:
    loaders: list[Any] = [kind(range(7), 2, num_workers=num_workers) for kind in (TORCH, SERIAL)]
    theirs, ours = loaders
    assert set(dir(theirs)) <= set(dir(ours))
    same = set(vars(theirs)) - {"dataset", "sampler", "batch_sampler", "in_order"}
    for name in same:
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("base", LOADERS)
def test_number_of_workers_is_an_integer_of_any_type(base: Any) -> None:
    assert lists(base(range(7), 2, num_workers=np.int64(2))) == IN_FOUR
    with pytest.raises(TypeError):
        next(iter(base(range(7), num_workers=1.5)))
