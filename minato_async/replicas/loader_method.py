"""A `collate_fn` that is a method of the loader itself, as PyG's loaders have.

Workers hold it. If that kept the loader, it would keep its persistent iterator, and that the
workers: they would end with the program and not with the loader.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader


def collates_itself(loader: DataLoader[Any]) -> bool:
    """Whether `loader` is needed to collate its batches: then its iterators are to keep it."""
    collate_fn: Any = loader.collate_fn
    return isinstance(collate_fn, types.MethodType) and collate_fn.__self__ is loader


def collate_fn_for_workers(loader: DataLoader[Any]) -> Callable[[Any], Any]:
    """The `collate_fn` of `loader`, which does not keep the loader."""
    collate_fn: Any = loader.collate_fn
    return WeakMethod(collate_fn) if collates_itself(loader) else collate_fn


class WeakMethod:
    """A bound method that does not keep its object, but for the time of a call."""

    def __init__(self, method: types.MethodType) -> None:
        self._object = weakref.ref(method.__self__)
        self._function = method.__func__

    def __call__(self, samples: Any) -> Any:
        kept = self._object()
        if kept is None:
            raise RuntimeError("nobody waits for this batch: its loader is gone")
        return self._function(kept, samples)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, WeakMethod)
            and self._object() is other._object()
            and self._function is other._function
        )

    def __hash__(self) -> int:
        return hash(self._function)

    def __reduce__(self) -> Any:
        # As any bound method: in another process nobody else keeps the object.
        return getattr, (self._object(), self._function.__name__)
