"""What the user changes in a dataset between two epochs, for workers that have a copy of it."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

#: Attributes of attributes of ... that are looked at, and how many objects in all: a dataset may
#: refer to anything.
_DEPTH = 4
_OBJECTS = 1000
_SCALARS = (int, float, complex, str, bytes, bool, type(None))
_UNSEEN = object()

#: Names of attributes, from the dataset inwards.
Path = tuple[str, ...]


class Change(NamedTuple):
    """A new value, pickled, and the epoch before which it was set."""

    epoch: int
    value: bytes


class Changes:
    """Finds what was set anew since the dataset was copied: any attribute of the dataset itself,
    and numbers, strings and the like in the objects that it refers to."""

    def __init__(self, dataset: Any) -> None:
        self._seen = dict(_attributes(dataset))
        #: The last change of each attribute. None is forgotten: a worker that replaces another has
        #: the dataset as it was at first.
        self._changed: dict[Path, Change] = {}

    def before(self, epoch: int, dataset: Any) -> dict[Path, Change]:
        """All changes up to that epoch, which begins, that can be sent; what cannot, workers never
        see."""
        current = dict(_attributes(dataset))
        for path, value in current.items():
            before = self._seen.get(path, _UNSEEN)
            if before is value or (type(before) is type(value) in _SCALARS and before == value):
                continue
            with contextlib.suppress(Exception):
                change = Change(epoch, pickle.dumps(value))
                # What was set inside the object that was there before is not inside this one.
                inside = [p for p in self._changed if p[: len(path)] == path]
                for old in inside:
                    del self._changed[old]
                self._changed[path] = change
        self._seen = current
        return dict(self._changed)


def apply(dataset: Any, changes: dict[Path, Change]) -> None:
    """Make the same changes in a copy of the dataset, but for what cannot be unpickled here."""
    for path, change in changes.items():
        try:
            value = pickle.loads(change.value)
        except BaseException:
            continue
        owner = dataset
        for name in path[:-1]:
            owner = getattr(owner, "__dict__", {}).get(name)
        if hasattr(owner, "__dict__"):
            owner.__dict__[path[-1]] = value


def _attributes(dataset: Any) -> Iterator[tuple[Path, Any]]:
    """Attributes of the dataset, and scalars further inside."""
    seen = {id(dataset)}
    objects: list[tuple[Path, Any]] = [((), dataset)]
    for path, owner in objects:
        attributes = getattr(owner, "__dict__", None)
        if type(attributes) is not dict:  # a class, say, or none at all
            continue
        # A copy: threads of the dataset may set attributes meanwhile.
        for name, value in list(attributes.items()):
            here = (*path, name)
            if not path or type(value) in _SCALARS:
                yield here, value
            if type(value) in _SCALARS or isinstance(value, type) or len(here) > _DEPTH:
                continue
            if id(value) not in seen and len(objects) < _OBJECTS:
                seen.add(id(value))
                objects.append((here, value))
