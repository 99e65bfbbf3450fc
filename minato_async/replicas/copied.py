"""What a replica has copies of: how each kind is filled, and follows its original."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import chain
from operator import is_
from typing import Any, Protocol

from minato_async.replicas import sharing
from minato_async.replicas.attributes import attributes_of, slots_of
from minato_async.replicas.contents import entries_of, items_of

_MISSING = object()


class Target(Protocol):
    """A replica, as its copies see it."""

    def mapped(self, value: Any) -> Any:
        """What stands for `value` there, which is copied now if it has to be."""

    def known(self, value: Any) -> Any:
        """What stands for `value` there, if it has been copied for something else."""


class Copied:
    """An original, its copy, and what was seen in the original when the copy was last filled."""

    __slots__ = ("copy", "original", "seen")

    def __init__(self, original: Any, copy: Any) -> None:
        self.original = original
        self.copy = copy
        self.seen: Any = ()

    def of(self, copy: Any) -> Copied:
        """The same for another copy."""
        other = self._another(copy)
        other.seen = self.seen
        return other

    def _another(self, copy: Any) -> Copied:
        return type(self)(self.original, copy)

    @property
    def hashes(self) -> bool:
        """Filling it may call `__hash__` of what goes in, which has to be filled before."""
        return False

    def has_changed(self) -> bool:
        return not _same(self.now(), self.seen)

    def now(self) -> Any:
        """What there is to see in the original."""
        raise NotImplementedError

    def parts(self) -> Iterator[Any]:
        """What the original referred to when it was seen last."""
        return _parts_of(self.seen)

    def parts_now(self) -> Iterator[Any]:
        return _parts_of(self.now())

    def update(self, replica: Target) -> None:
        """Bring the copy up to date."""
        raise NotImplementedError

    def forget(self, stale: set[int]) -> bool:
        """What stands for the values of these identities has changed; True if there are any here,
        for `update` to take over."""
        seen = self.seen
        if not any(id(part) in stale for part in _parts_of(seen)):
            return False
        kept: Any = ()
        if type(seen) is dict:
            kept = {k: v for k, v in seen.items() if id(v) not in stale and id(k) not in stale}
        self.seen = kept
        return True


def _parts_of(seen: Any) -> Iterator[Any]:
    return chain(seen, seen.values()) if type(seen) is dict else iter(seen)


def _same(now: Any, seen: Any) -> bool:
    """By identity: comparing would be code of the user's."""
    if type(now) is dict:
        return (
            type(seen) is dict
            and len(now) == len(seen)
            and all(map(is_, now, seen))
            and all(map(is_, now.values(), seen.values()))
        )
    return len(now) == len(seen) and all(map(is_, now, seen))


class CopiedObject(Copied):
    """An object with attributes, in its dictionary or in slots."""

    __slots__ = ("_slots",)

    def __init__(self, original: Any, copy: Any, slots: tuple[Any, ...]) -> None:
        super().__init__(original, copy)
        self._slots = slots
        self.seen = {}

    def _another(self, copy: Any) -> CopiedObject:
        return CopiedObject(self.original, copy, self._slots)

    def now(self) -> dict[Any, Any]:
        # A copy, for other threads may set attributes meanwhile.
        now: dict[Any, Any] = dict(attributes_of(self.original) or {})
        for slot in self._slots:
            try:
                now[slot] = slot.__get__(self.original)
            except AttributeError:  # never set
                continue
        return now

    def update(self, replica: Target) -> None:
        now, seen, attributes = self.now(), self.seen, attributes_of(self.copy)
        shared = sharing.shared_names(now)
        for name, value in now.items():
            if seen.get(name, _MISSING) is value:
                continue
            own = value if name in shared else replica.mapped(value)
            if type(name) is types.MemberDescriptorType:
                name.__set__(self.copy, own)
            else:
                assert attributes is not None
                attributes[name] = own
        for name in [name for name in seen if name not in now]:
            if type(name) is types.MemberDescriptorType:
                if _is_set(name, self.copy):
                    name.__delete__(self.copy)
            elif attributes is not None:
                attributes.pop(name, None)
        self.seen = now

    def restore(self, undo: Callable[[Any], bool], replica: Target) -> None:
        """Set the attributes that the worker has set, and that `undo` holds for, to what the
        original had when it was seen last."""
        attributes = attributes_of(self.copy) or {}
        held: list[tuple[Any, Any]] = list(attributes.items())
        held += [
            (slot, slot.__get__(self.copy)) for slot in self._slots if _is_set(slot, self.copy)
        ]
        for name, value in held:
            original = self.seen.get(name, _MISSING)
            if value is original or not undo(value):
                continue
            in_slot = type(name) is types.MemberDescriptorType
            if original is _MISSING:
                name.__delete__(self.copy) if in_slot else attributes.pop(name)
            elif in_slot:
                name.__set__(self.copy, replica.mapped(original))
            else:
                attributes[name] = replica.mapped(original)


