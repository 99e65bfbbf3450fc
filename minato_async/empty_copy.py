"""Objects without attributes, each of the class of an original, that are to become its copies."""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

from minato_async.attributes import attributes_of, slots_of

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
        self._cls = _guarded(cls) if hasattr(cls, "__del__") else cls
        self._known_to_cache = self._cls is cls and _has_cached_method(cls)

    def make(self, original: Any, worker: int, user: object) -> Any:
        """An object of the class of `original`, with no attribute set, for `worker`. As long as
        `user` lives, nobody else is given the same one. Raises TypeError if there can be none."""
        if self._known_to_cache:
            return _known_to_caches.again(original, worker, user)
        return object.__new__(self._cls)


# Finalizers


class Guarded:
    """Stands before a class with `__del__`: the one of a copy must not release what is the
    original's, a file that was open when the copy was made, or a folder that it made. It is called
    only if the worker has set what was None or missing then: a file that it opened at the first
    use, say."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Nobody is told of a new subclass: it is none of the user's."""

    def __del__(self) -> None:
        handed = _handed.pop(id(self), frozenset())
        if any(name not in handed for name in _names_set(self)):
            super().__del__()  # type: ignore[misc]


#: By the identity of a guarded copy: the attributes that it got from the original.
_handed: dict[int, frozenset[Any]] = {}


def note_handed(copy: Any) -> None:
    """A guarded copy has got its attributes from the original."""
    _handed[id(copy)] = _handed.get(id(copy), frozenset()) | _names_set(copy)


def _names_set(value: Any) -> frozenset[Any]:
    """Its attributes that are not None."""
    names = {name for name, v in (attributes_of(value) or {}).items() if v is not None}
    for slot in slots_of(type(value)):
        if getattr(value, slot.__name__, None) is not None:
            names.add(slot.__name__)
    return frozenset(names)


@functools.lru_cache(maxsize=256)
def _guarded(cls: type) -> type:
    # Not by calling the metaclass, which may be the user's.
    namespace = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type.__new__(type(cls), cls.__name__, (Guarded, cls), namespace)


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
