"""What a worker thread shares with the others, and what is its own.

Each worker has its own copy of every object that has attributes, from the dataset, the transforms
and the collate function inwards, and of containers of up to `LONG` items. Shared is data: tensors,
arrays, frames, strings, longer containers, functions, classes, modules, locks, and what cannot be
copied.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from minato_async.per_worker import per_worker
from minato_async.replicas.attributes import attributes_of
from minato_async.replicas.contents import entries_of, first_of, items_of, length_of

#: A container of more items is data, counted with the items of the containers inside it. One that
#: holds datasets is no data, however long it is.
LONG = 1000

#: In the attributes of an object: the names of those that all workers share.
_SHARED_NAMES = "_minato_shared"
#: Among these, stands for the object itself.
_ALL = "*"

_CONTAINERS = (list, dict, set, deque, tuple)
#: Of these each value is data.
_DATA: tuple[type, ...] = (
    *(torch.Tensor, torch.UntypedStorage, np.ndarray, np.generic),
    *(str, bytes, bytearray, memoryview, int, float, complex, enum.Enum),
    *(BaseException, type, types.ModuleType, per_worker),
    *(torch.jit.ScriptModule, torch.optim.Optimizer, DataLoader),
)
#: Libraries whose objects are data, or handles that a copy would not make safe to use.
_DATA_LIBRARIES = frozenset(
    (
        *("numpy", "scipy", "pandas", "polars", "pyarrow", "xarray", "PIL", "cv2"),
        *("h5py", "zarr", "tables", "netCDF4", "sqlalchemy"),
    )
)
#: Of the standard library only the classes of these modules are copied: those of the others stand
#: for threads, locks, files and the like.
_COPIED_STDLIB = frozenset(["collections", "types", "argparse", "configparser"])
#: Base classes that add nothing of their own which must not be copied.
_PLAIN_BASES = _COPIED_STDLIB | frozenset(
    (
        *("abc", "typing", "contextlib", "dataclasses", "builtins", "random", "numbers", "os"),
        *("html", "_markupbase", "json", "string", "ast"),
    )
)


T = TypeVar("T")


def share(owner: T, *names: str) -> T:
    """Let all worker threads share what each would otherwise have a copy of: a cache for all of
    them, a log, a queue. Returns `owner`.

    With `names`: the attributes of these names, of a dataset, a transform or any other object.
    Without: `owner` itself, wherever it is referred to. What is shared must be safe to use from
    several threads at once. Worker processes share nothing: there it has no effect.

    Raises TypeError if `owner` has no attributes, in which this could be noted.
    """
    attributes = attributes_of(owner)
    if attributes is None:
        raise TypeError(
            f"share() notes it in the object, and a {type(owner).__name__} has no __dict__: name "
            "the attribute of the object that holds it"
        )
    names = names or (_ALL,)
    attributes[_SHARED_NAMES] = attributes.get(_SHARED_NAMES, frozenset()) | set(names)
    return owner


def is_shared(attributes: dict[str, Any]) -> bool:
    """Whether the object with these attributes is shared by the user's wish."""
    return _ALL in shared_names(attributes)


def is_model(module: dict[str, Any]) -> bool:
    """Whether the module with these attributes has parameters, in itself or further inside."""
    if module.get("_parameters"):
        return True
    parts = (module.get("_modules") or {}).values()
    return any(is_model(vars(part)) for part in parts if part is not None)


def shared_names(attributes: dict[str, Any]) -> frozenset[str]:
    """The names in an object's `attributes` of those that all workers share."""
    names: frozenset[str] = attributes.get(_SHARED_NAMES, frozenset())
    return names


def is_long(container: Any) -> bool:
    """Whether a list, dict, set, deque or tuple is so long that it is data."""
    total, left = 0, [container]
    while left:
        items = left.pop()
        total += length_of(items)
        if total > LONG:
            return not _holds_datasets(container)
        left += (item for item in _items(items) if issubclass(type(item), _CONTAINERS))
    return False


def _items(container: Any) -> Iterator[Any]:
    if issubclass(type(container), dict):
        entries = entries_of(container)
        return chain(entries, entries.values())
    return iter(items_of(container))


def _holds_datasets(container: Any) -> bool:
    return issubclass(type(first_of(container)), Dataset)


def may_have_attributes(cls: type) -> bool:
    """Whether containers of `cls` are objects of the user's as well, with attributes."""
    return _top_module(cls) not in sys.stdlib_module_names and hasattr(cls, "__dict__")


def is_data(cls: type) -> bool:
    """Whether all instances of `cls` are shared, whatever they hold. Containers are not."""
    if issubclass(cls, _DATA):
        return True
    module = _top_module(cls)
    if module in _DATA_LIBRARIES:
        return True
    if module in sys.stdlib_module_names:
        return module not in _COPIED_STDLIB and module != "builtins" and cls not in _SPECIAL
    bases = set(map(_top_module, cls.__mro__))
    if "minato_async" in bases:
        return True
    return bool(bases & _DATA_LIBRARIES or (bases & sys.stdlib_module_names) - _PLAIN_BASES)


#: Copied in a way of their own.
_SPECIAL = frozenset(
    [functools.partial, type(functools.lru_cache(len)), weakref.ref, weakref.WeakMethod]
)


def _top_module(cls: type) -> str:
    return str(getattr(cls, "__module__", "")).partition(".")[0]


def constants_of(cls: type) -> dict[int, Any]:
    """Its own objects that `cls` has under names such as `TRAIN`, by their identity. They are
    compared by it with what an attribute holds, as the members of an enumeration are."""
    return {
        id(value): value
        for base in cls.__mro__[:-1]
        for name, value in vars(base).items()
        if name.isupper() and not name.startswith("_") and type(value) is cls
    }


def is_sentinel_class(cls: type) -> bool:
    """Whether objects of `cls` that have no attributes will never have any, as the class has no
    method that might set one. They are known by their identity."""
    return cls is not types.SimpleNamespace and not any(
        isinstance(method, types.FunctionType) and name not in _SILENT_METHODS
        for base in cls.__mro__[:-1]
        for name, method in vars(base).items()
    )


_SILENT_METHODS = frozenset(
    (
        *("__repr__", "__str__", "__bool__", "__eq__", "__hash__", "__reduce__", "__reduce_ex__"),
        *("__copy__", "__deepcopy__", "__new__", "__init__", "__init_subclass__"),
        "__class_getitem__",
    )
)
