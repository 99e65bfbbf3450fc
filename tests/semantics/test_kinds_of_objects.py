"""A worker's own copies of what programs are made of: subclasses of containers, weak references,
functions with default values, constants that are compared by identity."""

from __future__ import annotations

import functools
import io
import os
import threading
import types
import weakref
from collections import OrderedDict, deque
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from minato_async.replicas.replica import Replica

from .test_replicas import Plain, code


def owner_of(value: Any, **others: Any) -> Any:
    """A worker's dataset that holds `value` and the others."""
    return Replica(code(Plain(value=value, **others)), 0).code.dataset


class OwnList(list):  # type: ignore[type-arg]
    """Shows other items than it holds."""

    def __iter__(self) -> Any:
        return (10 * item for item in super().__iter__())

    def __len__(self) -> int:
        raise AssertionError("called")


class OwnDict(dict):  # type: ignore[type-arg]
    """Loads what it is asked for."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("called")

    __iter__ = keys = values = items = __len__ = __getitem__  # type: ignore[assignment]


class OwnOrderedDict(OrderedDict):  # type: ignore[type-arg]
    __getitem__ = __iter__ = keys = values = items = OwnDict.__getitem__  # type: ignore[assignment]


class OwnSet(set):  # type: ignore[type-arg]
    __iter__ = __len__ = __contains__ = OwnDict.__getitem__  # type: ignore[assignment]


class OwnDeque(deque):  # type: ignore[type-arg]
    __iter__ = __len__ = copy = OwnDict.__getitem__  # type: ignore[assignment]


class Attributed(dict):  # type: ignore[type-arg]
    """Its items are its attributes, as in the widespread recipe."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


class InSlots(list):  # type: ignore[type-arg]
    __slots__ = ("helper",)


class WithAttributes(list):  # type: ignore[type-arg]
    epoch = 0


class TestSubclassesOfContainers:
    @pytest.mark.parametrize(
        ("cls", "base"),
        [
            (OwnList, list),
            (OwnDict, dict),
            (OwnOrderedDict, OrderedDict),
            (OwnSet, set),
            (OwnDeque, deque),
        ],
    )
    def test_what_they_hold_is_copied_not_what_they_show(self, cls: Any, base: Any) -> None:
        def held(value: Any) -> list[Any]:
            return list(base.items(value) if issubclass(base, dict) else base.__iter__(value))

        value = cls([(2, 1), (1, 2)])
        mine = owner_of(value).value

        assert type(mine) is cls
        assert mine is not value
        assert held(mine) == held(value)

    def test_whose_items_are_their_attributes(self) -> None:
        mine = owner_of(Attributed(a=1, inner=Attributed(b=[2]))).value
        mine["new"], mine.other = 1, 2

        assert vars(mine) is mine
        assert (mine.new, mine["other"], mine.inner.b) == (1, 2, [2])

    def test_with_slots(self) -> None:
        value = InSlots([1])
        value.helper = Plain()
        mine = owner_of(value).value

        assert mine == [1]
        assert type(mine.helper) is Plain
        assert mine.helper is not value.helper

    def test_attributes_follow_the_original_and_stay_the_worker_s(self) -> None:
        value = WithAttributes([1])
        value.helper, value.file = Plain(), None
        replica = Replica(code(Plain(value=value)), 0)
        mine = replica.code.dataset.value
        mine.file, helper = "open", mine.helper
        value.epoch = 1
        replica.refresh()
        assert mine.epoch == 1
        value.append(2)
        replica.refresh()

        assert (mine.file, mine) == ("open", [1, 2])
        assert mine.helper is helper

    def test_of_many_items_too_are_objects_with_attributes(self) -> None:
        items = [[n] for n in range(2000)]
        value = WithAttributes(items)
        replica = Replica(code(value), 0)
        mine = replica.code.dataset
        mine.file = "open"

        assert not hasattr(value, "file")
        assert mine[7] is items[7]
        value.append([2000])
        replica.refresh()
        assert (mine[2000], mine.file) == ([2000], "open")
        assert replica.fork().code.dataset.file == "open"

    def test_frozen_sets_of_objects(self) -> None:
        inner = Plain()
        mine = owner_of(frozenset([inner, 1]), inner=inner)

        assert mine.inner in mine.value
        assert inner not in mine.value


class TestAttributes:
    def test_under_names_that_are_no_plain_strings(self) -> None:
        value = Plain()
        setattr(value, np.array(["a"])[0], [1])
        vars(value)[3] = 4

        assert vars(owner_of(value).value) == {"a": [1], 3: 4}

    def test_in_slots_that_are_emptied_on_both_sides(self) -> None:
        class Slots:
            __slots__ = ("a",)

        value = Slots()
        value.a = 1
        replica = Replica(code(Plain(value=value)), 0)
        del replica.code.dataset.value.a, value.a
        replica.refresh()

        assert not hasattr(replica.code.dataset.value, "a")

    def test_a_stand_in_that_shows_another_s_is_shared(self) -> None:
        class StandIn:
            __slots__ = ("_object",)
            __dict__ = property(lambda self: vars(self._object))  # type: ignore[assignment]

            def __init__(self, value: Any) -> None:
                object.__setattr__(self, "_object", value)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._object, name)

        value = StandIn(Plain(x=1))

        assert owner_of(value).value is value

    def test_constants_of_a_class_are_known_by_identity(self) -> None:
        class Split:
            TRAIN: Any

            def __init__(self, name: str) -> None:
                self.name = name

        Split.TRAIN = Split("train")
        mine = owner_of(Split.TRAIN, other=Split("train"))

        assert mine.value is Split.TRAIN
        assert mine.other is not Split.TRAIN


