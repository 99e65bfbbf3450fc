"""Objects that only the thread that made them may use."""

from __future__ import annotations

import sys
from typing import Any

from minato_async.replicas.attributes import attributes_of

#: How far inside what a worker has made they are looked for.
_DEPTH = 3


def bound_classes() -> tuple[type, ...]:
    """The classes of such objects, as far as the program has imported them."""
    sqlite3 = sys.modules.get("sqlite3")
    return (sqlite3.Connection, sqlite3.Cursor) if sqlite3 is not None else ()


def holds_bound(value: Any, bound: tuple[type, ...], depth: int = _DEPTH) -> bool:
    """Whether `value` is one of these, or an object or a container with one inside."""
    cls = type(value)
    if issubclass(cls, bound):
        return True
    if not depth or cls in _PLAIN:
        return False
    inside: Any = attributes_of(value) if cls not in _CONTAINERS else value
    if not inside or isinstance(value, type) or len(inside) > _MANY:
        return False
    inside = list(inside.values()) if isinstance(inside, dict) else list(inside)
    return any(holds_bound(item, bound, depth - 1) for item in inside)


_PLAIN = frozenset([str, int, float, bool, bytes, type(None)])
_CONTAINERS = frozenset([dict, list, tuple, set])
#: Connections are few.
_MANY = 100
