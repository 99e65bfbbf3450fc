"""What the user changes in a dataset between two epochs, for workers that have a copy of it."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

#: Attributes of attributes of ... that are looked at, and how many objects in all: a dataset may
#: refer to anything.
_DEPTH = 4
_OBJECTS = 1000
_SCALARS = (int, float, complex, str, bytes, bool, type(None))
_UNSEEN = object()

#: Names of attributes, from the dataset inwards.
Path = tuple[str, ...]


class Changes:
    """Finds what was set anew since the last time it was asked: any attribute of the dataset
    itself, and numbers, strings and the like in the objects that it refers to."""

    def __init__(self, dataset: Any) -> None:
        self._seen = dict(_attributes(dataset))

    def since_last(self, dataset: Any) -> dict[Path, bytes]:
        """What has changed and can be sent, pickled; what cannot, workers never see."""
        current = dict(_attributes(dataset))
        changed = {}
        for path, value in current.items():
            before = self._seen.get(path, _UNSEEN)
            if before is value or (type(before) is type(value) in _SCALARS and before == value):
                continue
            with contextlib.suppress(Exception):
                changed[path] = pickle.dumps(value)
        self._seen = current
        return changed


def apply(dataset: Any, changes: dict[Path, bytes]) -> None:
    """Make the same changes in a copy of the dataset, but for what cannot be unpickled here."""
    for path, pickled in changes.items():
        try:
            value = pickle.loads(pickled)
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
