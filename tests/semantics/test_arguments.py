"""The constructor: torch's arguments and checks, and our own."""

from __future__ import annotations

import inspect
import math
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import minato_async
from minato_async import MinatoLoader
from tests.loaders import LoaderKind

from .support import PATIENCE, iterating, lists, once_each, samples_in

BATCHES = [[0, 1], [2]]

#: Arguments that torch refuses, the exception, and a word of its message.
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_workers": -1}, ValueError, "num_workers"),
    ({"batch_size": 0}, ValueError, "batch_size"),
    ({"batch_size": -3}, ValueError, "batch_size"),
    ({"batch_size": True}, ValueError, "batch_size"),
    ({"batch_size": 2.0}, ValueError, "batch_size"),
    ({"batch_size": "2"}, ValueError, "batch_size"),
    ({"drop_last": "yes"}, ValueError, "drop_last"),
    ({"batch_size": None, "drop_last": True}, ValueError, "drop_last"),
    ({"sampler": [0], "shuffle": True}, ValueError, "mutually exclusive"),
    ({"batch_sampler": BATCHES, "batch_size": 2}, ValueError, "mutually exclusive"),
    ({"batch_sampler": BATCHES, "shuffle": True}, ValueError, "mutually exclusive"),
    ({"batch_sampler": BATCHES, "sampler": [0]}, ValueError, "mutually exclusive"),
    ({"batch_sampler": BATCHES, "drop_last": True}, ValueError, "mutually exclusive"),
    ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
    ({"prefetch_factor": 0}, ValueError, "prefetch_factor"),
    ({"prefetch_factor": -1, "num_workers": 1}, ValueError, "prefetch_factor"),
    ({"persistent_workers": True}, ValueError, "persistent_workers"),
    ({"timeout": -1}, ValueError, "timeout"),
    ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context"),
    ({"multiprocessing_context": "x", "num_workers": 1}, ValueError, "start method"),
    ({"multiprocessing_context": 3, "num_workers": 1}, TypeError, "multiprocessing_context"),
    ({"no_such_argument": 1}, TypeError, "no_such_argument"),
]


PACKAGE = os.path.dirname(minato_async.__file__)


def spelled(value: Any) -> str | None:
    """Names a test by the arguments it is about."""
    if not isinstance(value, dict):
        return None
    return ",".join(f"{name}={argument!r}" for name, argument in value.items()) or "none"


@pytest.mark.parametrize("cls", [DataLoader, MinatoLoader])
class TestRefusedAsTorchDoes:
    @pytest.mark.parametrize(("arguments", "error", "word"), REFUSED, ids=spelled)
    def test_bad_arguments(
        self,
        cls: type[DataLoader[Any]],
        arguments: dict[str, Any],
        error: type[Exception],
        word: str,
    ) -> None:
        with pytest.raises(error, match=word) as caught:
            cls(range(3), **arguments)  # type: ignore[arg-type]
        assert caught.type is error

    def test_shuffling_an_empty_dataset(self, cls: type[DataLoader[Any]]) -> None:
        with pytest.raises(ValueError, match="num_samples"):
            cls([], shuffle=True)  # type: ignore[arg-type]

    def test_shuffling_a_dataset_without_a_length(self, cls: type[DataLoader[Any]]) -> None:
        with pytest.raises(TypeError, match="len"):
            cls(iter([]), shuffle=True)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "name",
        ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"],
    )
    def test_attributes_that_are_fixed(self, cls: type[DataLoader[Any]], name: str) -> None:
        loader = cls(range(3))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"{name} attribute should not be set"):
            setattr(loader, name, getattr(loader, name))


class TestDatasetWithoutLength:
    class Endless:
        def __getitem__(self, index: int) -> int:
            return index

    def test_is_an_error_where_the_length_is_needed(self, any_kind: LoaderKind) -> None:
        loader = any_kind(self.Endless())
        with pytest.raises(TypeError, match="len"):
            len(loader)
        with iterating(loader) as iterator, pytest.raises(TypeError, match="len"):
            next(iterator)

    def test_torch_with_workers_raises_the_same(self, parallel_kind: LoaderKind) -> None:
        with pytest.raises(TypeError, match="len"):
            next(iter(parallel_kind(self.Endless())))

    def test_is_none_with_a_sampler(self, in_order_kind: LoaderKind) -> None:
        assert lists(in_order_kind(self.Endless(), 2, sampler=[5, 3, 1])) == [[5, 3], [1]]


