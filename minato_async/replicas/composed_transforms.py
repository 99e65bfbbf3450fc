"""Checkpoints between the parts of the composed transforms of a worker's own dataset."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from operator import is_
from typing import Any, TypeVar

import torch
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset

from minato_async.checkpoint import checkpoint
from minato_async.replicas.attributes import attributes_of
from minato_async.replicas.contents import entries_of, items_of

T = TypeVar("T")

#: The attributes under which datasets keep their transforms, by custom.
TRANSFORM_ATTRIBUTES = ("transform", "transforms", "target_transform")


def add_checkpoints(dataset: Any, own: Container[int] | None = None) -> None:
    """Put a checkpoint between the parts of the composed transforms of `dataset`, and of what
    torch's containers of datasets hold.

    They are changed in place, so `dataset` must be the calling worker's own; `own` has the
    identities of what is its own behind that, None stands for everything.

    Composed are: an `nn.Sequential`, a list, and whatever keeps a list or tuple in `transforms` and
    is called, as torchvision's and MONAI's `Compose` do. Who goes over the parts passes the
    checkpoints. They are no parts themselves: libraries count the parts, address them by their
    position and ask for their classes, as MONAI's caches do.
    """
    left = [dataset]
    while left:
        dataset = left.pop()
        left += _inside(dataset)
        attributes = attributes_of(dataset) or {}
        for name in TRANSFORM_ATTRIBUTES:
            transform = attributes.get(name)
            if type(transform) in (list, Parts):
                if own is None or id(transform) in own or type(transform) is Parts:
                    attributes[name] = _with_checkpoints(transform)
            elif own is None or id(transform) in own:
                _add_between_parts(transform)


def _inside(dataset: Any) -> list[Any]:
    cls = type(dataset)
    if cls is Subset:
        return [dataset.dataset]
    if cls in (ConcatDataset, ChainDataset, StackDataset):
        parts = dataset.datasets
        return list(parts.values() if isinstance(parts, dict) else parts)
    return []


def _add_between_parts(transform: Any) -> None:
    attributes = attributes_of(transform) or {}
    name = "_modules" if type(transform) is torch.nn.Sequential else "transforms"
    parts = attributes.get(name)
    if type(parts) in (list, tuple, Parts, TupleOfParts) and name == "transforms":
        attributes[name] = _with_checkpoints(parts)
    elif isinstance(parts, dict) and name == "_modules":
        attributes[name] = parts = parts if type(parts) is Modules else Modules(parts)
        parts.follow()


def _with_checkpoints(parts: Any) -> Any:
    if type(parts) is Parts:
        parts.follow()
    elif type(parts) is list:
        return Parts(parts) if all(map(callable, parts)) else parts
    elif type(parts) is tuple:
        return TupleOfParts(parts)
    return parts


def _passing(parts: Iterable[T]) -> Iterator[T]:
    for n, part in enumerate(parts):
        if n:
            checkpoint()
        yield part


class Parts(list[Any]):
    """A list, with a checkpoint between two items for whoever goes over it."""

    def __init__(self, source: list[Any]) -> None:
        super().__init__(source)
        #: The worker's own list that it stands for, and what that held when it was seen last.
        self.source = source
        self._seen = items_of(source)

    def __iter__(self) -> Iterator[Any]:
        return _passing(super().__iter__())

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Parts(found) if isinstance(key, slice) else found

    def follow(self) -> None:
        """Take over what was changed in `source`, as it is when the user changed the original."""
        now = items_of(self.source)
        if len(now) != len(self._seen) or not all(map(is_, now, self._seen)):
            self[:] = self._seen = now

    def settle(self) -> list[Any]:
        """`source`, with the changes that were made here."""
        self.source[:] = self._seen = items_of(self)
        return self.source

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (items_of(self),)


class TupleOfParts(tuple[Any, ...]):
    """As `Parts`."""

    source: tuple[Any, ...]

    def __new__(cls, source: tuple[Any, ...]) -> TupleOfParts:
        self = super().__new__(cls, source)
        self.source = source
        return self

    def __iter__(self) -> Iterator[Any]:
        return _passing(super().__iter__())

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return TupleOfParts(found) if isinstance(key, slice) else found

    def settle(self) -> tuple[Any, ...]:
        return self.source

    def __reduce_ex__(self, protocol: Any) -> Any:
        return tuple, (items_of(self),)


class Modules(dict[str, Any]):
    """As `Parts`: the modules of an `nn.Sequential`."""

    def __init__(self, source: dict[str, Any]) -> None:
        super().__init__(source)
        self.source = source
        self._seen = entries_of(source)

    def values(self) -> Any:
        return _passing(super().values())

    def follow(self) -> None:
        now = entries_of(self.source)
        if now.keys() != self._seen.keys() or not all(map(is_, now.values(), self._seen.values())):
            self._seen = now
            self.clear()
            self.update(now)

    def settle(self) -> dict[str, Any]:
        self._seen = entries_of(self)
        self.source.clear()
        self.source.update(self._seen)
        return self.source

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (entries_of(self),)