def _is_set(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


class _WithAttributes(Copied):
    """What is more than its attributes, but may have some too, as one of the user's subclass."""

    __slots__ = ("_attributes", "_shallow")

    #: Classes whose objects have attributes only if somebody has set some.
    _bare: frozenset[type] = frozenset()

    def __init__(self, original: Any, copy: Any, shallow: bool = False) -> None:
        super().__init__(original, copy)
        #: So many items that they are data: those of the original are those of the copy.
        self._shallow = shallow
        self._attributes: CopiedObject | None = None
        attributes = attributes_of(original)
        if attributes is not None and attributes is original:
            # Its items are its attributes: `self.__dict__ = self`.
            object.__setattr__(copy, "__dict__", copy)
            return
        slots = tuple(
            slot for slot in slots_of(type(original)) if slot.__objclass__ not in self._bare
        )
        if slots or attributes or (attributes is not None and type(original) not in self._bare):
            self._attributes = CopiedObject(original, copy, slots)

    def _another(self, copy: Any) -> Copied:
        return type(self)(self.original, copy, self._shallow)

    def of(self, copy: Any) -> Copied:
        other = super().of(copy)
        assert isinstance(other, _WithAttributes)
        if self._attributes is not None and other._attributes is not None:
            other._attributes.seen = self._attributes.seen
        return other

    def has_changed(self) -> bool:
        attributes = self._attributes
        return super().has_changed() or (attributes is not None and attributes.has_changed())

    def parts(self) -> Iterator[Any]:
        attributes = self._attributes.parts() if self._attributes is not None else ()
        return chain(() if self._shallow else super().parts(), attributes)

    def parts_now(self) -> Iterator[Any]:
        attributes = self._attributes.parts_now() if self._attributes is not None else ()
        return chain(() if self._shallow else super().parts_now(), attributes)

    def forget(self, stale: set[int]) -> bool:
        forgotten = self._attributes is not None and self._attributes.forget(stale)
        return (not self._shallow and super().forget(stale)) or forgotten

    def update(self, replica: Target) -> None:
        if self._attributes is not None:
            self._attributes.update(replica)
        now = self.now()
        if not self.seen or not _same(now, self.seen):
            self._fill(now, _itself if self._shallow else replica.mapped)
            self.seen = now

    def _fill(self, now: Any, mapped: Callable[[Any], Any]) -> None:
        raise NotImplementedError


def _itself(value: Any) -> Any:
    return value


class CopiedDict(_WithAttributes):
    """A dictionary, of whatever class."""

    __slots__ = ()

    _bare = frozenset([dict, OrderedDict, defaultdict])

    def __init__(self, original: Any, copy: Any, shallow: bool = False) -> None:
        super().__init__(original, copy, shallow)
        self.seen = {}

    @property
    def hashes(self) -> bool:
        return any(type(key) not in _PLAIN_KEYS for key in self.now())

    def now(self) -> dict[Any, Any]:
        return entries_of(self.original)

    def _fill(self, now: dict[Any, Any], mapped: Callable[[Any], Any]) -> None:
        seen, copy = self.seen, self.copy
        cls: Any = OrderedDict if issubclass(type(copy), OrderedDict) else dict
        for key in [key for key in seen if key not in now]:
            own = mapped(key)
            if dict.__contains__(copy, own):
                cls.__delitem__(copy, own)
        for key, value in now.items():
            if seen.get(key, _MISSING) is not value:
                cls.__setitem__(copy, mapped(key), mapped(value))
        if issubclass(type(copy), defaultdict):
            factory: Any = vars(defaultdict)["default_factory"]
            factory.__set__(copy, mapped(factory.__get__(self.original)))


_PLAIN_KEYS = frozenset([str, int, bytes, float, bool, type(None)])


class CopiedItems(_WithAttributes):
    """A list, a set or a deque, of whatever class."""

    __slots__ = ()

    _bare = frozenset([list, set, deque])

    @property
    def hashes(self) -> bool:
        return issubclass(type(self.original), set)

    def now(self) -> list[Any]:
        return items_of(self.original)

    def _fill(self, now: list[Any], mapped: Callable[[Any], Any]) -> None:
        copy, cls = self.copy, type(self.copy)
        items = [mapped(item) for item in now]
        if issubclass(cls, list):
            list.__setitem__(copy, slice(None), items)
        elif issubclass(cls, set):
            set.clear(copy)
            set.update(copy, items)
        else:
            deque.clear(copy)
            deque.extend(copy, items)


class CopiedPartial(_WithAttributes):
    """A `functools.partial`."""

    __slots__ = ()

    _bare = frozenset([functools.partial])

    def now(self) -> dict[Any, Any]:
        value = self.original
        return {None: value.func, **dict(enumerate(value.args)), **value.keywords}

    def _fill(self, now: dict[Any, Any], mapped: Callable[[Any], Any]) -> None:
        own = {name: mapped(value) for name, value in now.items()}
        args = tuple(value for name, value in own.items() if type(name) is int)
        keywords = {name: value for name, value in own.items() if isinstance(name, str)}
        state = own[None], args, keywords, attributes_of(self.copy)
        vars(functools.partial)["__setstate__"](self.copy, state)


class CopiedCell(Copied):
    """A variable of a function that functions inside it refer to."""

    __slots__ = ()

    def now(self) -> list[Any]:
        return [content_of(self.original)]

    def update(self, replica: Target) -> None:
        self.seen = self.now()
        self.copy.cell_contents = replica.mapped(self.seen[0])


def content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


class CopiedBuffer(Copied):
    """A `BytesIO`, whose position is the worker's own."""

    __slots__ = ()

    # On free-threaded Python getvalue() of several threads at once is not safe.
    _lock = threading.Lock()

    def now(self) -> list[Any]:
        with self._lock:
            return [self.original.getvalue()]

    def update(self, replica: Target) -> None:
        self.seen = self.now()
        self.copy.__init__(self.seen[0])  # shares the bytes until it is written to
        self.copy.seek(self.original.tell())


class CopiedWeakly(Copied):
    """A `WeakKeyDictionary`, `WeakValueDictionary` or `WeakSet`. Nothing is copied for it alone of
    what it does not keep: filled last, when it is known what else has a copy."""

    __slots__ = ()

    def __init__(self, original: Any, copy: Any) -> None:
        super().__init__(original, copy)
        self.seen = {}

    def now(self) -> dict[Any, Any]:
        data = self.original.data
        return dict.copy(data) if type(data) is dict else dict.fromkeys(items_of(data))

    def parts(self) -> Iterator[Any]:
        if isinstance(self.original, weakref.WeakValueDictionary):
            return iter(self.seen)
        return iter(self.seen.values())

    parts_now = parts

    def forget(self, stale: set[int]) -> bool:
        return False

    def update(self, replica: Target) -> None:
        now, seen, copy = self.now(), self.seen, self.copy
        self.seen = now
        added = {key: value for key, value in now.items() if seen.get(key, _MISSING) is not value}
        for key in [key for key in seen if key not in now]:
            if isinstance(copy, weakref.WeakValueDictionary):
                copy.pop(replica.mapped(key), None)
            elif (former := key()) is not None:
                copy.discard(replica.known(former)) if isinstance(copy, weakref.WeakSet) else (
                    copy.pop(replica.known(former), None)
                )
        for key, value in added.items():
            if isinstance(copy, weakref.WeakValueDictionary):
                if (held := value()) is not None:
                    copy[replica.mapped(key)] = replica.known(held)
            elif (held := key()) is not None:
                if isinstance(copy, weakref.WeakSet):
                    copy.add(replica.known(held))
                else:
                    copy[replica.known(held)] = replica.mapped(value)