class TestLikeTorch:
    def test_is_a_torch_loader(self) -> None:
        assert issubclass(MinatoLoader, DataLoader)
        assert minato_async.DataLoader is MinatoLoader

    def test_signature_is_torchs_and_more(self) -> None:
        theirs = inspect.signature(DataLoader.__init__).parameters
        ours = inspect.signature(MinatoLoader.__init__).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        assert all(ours[name].kind is theirs[name].kind for name in theirs)
        differing = {name for name in theirs if ours[name].default != theirs[name].default}
        assert differing == {"in_order"}
        ours_alone = [ours[name] for name in ours if name not in theirs]
        assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in ours_alone)

    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"batch_size": 4, "shuffle": True, "drop_last": True},
            {"batch_size": None},
            {"sampler": [1, 2]},
            {"batch_sampler": BATCHES},
            {"num_workers": 2},
            {"num_workers": 2, "prefetch_factor": 5, "persistent_workers": True},
            {"collate_fn": list},
        ],
        ids=spelled,
    )
    def test_attributes_are_torchs(self, arguments: dict[str, Any]) -> None:
        names = [
            *("batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout"),
            *("worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor"),
            *("persistent_workers", "pin_memory_device", "dataset"),
        ]
        data = range(9)
        theirs: Any = DataLoader(data, **arguments)  # type: ignore[arg-type]
        ours: Any = MinatoLoader(data, **arguments)  # type: ignore[arg-type]
        for name in names:
            assert getattr(ours, name) == getattr(theirs, name), name
        assert type(ours.sampler) is type(theirs.sampler)
        assert type(ours.batch_sampler) is type(theirs.batch_sampler)

    def test_positional_arguments(self) -> None:
        generator = torch.Generator()
        loader = MinatoLoader(
            range(9), 2, True, None, None, 1, list, False, True, 0, None, None, generator
        )
        assert (loader.batch_size, loader.num_workers, loader.collate_fn) == (2, 1, list)
        assert loader.drop_last
        assert type(loader.sampler) is RandomSampler
        assert loader.generator is generator

    def test_arguments_of_our_own_are_attributes(self) -> None:
        """Frameworks make a loader again from its attributes, by the names of its arguments."""
        loader = MinatoLoader(
            range(9), num_workers=1, in_order=False, max_queue_size=7, scheduler="fixed"
        )
        assert (loader.in_order, loader.max_queue_size, loader.scheduler) == (False, 7, "fixed")
        assert MinatoLoader(range(9)).in_order is None

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_iterators_cannot_be_pickled(self, num_workers: int) -> None:
        with iterating(MinatoLoader(range(9), num_workers=num_workers)) as iterator:
            with pytest.raises(NotImplementedError):
                pickle.dumps(iterator)
            assert next(iterator).tolist() == [0]

    def test_loaders_can_be_pickled(self) -> None:
        loader = pickle.loads(pickle.dumps(MinatoLoader(list(range(5)), 2, num_workers=2)))
        assert samples_in(loader) == once_each(range(5))

    def test_subclasses(self) -> None:
        class Doubled(MinatoLoader[int]):
            def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
                return (2 * batch for batch in super().__iter__())

        assert lists(Doubled(range(3), num_workers=2, in_order=True)) == [[0], [2], [4]]

    @pytest.mark.parametrize("cls", [DataLoader, MinatoLoader])
    @pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 0), (1, 3)])
    def test_number_of_workers_may_be_changed(
        self, cls: type[DataLoader[Any]], before: int, after: int
    ) -> None:
        loader = cls(range(5), 2, num_workers=before)  # type: ignore[arg-type]
        assert lists(loader) == [[0, 1], [2, 3], [4]]
        loader.num_workers = after
        assert lists(loader) == [[0, 1], [2, 3], [4]]

    def test_changed_number_of_workers_is_what_loads(self) -> None:
        class Together:
            """Samples that can only be loaded three at a time."""

            def __init__(self) -> None:
                self.barrier: threading.Barrier | None = None

            def __len__(self) -> int:
                return 3

            def __getitem__(self, index: int) -> int:
                if self.barrier is not None:
                    self.barrier.wait(PATIENCE)
                return index

        data = Together()
        loader = MinatoLoader(data, num_workers=1, in_order=True)
        assert lists(loader) == [[0], [1], [2]]
        data.barrier = threading.Barrier(3)
        loader.num_workers = 3
        assert lists(loader) == [[0], [1], [2]]

    def test_workers_may_be_added_where_there_were_none(self) -> None:
        """torch fails here, for want of a prefetch factor; waiting for ever is no answer."""
        loader = MinatoLoader(range(5), 2)
        loader.num_workers = 2
        assert lists(loader) == [[0, 1], [2, 3], [4]]


