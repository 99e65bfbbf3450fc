"""`minato_async.patch`: ours where torch's class is looked up, and back."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import itertools
import pickle
import sys
import threading
import types
import warnings
from abc import ABC
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch.utils.data
from torch.utils.data import DataLoader, IterableDataset

import minato_async
from minato_async import MinatoLoader
from tests.loaders import on_each_executor
from tests.semantics.support import PATIENCE, InThread, lists

_kept: list[Any] = [DataLoader]


def torchs_class() -> Any:
    """Not a name of this module: that would be bound anew, as all others are."""
    return _kept[0]


@pytest.fixture(autouse=True)
def taken_back() -> Iterator[None]:
    yield
    assert torch.utils.data.DataLoader is torchs_class()
    assert torch.utils.data.dataloader.DataLoader is torchs_class()
    assert DataLoader is torchs_class()


@pytest.fixture
def library() -> Iterator[types.ModuleType]:
    """A module that is not there yet; what it has in the end is looked at by the test."""
    module = types.ModuleType("a_library_of_loaders")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def import_by_name(module: types.ModuleType) -> None:
    exec("from torch.utils.data import DataLoader as Loader", vars(module))


def test_it_stands_wherever_torchs_class_is_looked_up(library: types.ModuleType) -> None:
    import_by_name(library)
    with minato_async.patch() as patch:
        assert torch.utils.data.DataLoader is patch.loader
        assert torch.utils.data.dataloader.DataLoader is patch.loader
        assert library.Loader is patch.loader
        assert DataLoader is patch.loader  # this module's own
        assert issubclass(patch.loader, MinatoLoader)
        loader = DataLoader(cast(Any, range(6)), batch_size=4)
    assert library.Loader is torchs_class()
    assert isinstance(loader, MinatoLoader)
    assert lists(loader) == [[0, 1, 2, 3], [4, 5]]


def test_it_lasts_until_it_is_undone() -> None:
    patch = minato_async.patch()
    assert DataLoader is patch.loader
    patch.undo()
    assert DataLoader is torchs_class()
    with minato_async.patch() as other:
        patch.undo()  # a second time: nothing is left to take back
        assert DataLoader is other.loader


def test_a_module_that_is_imported_meanwhile_is_given_torchs_class_back(
    library: types.ModuleType,
) -> None:
    with minato_async.patch() as patch:
        import_by_name(library)
        assert library.Loader is patch.loader
        assert library is sys.modules["a_library_of_loaders"]
    assert library.Loader is torchs_class()


def test_only_what_is_still_ours_is_taken_back(library: types.ModuleType) -> None:
    import_by_name(library)
    with minato_async.patch():
        library.Loader = chosen = object()
    assert library.Loader is chosen


def test_a_lazy_module_is_not_awakened() -> None:
    spec = importlib.util.find_spec("this")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    sys.modules["this"] = lazy
    try:
        minato_async.patch().undo()
        assert type(lazy) is not types.ModuleType
    finally:
        del sys.modules["this"]


@pytest.mark.parametrize("first", [0, 1])
def test_patches_may_be_nested_and_undone_in_any_order(
    first: int, library: types.ModuleType
) -> None:
    import_by_name(library)
    patches = [minato_async.patch(in_order=True), minato_async.patch(seed=3)]
    inner: Any = DataLoader(cast(Any, range(4)))
    assert (inner.in_order, inner.seed) == (None, 3)
    patches.pop(first).undo()
    assert library.Loader is patches[0].loader
    patches[0].undo()
    assert library.Loader is torchs_class()


def test_threads_may_patch_at_once(library: types.ModuleType) -> None:
    import_by_name(library)
    barrier = threading.Barrier(4)

    def often() -> None:
        barrier.wait(PATIENCE)
        for _ in range(5):
            with minato_async.patch():
                assert issubclass(library.Loader, MinatoLoader)

    for thread in [InThread(often) for _ in range(4)]:
        thread.result()
    assert library.Loader is torchs_class()


# Defaults


def test_defaults_are_for_loaders_that_say_nothing() -> None:
    with minato_async.patch(in_order=True, seed=5):
        silent: Any = DataLoader(cast(Any, range(4)))
        own: Any = MinatoLoader(range(4))
        told: Any = DataLoader(cast(Any, range(4)), in_order=False)
    assert (silent.in_order, silent.seed) == (True, 5)
    assert (told.in_order, told.seed) == (False, 5)
    assert (own.in_order, own.seed) == (None, None)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_a_default_that_makes_no_sense_for_a_loader_is_left_out_there() -> None:
    with minato_async.patch(
        max_queue_size=64, sample_timeout=60.0, on_error="skip", iterable_mode="shared",
        assignment="batch",
        prefetch_factor=3, persistent_workers=True, max_workers=2, max_displacement=1,
    ):  # fmt: skip
        serial: Any = DataLoader(cast(Any, range(4)))
        stream: Any = DataLoader(Stream(), num_workers=1)
        workers: Any = DataLoader(cast(Any, range(4)), None, False, None, None, 3)
    assert (serial.max_queue_size, serial.on_error, serial.prefetch_factor) == (None, "skip", None)
    assert (stream.on_error, stream.iterable_mode, stream.prefetch_factor) == ("raise", "shared", 3)
    assert (stream.assignment, workers.assignment) == ("dynamic", "batch")
    assert (workers.max_queue_size, workers.sample_timeout, workers.iterable_mode) == (
        64,
        60.0,
        "sharded",
    )
    assert workers.persistent_workers
    assert workers.max_workers == 3  # never less than it starts with


@pytest.mark.parametrize(
    ("defaults", "error", "words"),
    [
        ({"in_ordr": True}, TypeError, "in_order"),
        ({"dataset": [1]}, TypeError, "'dataset'"),
        ({"transforms": [len]}, TypeError, "'transforms'"),
        ({"in_order": "yes"}, ValueError, "in_order"),
        ({"seed": "x"}, TypeError, "seed"),
        ({"executor": "gpu"}, ValueError, "executor"),
        ({"max_queue_size": 0}, ValueError, "max_queue_size"),
        ({"iterable_mode": "x"}, ValueError, "iterable_mode"),
        ({"on_error": "x"}, ValueError, "on_error"),
    ],
)
def test_bad_defaults_fail_when_they_are_given(
    defaults: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        minato_async.patch(**defaults)
    assert DataLoader is torchs_class()


def test_a_loader_with_bad_arguments_fails_as_ours_does() -> None:
    with minato_async.patch():
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            DataLoader(cast(Any, range(4)), nonsense=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="dataset"):
            DataLoader()  # type: ignore[call-arg]


# It is torch's class to whoever asks


def test_isinstance_and_issubclass_answer_as_with_torchs_class() -> None:
    before = DataLoader(cast(Any, range(4)))

    class Early(DataLoader[int]):
        pass

    early = Early(cast(Any, range(4)))
    with pytest.warns(UserWarning, match="Early"):
        patch = minato_async.patch()
    with patch:
        made = DataLoader(cast(Any, range(4)))

        class Late(patch.loader):  # type: ignore[name-defined,misc]
            pass

        late = Late(range(4))
        for loader in (before, early, made, late):
            assert isinstance(loader, patch.loader)
            assert isinstance(loader, torchs_class())
            assert issubclass(type(loader), patch.loader)
            assert isinstance(loader, Late) == (loader is late)
            assert issubclass(type(loader), Late) == (loader is late)
        assert not isinstance(range(4), patch.loader)
    assert isinstance(late, torchs_class())


def test_it_can_be_derived_from_together_with_an_abstract_class() -> None:
    with minato_async.patch(in_order=True):

        class Mine(DataLoader[Any], ABC):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.mine = True

        made: Any = Mine(cast(Any, range(4)), 2)
    after: Any = Mine(cast(Any, range(4)), 2)
    for loader in (made, after):
        assert isinstance(loader, MinatoLoader)
        assert loader.in_order
        assert lists(loader) == [[0, 1], [2, 3]]


def test_the_constructor_has_the_real_signature() -> None:
    """Lightning makes loaders anew from it. With `**kwargs` there it loses arguments."""
    ours = inspect.signature(MinatoLoader.__init__).parameters
    with minato_async.patch(in_order=True, seed=4) as patch:
        loader = DataLoader(cast(Any, range(4)))
    for shown in (patch.loader.__init__, patch.loader):
        parameters = dict(inspect.signature(shown).parameters)
        parameters.pop("self", None)
        assert list(parameters) == [name for name in ours if name != "self"]
    bound = inspect.signature(loader.__init__).parameters  # type: ignore[misc]
    defaults = {name: parameter.default for name, parameter in bound.items()}
    assert defaults == {name: p.default for name, p in ours.items() if name != "self"} | {
        "in_order": True,
        "seed": 4,
    }


@on_each_executor
def test_loaders_can_be_pickled_and_copied() -> None:
    with minato_async.patch(in_order=True, max_queue_size=9) as patch:
        loader: Any = DataLoader(cast(Any, range(6)), 2, shuffle=True, num_workers=1)
        pickled = pickle.dumps(loader)
        assert type(pickle.loads(pickled)) is patch.loader
    # Its class is nowhere under a name now.
    for twin in (pickle.loads(pickled), pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert type(twin) is patch.loader
        assert (twin.in_order, twin.max_queue_size) == (True, 9)
        assert sorted(itertools.chain(*lists(twin))) == list(range(6))


def test_a_pickled_class_is_made_anew_where_there_is_no_patch() -> None:
    with minato_async.patch(in_order=True) as patch:
        pickled = pickle.dumps(DataLoader(cast(Any, range(4))))
    key = patch.loader._made_for[0]  # type: ignore[attr-defined]
    # As in another process, which does not know the class.
    other = pickle.loads(pickled.replace(key.encode(), b"0" * len(key)))
    assert type(other) is not patch.loader
    assert isinstance(other, MinatoLoader)
    assert type(other)(range(4)).in_order is True


# What it cannot reach


def test_classes_that_were_derived_before_are_told_once() -> None:
    class EarlyBird(DataLoader[int]):
        pass

    with pytest.warns(UserWarning, match=r"EarlyBird.*call patch\(\) before") as warned:
        patch = minato_async.patch()
    patch.undo()
    assert warned[0].filename == __file__
    assert any("EarlyBird" in name for name in patch.out_of_reach)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with minato_async.patch() as again:
            # A class of another test may have been freed meanwhile.
            assert set(again.out_of_reach) <= set(patch.out_of_reach)
            assert any("EarlyBird" in name for name in again.out_of_reach)
            assert not isinstance(EarlyBird(cast(Any, range(4))), MinatoLoader)


def test_our_own_modules_keep_torchs_class() -> None:
    with minato_async.patch():
        from minato_async import loader, patching

        assert vars(loader)["DataLoader"] is torchs_class()
        assert patching.TorchLoader is torchs_class()
