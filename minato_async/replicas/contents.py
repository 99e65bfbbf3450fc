"""What containers hold: past what their classes make of it, and all at one moment."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def items_of(value: Any) -> list[Any]:
    """The items of a list, tuple, set or deque, or of a subclass of one: a class may have an
    `__iter__` that loads, changes or hides them."""
    cls = type(value)
    if issubclass(cls, list):
        return list.__getitem__(value, slice(None))
    if issubclass(cls, tuple):
        return list(tuple.__iter__(value))
    if issubclass(cls, set):
        return list(set().union(value))
    return _undisturbed(lambda: list(deque.__iter__(value)), lambda: _one_by_one(value))


def entries_of(value: Any) -> dict[Any, Any]:
    """The keys and values of a dictionary, or of a subclass."""
    cls: Any = type(value)
    if cls.__iter__ is dict.__iter__:
        return dict.copy(value)
    if not issubclass(cls, OrderedDict):
        return dict(list(dict.items(value)))
    # Its order is not that of the dictionary which it is as well, once an item was moved. Read so
    # while another thread changes it, one of free-threaded CPython 3.13 breaks: once is enough.
    try:
        return dict(OrderedDict.items(value))
    except (RuntimeError, KeyError):
        return dict(list(dict.items(value)))


def length_of(value: Any) -> int:
    """How many items a container has."""
    length: int = _base_of(value).__len__(value)
    return length


def first_of(value: Any) -> Any:
    """Its first item, or first value; None if it is empty."""
    base = _base_of(value)
    return next(iter(dict.values(value)) if base is dict else base.__iter__(value), None)


def _base_of(value: Any) -> Any:
    return next(base for base in _BASES if issubclass(type(value), base))


_BASES = (list, tuple, dict, set, deque)


def _undisturbed(read: Callable[[], T], otherwise: Callable[[], T]) -> T:
    # Threads of the user's may change it meanwhile, which ends such a loop.
    for _ in range(20):
        try:
            return read()
        except (RuntimeError, KeyError):
            continue
    return otherwise()


def _one_by_one(value: Any) -> list[Any]:
    items = []
    with suppress(IndexError):
        for n in range(deque.__len__(value)):
            items.append(deque.__getitem__(value, n))
    return items
