"""Objects without attributes, each of the class of an original, that are to become its copies."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from abc import ABCMeta
from typing import Any

from minato_async.replicas.attributes import attributes_of, has_own_dict, slots_of

_LRU = type(functools.lru_cache(len))
_POINTER = tuple.__itemsize__


class EmptyCopies:
    """Makes empty copies of objects of one class.

    Raises TypeError where an object of that class is more than its attributes.
    """

    def __init__(self, cls: Any) -> None:
        #: The descriptors of the slots of its objects.
        self.slots = slots_of(cls)
        # At most a dictionary and the list of its weak references beside the slots: all else is
        # C's.
        fields = len(self.slots) + 2
        if cls.__basicsize__ > object.__basicsize__ + _POINTER * fields or cls.__itemsize__:
            raise TypeError(f"a {cls.__name__} is more than its attributes")
        if not has_own_dict(cls):
            raise TypeError(f"a {cls.__name__} shows the attributes of something else")
        is_namespace = issubclass(cls, types.SimpleNamespace)
        self._new: Any = (types.SimpleNamespace if is_namespace else object).__new__
        self._cls = _guarded(cls) if hasattr(cls, "__del__") else cls
        self._known_to_cache = self._cls is cls and _has_cached_method(cls)

    def make(self, original: Any, worker: int, user: object) -> Any:
        """An object of the class of `original`, with no attribute set, for `worker`. As long as
        `user` lives, nobody else is given the same one. Raises TypeError if there can be none."""
        if self._known_to_cache:
            return _known_to_caches.again(original, worker, user)
        return self._new(self._cls)


# Finalizers


class Guarded:
    """Stands before a class with `__del__`, which is not called for a copy, as in a worker process
    that ends: what it releases may be the original's, such as a folder or a connection that was
    there when the copy was made. What the worker has opened is closed when nobody refers to it."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Nobody is told of a new subclass: it is none of the user's."""

    def __del__(self) -> None:
        """Nothing."""


@functools.lru_cache(maxsize=256)
def _guarded(cls: type) -> type:
    # Not by calling the metaclass, which may be the user's. But an abstract base class without a
    # register of its own would write into its base's which classes are no subclasses of it.
    meta: Any = ABCMeta if issubclass(type(cls), ABCMeta) else type
    namespace = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    guarded: type = meta.__new__(type(cls), cls.__name__, (Guarded, cls), namespace)
    return guarded


# Caches


def _has_cached_method(cls: type) -> bool:
    return any(isinstance(value, _LRU) for base in cls.__mro__ for value in vars(base).values())


class _KnownToCaches:
    """Copies of objects whose class has an `lru_cache` on a method. The cache keeps them, and knows
    them by their identity: so one that nobody uses is used again, and neither are its entries
    lost nor do others pile up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By the identity of the original and the number of the worker: weak references to the
        #: original, the copy and its user.
        self._copies: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def again(self, original: Any, worker: int, user: object) -> Any:
        key = id(original), worker
        with self._lock:
            before, copy, used_by = (ref() for ref in self._copies.get(key, (_dead,) * 3))
            if before is not original or copy is None or used_by is not None:
                copy = object.__new__(type(original))
            try:
                self._copies[key] = weakref.ref(original), weakref.ref(copy), weakref.ref(user)
            except TypeError:  # of a class with slots and no place for weak references
                return copy
            if len(self._copies) > self._full:
                self._clean()
        (attributes_of(copy) or {}).clear()
        return copy

    #: Entries at which those are dropped whose copy is gone.
    _full = 64

    def _clean(self) -> None:
        self._copies = {key: refs for key, refs in self._copies.items() if refs[1]() is not None}
        self._full = 64 + 2 * len(self._copies)


def _dead() -> None:
    """As a weak reference to what is no more."""


_known_to_caches = _KnownToCaches()
