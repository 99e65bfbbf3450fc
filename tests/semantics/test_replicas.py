"""What a worker thread changes is its own: which objects it has a copy of, and which are shared."""

from __future__ import annotations

import abc
import copy
import enum
import functools
import gc
import random
import threading
import types
import warnings
import weakref
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, default_collate

from minato_async import per_worker, share
from minato_async.replicas.composed_transforms import Parts
from minato_async.replicas.replica import Code, Replica


class Plain:
    """An object with whatever attributes it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def method(self) -> Plain:
        return self


def code(dataset: Any, *transforms: Any, collate_fn: Any = default_collate) -> Code:
    return Code(dataset, transforms, collate_fn, None, "raise")


def own(value: Any) -> Any:
    """What stands for `value` in a worker, as an attribute of its dataset."""
    return Replica(code(Plain(value=value)), 0).code.dataset.value


class Color(enum.Enum):
    RED = 1


class Slots:
    __slots__ = ("__private", "handle", "unset")

    def __init__(self) -> None:
        self.handle = None
        self.__private = []

    def private(self) -> list[int]:
        return self.__private


class ByNew:
    def __new__(cls, needed: int) -> ByNew:
        return super().__new__(cls)

    def __init__(self, needed: int) -> None:
        self.needed = needed


class OwnDict(dict):  # type: ignore[type-arg]
    name = ""


@dataclass
class Record:
    items: list[int] = field(default_factory=list)


Point = namedtuple("Point", ["x", "y"])


class Sentinel:
    def __repr__(self) -> str:
        return "nothing"


class Drawing:
    """Has no attributes yet."""

    def draw(self) -> None:
        self.start = 3


def _module() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Flatten())


class TestCopied:
    @pytest.mark.parametrize(
        "value",
        [
            Plain(x=1),
            Slots(),
            ByNew(3),
            Record(),
            Drawing(),
            _module(),
            types.SimpleNamespace(x=1),
            [1],
            {1: 2},
            {1, 2},
            deque([1], 4),
            OrderedDict(a=1),
            defaultdict(list, a=[1]),
            Counter("aab"),
            OwnDict(a=1),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_a_worker_may_change(self, value: Any) -> None:
        mine = own(value)

        assert mine is not value
        assert type(mine) is type(value)
        assert str(mine).split(" object ")[0] == str(value).split(" object ")[0]

    def test_inside_containers_and_objects(self) -> None:
        inner = Plain()
        values = [inner, [inner], (1, inner), {"a": inner}, Point(inner, 2), {inner}, {inner: 1}]
        values += [Plain(x=inner), functools.partial(print, inner), deque([inner])]
        mine = own(values)

        own_inner = mine[0]
        assert own_inner is not inner
        assert mine[1][0] is mine[2][1] is mine[3]["a"] is mine[4].x is mine[7].x is own_inner
        assert next(iter(mine[5])) is next(iter(mine[6])) is mine[8].args[0] is own_inner
        assert mine[9][0] is own_inner
        assert type(mine[4]) is Point

    def test_slots_with_private_names_and_unset_ones(self) -> None:
        value = Slots()
        mine = own(value)
        mine.private().append(1)

        assert value.private() == []
        assert not hasattr(mine, "unset")

    def test_kept_properties_of_containers(self) -> None:
        assert own(deque([1, 2], 2)).maxlen == 2
        assert list(own(OrderedDict(b=1, a=2))) == ["b", "a"]
        owner = Plain()
        owner.table = defaultdict(owner.method)
        mine = own(owner)
        assert mine.table["missing"] is mine

    def test_objects_are_hashed_when_they_have_their_attributes(self) -> None:
        class Keyed:
            def __init__(self, key: int) -> None:
                self.key = key

            def __hash__(self) -> int:
                return hash(self.key)

            def __eq__(self, other: Any) -> bool:
                return isinstance(other, Keyed) and self.key == other.key

        mine = own({"set": {Keyed(1)}, "table": {Keyed(2): "two"}})

        assert Keyed(1) in mine["set"]
        assert mine["table"][Keyed(2)] == "two"

    @pytest.mark.parametrize("count", [1200])
    def test_datasets_however_many(self, count: int) -> None:
        parts: list[Dataset[Any]] = [Rows() for _ in range(count)]
        mine = Replica(code(ConcatDataset(parts)), 0).code.dataset

        assert all(a is not b for a, b in zip(parts, mine.datasets, strict=True))


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.handle: Any = None

    def __len__(self) -> int:
        return 1


class TestShared:
    @pytest.mark.parametrize(
        "value",
        [
            torch.zeros(2),
            torch.nn.Parameter(torch.zeros(1)),
            np.zeros(2),
            "text",
            b"bytes",
            bytearray(3),
            Color.RED,
            len,
            print,
            default_collate,
            Plain,
            random,
            threading.Lock(),
            threading.Event(),
            threading.local(),
            per_worker(list),
            Sentinel(),
            object(),
            ValueError("x"),
            range(3),
            frozenset([1]),
            (1, "two"),
            list(range(1001)),
            {n: [n] for n in range(600)},
            iter([1, 2]),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_data_and_what_cannot_be_copied(self, value: Any) -> None:
        assert own(value) is value

    def test_a_model(self) -> None:
        model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2))

        assert own(model) is model

    def test_containers_that_a_function_closes_over(self) -> None:
        log: list[int] = []

        def note() -> None:
            log.append(1)

        assert own(note) is note

    def test_variables_that_a_function_sets_in_another(self) -> None:
        count, helper = 0, Plain()

        def note() -> Plain:
            nonlocal count
            count += 1
            return helper

        assert own(note)() is not helper
        assert count == 1

    def test_attributes_that_are_declared(self) -> None:
        cache: dict[str, int] = {}
        dataset = Plain(cache=cache, other=[])
        share(dataset, "cache")
        mine = Replica(code(dataset), 0).code.dataset

        assert mine.cache is cache
        assert mine.other is not dataset.other
        with pytest.raises(TypeError, match="no __dict__"):
            share(Slots(), "handle")


class TestReferences:
    def test_bound_methods_and_tables_of_them(self) -> None:
        dataset = Plain()
        dataset.decode = dataset.method
        dataset.table = {"raw": dataset.method}
        dataset.partial = functools.partial(dataset.method)
        dataset.get = [].__len__
        dataset.items = [1]
        dataset.item = dataset.items.__getitem__
        mine = Replica(code(dataset), 0).code.dataset

        assert mine.decode() is mine.table["raw"]() is mine.partial() is mine
        mine.items[0] = 7
        assert mine.item(0) == 7

    def test_helpers_that_refer_back(self) -> None:
        dataset = Plain()
        dataset.helper = Plain(owner=dataset, weak=weakref.ref(dataset))
        mine = Replica(code(dataset), 0).code.dataset

        assert mine.helper.owner is mine.helper.weak() is mine

    def test_weak_references_to_others_are_not_followed(self) -> None:
        other = Plain()
        mine = own(Plain(trainer=weakref.ref(other)))

        assert mine.trainer() is other

    def test_functions_made_in_a_method(self) -> None:
        dataset = Plain(rows=[])
        dataset.read = lambda: dataset
        dataset.through = {"method": functools.partial(dataset.read)}
        mine = Replica(code(dataset), 0).code.dataset

        assert mine.read() is mine
        assert mine.through["method"]() is mine

    def test_functions_that_refer_to_themselves_and_each_other(self) -> None:
        helper = Plain()

        def even(n: int) -> Any:
            return helper if n == 0 else odd(n - 1)

        def odd(n: int) -> Any:
            return None if n == 0 else even(n - 1)

        mine = own([even, helper])

        assert mine[0](4) is mine[1] is not helper

    def test_a_cache_in_an_attribute(self) -> None:
        dataset = Plain()
        dataset.load = functools.lru_cache(maxsize=7)(dataset.method)
        mine = Replica(code(dataset), 0).code.dataset

        assert mine.load() is mine
        assert mine.load.cache_parameters()["maxsize"] == 7

    def test_between_the_parts_of_a_loader(self) -> None:
        dataset = Plain()
        transform = Plain(dataset=dataset)
        original = Code(dataset, [transform], dataset.method, dataset.method, dataset.method)
        mine = Replica(original, 0).code

        assert mine.transforms[0].dataset is mine.dataset
        functions: list[Any] = [mine.collate_fn, mine.worker_init_fn, mine.on_error]
        assert all(function() is mine.dataset for function in functions)


class TestRefresh:
    def test_what_was_set_anew_arrives_and_what_the_worker_set_stays(self) -> None:
        inner = Plain(epoch=0)
        dataset = Plain(inner=inner, items=[1], table={"a": 1, "b": 2}, old=1)
        replica = Replica(code(dataset), 0)
        mine = replica.code.dataset
        mine.handle, mine.inner.handle = "open", "open"
        inner.epoch = 1
        dataset.items.append(2)
        dataset.table["a"] = 5
        del dataset.table["b"], dataset.old
        dataset.new = Plain(back=dataset)
        replica.refresh()

        assert replica.code.dataset is mine
        assert (mine.handle, mine.inner.handle, mine.inner.epoch) == ("open", "open", 1)
        assert mine.items == [1, 2]
        assert mine.table == {"a": 5}
        assert not hasattr(mine, "old")
        assert mine.new.back is mine

    def test_what_was_replaced_is_forgotten(self) -> None:
        dataset = Plain(inner=Plain())
        replica = Replica(code(dataset), 0)
        former = weakref.ref(dataset.inner)
        own_former = weakref.ref(replica.code.dataset.inner)
        dataset.inner = Plain()
        replica.refresh()
        gc.collect()

        assert former() is None
        assert own_former() is None

    def test_a_fork_has_the_state_and_follows_the_original(self) -> None:
        dataset = Plain(epoch=0, inner=Plain())
        replica = Replica(code(dataset), 0)
        replica.code.dataset.handle = ["open"]
        other = replica.fork()
        dataset.epoch = 4
        other.refresh()
        theirs, mine = other.code.dataset, replica.code.dataset

        assert (theirs.handle, theirs.epoch, mine.epoch) == (["open"], 4, 0)
        assert theirs.inner is not mine.inner
        assert theirs.handle is not mine.handle


class TestFinalizers:
    def test_are_the_originals_alone(self) -> None:
        """A folder that the original has made, a connection that it has open: there when a copy
        is gone, whatever else its worker has set."""
        released: list[Any] = []

        class Database:
            def __init__(self) -> None:
                self.folder = "of the original"
                self.cursor: Any = None

            def __del__(self) -> None:
                released.append(self.folder)

        original = Database()
        replica = Replica(code(Plain(file=original)), 0)
        file = replica.code.dataset.file
        assert isinstance(file, Database)
        file.cursor, file.count = "of the worker", 1
        del replica, file
        gc.collect()

        assert released == []
        del original
        gc.collect()
        assert released == ["of the original"]

    def test_what_the_worker_has_opened_is_closed(self) -> None:
        class Lazy:
            file: Any = None

            def __del__(self) -> None: ...

        replica = Replica(code(Lazy()), 0)
        replica.code.dataset.file = open(__file__)  # noqa: SIM115
        closed = weakref.ref(replica.code.dataset.file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del replica
            gc.collect()

        assert closed() is None

    def test_an_abstract_class_keeps_its_subclasses(self) -> None:
        class Base(abc.ABC):  # noqa: B024
            def __del__(self) -> None:  # noqa: B027
                pass

        class Derived(Base): ...

        derived = Derived()
        assert not isinstance(derived, type(own(Base())))
        assert isinstance(derived, Base)

    def test_copies_with_finalizers_can_be_copied_again(self) -> None:
        class File:
            def __init__(self) -> None:
                self.name = "x"

            def __del__(self) -> None: ...

        assert copy.copy(own(File())).name == "x"


class TestGenerators:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: random.Random(5),
            lambda: np.random.RandomState(5),
            lambda: np.random.default_rng(5),
            lambda: torch.Generator().manual_seed(5),
        ],
    )
    def test_two_workers_do_not_draw_alike_and_the_original_not_at_all(self, make: Any) -> None:
        def draw(generator: Any) -> Any:
            if isinstance(generator, torch.Generator):
                return torch.rand(1, generator=generator).item()
            return generator.random()

        held = make()
        drawn = [
            draw(Replica(code(Plain(rng=held)), number).code.dataset.rng) for number in (0, 1, 0)
        ]

        assert drawn[0] == drawn[2]
        assert len({*drawn, draw(held)}) == 3
        assert draw(make()) == pytest.approx(draw(make()))


def test_containers_of_torch_get_checkpoints_inside() -> None:
    from tests.lanes.test_checkpoint import Compose

    transform = Compose([len, len])
    inner = Plain(transform=transform)
    for dataset in (
        Subset(inner, [0]),  # type: ignore[arg-type]
        ConcatDataset([Subset(inner, [0])]),  # type: ignore[arg-type]
        StackDataset(Subset(inner, [0])),  # type: ignore[arg-type]
    ):
        mine: Any = Replica(code(dataset), 0).code.dataset
        while not hasattr(mine, "transform"):
            mine = mine.dataset if hasattr(mine, "dataset") else mine.datasets[0]
        assert type(mine.transform.transforms) is Parts
    assert len(transform.transforms) == 2
