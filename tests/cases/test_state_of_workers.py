"""Unmodified code changes what is its worker's own, on threads as in a process (contract C8).

Each would be wrong without an error if workers shared the object.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import sqlite3
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    get_worker_info,
)

from minato_async import MinatoLoader, share
from tests.cases.kinds import PARALLEL, TORCH_WORKERS, WORKERS
from tests.cases.support import PATIENCE
from tests.loaders import LoaderKind

each_kind = pytest.mark.parametrize("kind", PARALLEL, ids=lambda kind: kind.name)
each_of_ours = pytest.mark.parametrize("kind", WORKERS, ids=lambda kind: kind.name)

#: Where two workers meet while each is in the middle of a sample. In a process of its own, a worker
#: meets nobody.
_meeting = threading.Barrier(2)


@pytest.fixture(autouse=True)
def fresh_meeting() -> Iterator[None]:
    _meeting.reset()
    yield
    _meeting.abort()


def meet() -> None:
    """Wait until another worker is in the middle of a sample too."""
    if get_worker_info().dataset is not None and threading.current_thread().name != "MainThread":
        with contextlib.suppress(threading.BrokenBarrierError):
            _meeting.wait(2)


class Cropped:
    """A transform that keeps its parameter in itself, and applies it to image and mask."""

    def __call__(self, index: int) -> dict[str, int]:
        self.start = index
        meet()
        image = self.start
        meet()
        return {"image": image, "mask": self.start}


class Indices(Dataset[Any]):
    def __init__(self, n: int = 24, transform: Any = None) -> None:
        self.n = n
        self.transform = transform

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return index if self.transform is None else self.transform(index)


class Composed:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value


def two(kind: LoaderKind, dataset: Any, **options: Any) -> list[Any]:
    """What two workers load, sample by sample."""
    return list(kind(dataset, batch_size=None, **{"num_workers": 2} | options))


class TestTransforms:
    @each_kind
    @pytest.mark.parametrize("wrap", [lambda t: t, Composed, lambda t: Composed(Composed(t))])
    def test_in_the_dataset(self, kind: LoaderKind, wrap: Callable[[Any], Any]) -> None:
        loaded = two(kind, Indices(transform=wrap(Cropped())))

        assert [sample["image"] for sample in loaded] == list(range(24))
        assert [sample["mask"] for sample in loaded] == list(range(24))

    @each_of_ours
    def test_given_to_the_loader(self, kind: LoaderKind) -> None:
        loaded = two(kind, Indices(), transforms=[Cropped()])

        assert [sample["mask"] for sample in loaded] == list(range(24))

    @each_kind
    def test_a_module(self, kind: LoaderKind) -> None:
        class Augmentation(torch.nn.Module):
            def forward(self, index: int) -> list[int]:
                self.params = {"index": index}
                meet()
                return [index, self.params["index"]]

        loaded = two(kind, Indices(transform=torch.nn.Sequential(Augmentation())))

        assert loaded == [[index, index] for index in range(24)]

    @each_kind
    def test_a_collate_function_that_is_an_object(self, kind: LoaderKind) -> None:
        class Collate:
            def __call__(self, samples: list[int]) -> tuple[int, int]:
                self.first = samples[0]
                meet()
                return samples[0], self.first

        loaded = list(kind(Indices(), batch_size=2, collate_fn=Collate(), num_workers=2))

        assert loaded == [(index, index) for index in range(0, 24, 2)]

    @each_of_ours
    def test_a_function_for_failed_samples_that_is_a_method(self, kind: LoaderKind) -> None:
        class Replacing(Indices):
            def __getitem__(self, index: int) -> int:
                self.index = index
                meet()
                raise ValueError("broken")

            def replace(self, index: int, error: BaseException) -> int:
                return self.index

        dataset = Replacing()

        assert two(kind, dataset, on_error=dataset.replace) == list(range(24))


class File:
    """Has a position, as files do."""

    def seek(self, index: int) -> None:
        self.index = index

    def read(self) -> int:
        return self.index


class Lazy(Indices):
    """Opens its file at the first sample."""

    def __init__(self) -> None:
        super().__init__(12)
        self.file: File | None = None

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            self.file = File()
        self.file.seek(index)
        meet()
        return self.file.read()


class Closing(Lazy):
    def __del__(self) -> None:
        self.file = None


class InSlots:
    __slots__ = ("file",)

    def __init__(self) -> None:
        self.file: File | None = None

    def __len__(self) -> int:
        return 12

    __getitem__ = Lazy.__getitem__


class ByNew(Lazy):
    def __new__(cls, needed: str = "") -> ByNew:
        return super().__new__(cls)


class Wrapper(Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


class WithMethod(Lazy):
    def __init__(self) -> None:
        super().__init__()
        self.read = super().__getitem__

    def __getitem__(self, index: int) -> int:
        return self.read(index)


class WithFunction(Lazy):
    def __init__(self) -> None:
        super().__init__()
        self.read = lambda index: super(WithFunction, self).__getitem__(index)

    def __getitem__(self, index: int) -> int:
        return int(self.read(index))


class WithTable(WithMethod):
    def __init__(self) -> None:
        super().__init__()
        self.table = {"raw": self.read}

    def __getitem__(self, index: int) -> int:
        return self.table["raw"](index)


class Back(Lazy):
    """Has a helper that refers to it."""

    class Part:
        def __init__(self, owner: Lazy) -> None:
            self.owner = owner

        def get(self, index: int) -> int:
            return Lazy.__getitem__(self.owner, index)

    def __init__(self) -> None:
        super().__init__()
        self.part = self.Part(self)

    def __getitem__(self, index: int) -> int:
        return self.part.get(index)


@each_kind
@pytest.mark.parametrize(
    "make",
    [
        *(Lazy, Closing, InSlots, ByNew, WithMethod, WithFunction, WithTable, Back),
        lambda: Wrapper(Wrapper(Lazy())),
        lambda: Subset(Subset(Lazy(), range(12)), range(12)),
        lambda: ConcatDataset([Lazy(), Lazy()]),
        lambda: Wrapper(ConcatDataset([Closing(), Closing()])),
        lambda: StackDataset(Lazy(), InSlots()),  # type: ignore[arg-type]
    ],
    ids=range(13),
)
def test_a_file_that_is_opened_at_the_first_sample(
    kind: LoaderKind, make: Callable[[], Any]
) -> None:
    if kind is TORCH_WORKERS and make not in (Closing, InSlots, Back):
        pytest.skip("to prove the test right some will do")
    loaded = two(kind, make())

    if isinstance(loaded[0], list):
        loaded = [a for a, b in loaded if a == b]
    assert loaded == [n % 12 for n in range(len(loaded))]
    assert len(loaded) in (12, 24)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("depth", [0, 2])
def test_a_connection_that_only_its_thread_may_use(
    persistent: bool, depth: int, tmp_path: Path
) -> None:
    """Epochs come with threads of their own, and find what was cached."""
    caches = itertools.count()

    class Holder:
        connection: Any = None

    class Database(Indices):
        def __init__(self) -> None:
            super().__init__(12)
            self.holder: Any = None
            self.cache: int | None = None

        def __getitem__(self, index: int) -> tuple[int, int]:
            if self.cache is None:
                self.cache = next(caches)
            if self.holder is None:
                self.holder = Holder()
                self.holder.connection = sqlite3.connect(tmp_path / "numbers")
                for _ in range(depth):
                    self.holder = [self.holder]
            holder = self.holder
            while isinstance(holder, list):
                (holder,) = holder
            (number,) = holder.connection.execute("select ?", (index,)).fetchone()
            return number, self.cache

    loader: MinatoLoader[Any] = MinatoLoader(
        Database(),
        num_workers=2,
        executor="thread",
        batch_size=None,
        persistent_workers=persistent,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        epochs = [list(loader) for _ in range(3)]
        del loader
        for thread in threading.enumerate():
            if thread.name.startswith("minato"):
                thread.join(PATIENCE)
        gc.collect()  # a connection refers to itself

    assert [[number for number, _ in epoch] for epoch in epochs] == [list(range(12))] * 3
    # One for each worker, whichever of them were quick enough to load anything in an epoch.
    assert len({cache for epoch in epochs for _, cache in epoch}) <= 2


class Opened(Wrapper):
    """Has to be opened in each worker; `inner` is what does the work."""

    handle = ""

    def open(self, worker: int) -> None:
        self.handle = f"open {worker}"

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.handle, get_worker_info().id


class TestWorkerInitFn:
    @each_kind
    def test_as_a_method_of_the_dataset(self, kind: LoaderKind) -> None:
        dataset = Opened(range(8))
        loaded = two(kind, dataset, worker_init_fn=dataset.open)

        assert [handle for handle, _ in loaded] == [f"open {worker}" for _, worker in loaded]

    @each_kind
    def test_that_configures_a_nested_dataset(self, kind: LoaderKind) -> None:
        def configure(worker: int) -> None:
            get_worker_info().dataset.datasets[1].inner.open(worker)

        dataset = ConcatDataset([Indices(0), Wrapper(Opened(range(8)))])
        loaded = two(kind, dataset, worker_init_fn=configure)

        assert [handle for handle, _ in loaded] == [f"open {worker}" for _, worker in loaded]

    @each_kind
    @pytest.mark.parametrize("wrap", [lambda d: d, lambda d: ChainDataset([d])])
    def test_that_gives_an_iterable_its_share(
        self, kind: LoaderKind, wrap: Callable[[Any], Any]
    ) -> None:
        class Part(IterableDataset[int]):
            def __init__(self) -> None:
                self.read = self._read
                self.rows: Any = ()

            def _read(self) -> Iterator[int]:
                yield from self.rows

            def __iter__(self) -> Iterator[int]:
                return self.read()

        def set_share(worker: int) -> None:
            dataset = get_worker_info().dataset
            getattr(dataset, "datasets", [dataset])[0].rows = range(worker * 3, worker * 3 + 3)

        loaded = two(kind, wrap(Part()), worker_init_fn=set_share)

        assert sorted(loaded) == list(range(6))


class Caching(Indices):
    """Loads each index once for each worker, in an attribute and by `lru_cache`."""

    def __init__(self, log: list[int]) -> None:
        super().__init__(20)
        self.cache: dict[int, int] = {}
        self.log = log
        share(self, "log")

    @functools.cache  # noqa: B019
    def load(self, index: int) -> int:
        _loaders.add(self)
        return index

    def __getitem__(self, index: int) -> int:
        if index not in self.cache:
            self.log.append(index)
            self.cache[index] = self.load(index)
        return self.cache[index]


_loaders: weakref.WeakSet[Any] = weakref.WeakSet()


class TestCaches:
    """On threads; processes have their own, and keep them while they persist."""

    @pytest.mark.parametrize("persistent", [False, True])
    def test_hit_in_later_epochs(self, persistent: bool) -> None:
        log: list[int] = []
        Caching.load.cache_clear()
        loader: MinatoLoader[Any] = MinatoLoader(
            Caching(log), 4, num_workers=2, executor="thread", persistent_workers=persistent
        )
        for _ in range(8):
            assert [int(x) for batch in loader for x in batch] == list(range(20))

        assert len(log) <= 2 * 20
        assert Caching.load.cache_info().currsize <= 2 * 20

    def test_do_not_pile_up_over_loaders(self) -> None:
        _loaders.clear()
        Caching.load.cache_clear()
        dataset = Caching([])
        for _ in range(6):
            loader: MinatoLoader[Any] = MinatoLoader(
                dataset, 4, num_workers=2, executor="thread", in_order=True
            )
            assert [int(x) for batch in loader for x in batch] == list(range(20))
            del loader

        assert len(_loaders) <= 2

    def test_are_gone_with_their_loader(self) -> None:
        dataset = Caching([])
        gc.collect()
        loader: MinatoLoader[Any] = MinatoLoader(
            dataset, 4, num_workers=2, executor="thread", transforms=[Noting()]
        )
        list(loader)
        assert len(_noted) > 0
        del loader
        gc.collect()

        assert len(_noted) == 0


class Noting:
    def __call__(self, value: Any) -> Any:
        self.last = value
        _noted.add(self)
        return value


_noted: weakref.WeakSet[Any] = weakref.WeakSet()


class TestCheck:
    @pytest.mark.parametrize("executor", ["thread", "process"])
    @pytest.mark.parametrize("data", [torch.zeros(3, 4), torch.zeros(3, 4).numpy()])
    def test_a_sample_that_changes_shared_data_is_named(self, executor: str, data: Any) -> None:
        class Augmenting(Indices):
            def __init__(self) -> None:
                super().__init__(6)
                self.inner = {"images": [data, data + 0]}

            def __getitem__(self, index: int) -> Any:
                image = self.inner["images"][1]
                if index == 4:
                    image[0] += 1
                return image.sum()

        loader: MinatoLoader[Any] = MinatoLoader(
            Augmenting(), num_workers=2, executor=executor, check=True
        )
        with pytest.raises(RuntimeError, match=r"dataset\.inner\['images'\]\[1\]") as caught:
            list(loader)
        assert "sample index 4" in caught.value.__notes__[0]

    def test_nothing_else_is_refused(self) -> None:
        dataset = Indices(transform=Cropped())
        loader: MinatoLoader[Any] = MinatoLoader(
            dataset, None, num_workers=2, executor="thread", check=True, in_order=True
        )
        _meeting.abort()

        assert [sample["mask"] for sample in loader] == list(range(24))

    def test_it_is_for_map_style_datasets(self) -> None:
        class Part(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                return iter(())

        with pytest.raises(ValueError, match="check"):
            MinatoLoader(Part(), check=True)
        with pytest.raises(TypeError, match="check"):
            MinatoLoader(Indices(), check=1)  # type: ignore[arg-type]