class Namespace(types.SimpleNamespace):
    """Of the user's."""


class Path(os.PathLike):  # type: ignore[type-arg]
    def __fspath__(self) -> str:
        return "x"


class Stripper(HTMLParser):
    """Keeps the text of a page in itself."""


@pytest.mark.parametrize("cls", [Namespace, Path, Stripper])
def test_classes_of_the_user_s_on_plain_classes_of_the_standard_library(cls: Any) -> None:
    value = cls()
    value.found = [1]
    mine = owner_of(value).value

    assert type(mine) is cls
    assert mine.found == [1]
    assert mine.found is not value.found


class TestWeakReferences:
    def test_of_each_kind_refer_to_what_is_the_worker_s(self) -> None:
        value = Plain()
        value.proxy = Plain(back=weakref.proxy(value))
        value.method_of = weakref.WeakMethod(value.method)
        mine = owner_of(value).value
        mine.x = 1

        assert mine.proxy.back.x == 1
        assert mine.method_of()() is mine
        assert not hasattr(value, "x")

    def test_in_containers(self) -> None:
        inner, other = Plain(), Plain()
        keys = weakref.WeakKeyDictionary({inner: [1], other: [2]})
        values, items = weakref.WeakValueDictionary({"a": inner}), weakref.WeakSet([inner])
        replica = Replica(code(Plain(all=[keys, values, items], inner=inner)), 0)
        mine = replica.code.dataset
        own_keys, own_values, own_items = mine.all

        assert own_keys[mine.inner] == [1]
        assert own_keys[mine.inner] is not keys[inner]
        assert inner not in own_keys
        assert own_values["a"] is mine.inner
        assert list(own_items) == [mine.inner]
        # What nobody else here has stays the original.
        assert own_keys[other] == [2]

        keys[inner], values["b"] = [3], inner
        items.discard(inner)
        replica.refresh()
        assert (own_keys[mine.inner], own_values["b"], len(own_items)) == ([3], mine.inner, 0)


class TestFunctions:
    def test_objects_in_default_values(self) -> None:
        inner, log = Plain(), [1]

        def load(index: int, by: Any = inner, *, also: Any = inner, note: Any = log) -> Any:
            return by, also, note

        mine = owner_of(load, inner=inner)
        by, also, note = mine.value(0)

        assert by is also is mine.inner
        assert note is log

    def test_variables_that_are_set_anew_between_two_epochs(self) -> None:
        augment = Plain(strength=1)

        def load() -> Any:
            return augment

        replica = Replica(code(Plain(load=load)), 0)
        former, augment = augment, Plain(strength=2)
        replica.refresh()

        assert replica.code.dataset.load().strength == 2
        assert replica.code.dataset.load() is not augment
        assert former is not augment

    def test_a_variable_of_two_functions_is_one(self) -> None:
        current = Plain()

        def get() -> Any:
            return current

        def put(value: Any) -> None:
            nonlocal current
            current = value

        mine = owner_of(get, put=put)
        mine.put("the worker's")

        assert mine.value() == "the worker's"
        assert type(get()) is Plain

    def test_partial_objects(self) -> None:
        class Named(functools.partial):  # type: ignore[type-arg]
            pass

        dataset = Plain()
        dataset.named = Named(Plain.method, dataset)
        dataset.part = part = functools.partial(dict, owner=dataset, epoch=0)
        functools.update_wrapper(part, owner_of)
        dataset.itself = functools.partial(print)
        dataset.itself.__setstate__((dataset.itself, (), {}, {}))
        replica = Replica(code(dataset), 0)
        mine = replica.code.dataset
        part.keywords["epoch"] = 3
        replica.refresh()

        assert type(mine.named) is Named
        assert mine.named() is mine
        assert mine.part.__name__ == "owner_of"
        assert mine.part(more=1) == {"owner": mine, "epoch": 3, "more": 1}
        assert mine.itself.func is mine.itself


def test_a_buffer_in_memory_has_a_position_for_each_worker() -> None:
    value = io.BytesIO(b"abcdef")
    value.seek(2)
    replica = Replica(code(Plain(value=value)), 0)
    mine = replica.code.dataset.value

    assert (mine.read(2), value.read(2), mine.read(1)) == (b"cd", b"cd", b"e")
    replica.refresh()
    assert mine.read(1) == b"f"
    value.write(b"xyz")
    replica.refresh()
    assert mine.getvalue() == b"abcdxyz"


# Without an OrderedDict: on free-threaded Python 3.13 it may not be read while another changes it.
@pytest.mark.parametrize("container", [{1}, deque([1]), [1], {"a": 1}])
def test_what_another_thread_changes_meanwhile_is_copied(container: Any) -> None:
    """The training loop goes on while workers start."""
    stop = threading.Event()

    def change() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            if isinstance(container, dict):
                container[n % 50] = n
                container.pop(n % 50 - 1, None)
            elif isinstance(container, set):
                container.add(n % 50)
                container.discard(n % 50 - 1)
            else:
                container.append(n)
                container.pop()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(30):
            mine = owner_of(container).value
            assert mine is not container
    finally:
        stop.set()
        thread.join()


def test_long_chains_need_no_stack() -> None:
    head = node = Plain()
    call: Any = head.method
    for _ in range(5000):
        node.next = Plain(before=node)
        node = node.next
        call = functools.partial(functools.partial.__call__, call, 1)
    mine = owner_of(head, call=call)
    node, count = mine.value, 0
    while hasattr(node, "next"):
        assert node.next.before is node
        node, count = node.next, count + 1
    assert count == 5000