class TestNumberOfWorkers:
    """The check of the number of workers: torch's, with a text that is true for threads too."""

    @pytest.mark.parametrize("cls", [DataLoader, MinatoLoader])
    @pytest.mark.parametrize(("more", "warns"), [(-1, False), (0, False), (1, True)])
    def test_warns_of_more_than_cpus(
        self, cls: type[DataLoader[Any]], more: int, warns: bool
    ) -> None:
        cpus = len(os.sched_getaffinity(0))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = cls([0], num_workers=cpus + more)
        (*messages,) = (str(warning.message) for warning in caught)
        assert len(messages) == warns
        if warns:
            assert caught[0].category is UserWarning
            assert f"This DataLoader will create {cpus + more} worker" in messages[0]
            assert f"is {cpus}, which is smaller" in messages[0]
            assert ("process" in messages[0]) == ("freeze" in messages[0]) == (cls is DataLoader)
            assert (caught[0].filename == __file__) == (cls is MinatoLoader)
            with pytest.warns(UserWarning, match="will create"):
                loader.check_worker_number_rationality()
            # Once more when workers are about to be started.
            with pytest.warns(UserWarning, match="will create"):
                iter(loader)

    @pytest.mark.parametrize("cls", [DataLoader, MinatoLoader])
    def test_subclasses_may_switch_it_off(self, cls: Any) -> None:
        class Quiet(cls):  # type: ignore[misc]
            def check_worker_number_rationality(self) -> None:
                pass

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Quiet([0], num_workers=len(os.sched_getaffinity(0)) + 1)


@pytest.mark.parametrize("cls", [DataLoader, MinatoLoader])
@pytest.mark.parametrize("accelerator", [None, "mps"])
def test_memory_that_cannot_be_pinned(
    cls: Any, accelerator: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches come as they are, with a warning where the epoch begins."""
    device = None if accelerator is None else torch.device(accelerator)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: device is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    loader = cls(range(3), pin_memory=True)
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but") as caught:
        assert lists(loader) == [[0], [1], [2]]
    assert len(caught) == 1
    assert cls is DataLoader or not caught[0].filename.startswith(PACKAGE)


class TestOurOwn:
    @pytest.mark.parametrize(
        ("arguments", "error", "word"),
        [
            ({"prefetch_factor": 0, "num_workers": 1}, ValueError, "prefetch_factor"),
            ({"prefetch_factor": 1.5, "num_workers": 1}, TypeError, "number of batches"),
            ({"prefetch_factor": math.nan, "num_workers": 1}, TypeError, "number of batches"),
            ({"threshold_percentile": "75"}, TypeError, "must be a number"),
            ({"threshold_percentile": 0}, ValueError, "more than 0 and at most 100"),
            ({"max_queue_size": 0, "num_workers": 1}, ValueError, "at least 1 sample"),
            ({"max_queue_size": -1, "num_workers": 1}, ValueError, "at least 1 sample"),
            ({"max_queue_size": 1.5, "num_workers": 1}, TypeError, "max_queue_size"),
            ({"max_queue_size": True, "num_workers": 1}, TypeError, "max_queue_size"),
            ({"max_queue_size": 8}, ValueError, "num_workers"),
            ({"timeout": 5}, ValueError, "num_workers"),
            ({"scheduler": "no such"}, ValueError, "fixed"),
            ({"scheduler": 3}, TypeError, "WorkerScheduler"),
            ({"max_workers": 1, "num_workers": 2}, ValueError, "less than num_workers=2"),
            ({"max_displacement": -1}, ValueError, "at least 0 batch"),
            ({"max_displacement": 1.5}, TypeError, "max_displacement"),
            ({"max_displacement": True}, TypeError, "max_displacement"),
        ],
        ids=spelled,
    )
    def test_bad_arguments(
        self, arguments: dict[str, Any], error: type[Exception], word: str
    ) -> None:
        with pytest.raises(error, match=word) as caught:
            MinatoLoader(range(3), **arguments)
        assert caught.type is error

    def test_max_queue_size_alone(self) -> None:
        loader = MinatoLoader(range(7), 2, num_workers=2, max_queue_size=1)
        assert lists(loader) == [[0, 1], [2, 3], [4, 5], [6]]


class TestLength:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            number = 0
            while True:
                yield number
                number += 1

    def test_of_an_infinite_sampler(self, any_kind: LoaderKind) -> None:
        loader = any_kind(range(3), sampler=self.Endless())
        with pytest.raises(TypeError):
            len(loader)

    def test_of_the_iterator_is_that_of_the_loader(self, any_kind: LoaderKind) -> None:
        loader = any_kind(range(9), 2)
        with iterating(loader) as iterator:
            next(iterator)
            assert len(iterator) == len(loader) == 5  # type: ignore[arg-type]

    def test_with_a_batch_sampler(self, any_kind: LoaderKind) -> None:
        sampler = BatchSampler(SequentialSampler(range(9)), 2, drop_last=True)
        assert len(any_kind(range(9), batch_sampler=sampler)) == 4
