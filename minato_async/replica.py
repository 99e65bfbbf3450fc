"""A worker thread's own copy of the user's objects that run in it.

A process of its own would have such a copy by having been forked. Here it is made object by
object, by what `sharing.py` says: every object keeps its class, one memo keeps the references
between them intact, and neither constructors nor copy methods are called, as a fork calls none.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any

import torch

from minato_async import sharing
from minato_async.attributes import attributes_of
from minato_async.compose import add_checkpoints
from minato_async.empty_copy import EmptyCopies, Guarded, note_handed
from minato_async.own_generators import GENERATORS, own_generator
from minato_async.own_method import WeakMethod

_MISSING = object()
_LRU = type(functools.lru_cache(len))


@dataclass(frozen=True)
class Code:
    """What of the user's runs in a worker."""

    dataset: Any
    transforms: Sequence[Callable[[Any], Any]]
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], None] | None
    #: "raise", "skip", or a function that replaces a failed sample.
    on_error: Any

    def parts(self) -> list[Any]:
        return [
            self.dataset,
            *self.transforms,
            self.collate_fn,
            self.worker_init_fn,
            self.on_error,
        ]


class Replica:
    """`code` as one worker has it. Has one user at a time.

    What the user changes in the original reaches it at the next `refresh`; what the worker has
    changed stays.
    """

    def __init__(self, code: Code, number: int) -> None:
        self._original = code
        self._number = number
        #: By the identity of an original, which is kept alive for that: what stands for it here.
        self._memo: dict[int, tuple[Any, Any]] = {}
        #: The copies among these.
        self._copies: dict[int, _Copied] = {}
        self._to_fill: list[_Copied] = []
        #: Weak references, by identity. Nothing is copied for them alone, so they are the worker's
        #: own only if what they refer to is, which is known when all else is copied.
        self._weak: dict[int, Any] = {}
        self._kinds: dict[type, Callable[[Replica, Any], Any]] = dict(_KINDS)
        #: By class: how to make empty objects of it, and whether those without attributes stand for
        #: themselves.
        self._classes: dict[type, tuple[EmptyCopies, bool]] = {}
        self.code = self._follow()

    def is_of(self, code: Code) -> bool:
        """Whether it stands for that code, and not for what a user has set in its place."""
        parts, own = code.parts(), self._original.parts()
        return len(parts) == len(own) and all(map(_same_part, parts, own))

    def fork(self) -> Replica:
        """Another one, in the state in which this one is now."""
        clone = Replica(self.code, self._number)
        own = clone._memo
        clone._original = self._original
        clone._memo = {}
        for key, (value, copy) in self._memo.items():
            clone._memo[key] = value, own.get(id(copy), (copy, copy))[1]
        clone._copies = {
            key: copied.of(clone._memo[key][1]) for key, copied in self._copies.items()
        }
        clone._weak = dict(self._weak)
        return clone

    def refresh(self) -> None:
        """Take over what was set anew in the originals since the last time: attributes, and the
        items of containers."""
        changed = [copied for copied in self._copies.values() if copied.has_changed()]
        if changed:
            self._to_fill += changed
            self.code = self._follow()
            self._forget_unreached()

    def _follow(self) -> Code:
        """Copy all that can be reached and has no copy yet."""
        code = self._mapped_code()
        self._fill()
        if self._point_back():
            code = self._mapped_code()
            self._fill()
        add_checkpoints(code.dataset, {id(copied.copy) for copied in self._copies.values()})
        return code

    def _mapped_code(self) -> Code:
        code = self._original
        return Code(
            self.mapped(code.dataset),
            [self.mapped(transform) for transform in code.transforms],
            self.mapped(code.collate_fn),
            self.mapped(code.worker_init_fn),
            self.mapped(code.on_error),
        )

    def _fill(self) -> None:
        hashing: list[_Copied] = []
        while self._to_fill or hashing:
            if not self._to_fill:
                hashing.pop().update(self)
                continue
            copied = self._to_fill.pop()
            if not copied.hashes:
                copied.update(self)
                continue
            # Not before what goes in has its attributes: its hash may depend on them.
            hashing.append(copied)
            for part in copied.parts_now():
                self.mapped(part)

    def mapped(self, value: Any) -> Any:
        """What stands for `value` in this replica: a copy, to be filled later, or `value`."""
        kind = self._kind(type(value))
        if kind is _shared:
            return value
        known = self._memo.get(id(value))
        if known is not None:
            return known[1]
        try:
            made = kind(self, value)
        except Exception:  # what cannot be copied is shared
            made = value
        self._memo.setdefault(id(value), (value, made))
        return made

    def _kind(self, cls: type) -> Callable[[Replica, Any], Any]:
        kind = self._kinds.get(cls)
        if kind is None:
            kind = self._kinds[cls] = _kind_of(cls)
        return kind

    def _keep(self, copied: _Copied) -> Any:
        self._copies[id(copied.original)] = copied
        self._memo[id(copied.original)] = copied.original, copied.copy
        self._to_fill.append(copied)
        return copied.copy

    def _point_back(self) -> bool:
        """Let weak references to an object which has a copy here refer to the copy. True: there
        were some, and what holds them has to be filled again."""
        stale: set[int] = set()
        for key, reference in self._weak.items():
            target = self._copies.get(id(reference()))
            if target is not None and self._memo[key][1]() is not target.copy:
                self._memo[key] = reference, weakref.ref(target.copy)
                stale.add(key)
        if not stale:
            return False
        size = 0
        while size < len(stale):  # bound methods, tuples and the like made with the former ones
            size = len(stale)
            for key, (value, _) in list(self._memo.items()):
                if key not in self._copies and any(id(p) in stale for p in _referred_to(value)):
                    stale.add(key)
        for key in stale - self._weak.keys():
            del self._memo[key]
        for copied in self._copies.values():
            if copied.forget(stale):
                self._to_fill.append(copied)
        return True

    def _forget_unreached(self) -> None:
        """Keep nothing of what the originals do not refer to any more."""
        memo, copies, code = self._memo, self._copies, self._original
        self._memo, self._copies = {}, {}
        left = code.parts()
        while left:
            value = left.pop()
            key = id(value)
            if key in self._memo or key not in memo:
                continue
            self._memo[key] = memo[key]
            if key in copies:
                self._copies[key] = copies[key]
                left += copies[key].parts()
            else:
                left += _referred_to(value)
        self._weak = {key: value for key, value in self._weak.items() if key in self._memo}

    # Kinds

    def _object(self, value: Any) -> Any:
        cls = type(value)
        empty, is_sentinel = self._classes.get(cls) or self._learn(cls)
        attributes = attributes_of(value) or {}
        if (is_sentinel and not attributes) or sharing.is_shared(attributes):
            return value
        if isinstance(value, torch.nn.Module) and sharing.is_model(attributes):
            return value
        return self._keep(_Object(value, empty.make(value, self._number, self), empty.slots))

    def _learn(self, cls: type) -> tuple[EmptyCopies, bool]:
        empty = EmptyCopies(cls)
        is_sentinel = not empty.slots and sharing.is_sentinel_class(cls)
        self._classes[cls] = empty, is_sentinel
        return self._classes[cls]

    def _container(self, value: Any) -> Any:
        if sharing.is_long(value):
            return value
        cls = type(value)
        make = next(make for base, make in _EMPTY.items() if issubclass(cls, base))
        copied = _Mapping if issubclass(cls, dict) else _Items
        return self._keep(copied(value, make(value, cls)))

    def _tuple(self, value: Any) -> Any:
        if sharing.is_long(value):
            return value
        items = [self.mapped(item) for item in value]
        if all(map(is_, items, value)):
            return value
        made = tuple.__new__(type(value), items)
        made_of = attributes_of(value)
        if made_of:
            vars(made).update({name: self.mapped(item) for name, item in made_of.items()})
        return made

    def _method(self, value: Any) -> Any:
        owner = self.mapped(value.__self__)
        return value if owner is value.__self__ else types.MethodType(value.__func__, owner)

    def _builtin_method(self, value: Any) -> Any:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return value
        own = self.mapped(owner)
        return value if own is owner else getattr(own, value.__name__)

    def _partial(self, value: Any) -> Any:
        parts = value.func, *value.args, *value.keywords.values()
        own = [self.mapped(part) for part in parts]
        if all(map(is_, own, parts)):
            return value
        count = 1 + len(value.args)
        keywords = dict(zip(value.keywords, own[count:], strict=True))
        return functools.partial(own[0], *own[1:count], **keywords)

    def _cached(self, value: Any) -> Any:
        """An `lru_cache` that is an attribute."""
        wrapped = value.__wrapped__
        own = self.mapped(wrapped)
        return value if own is wrapped else functools.lru_cache(**value.cache_parameters())(own)

    def _generator(self, value: Any) -> Any:
        return own_generator(value, self._number)

    def _namespace(self, value: Any) -> Any:
        return self._keep(_Object(value, types.SimpleNamespace(), ()))

    def _reference(self, value: Any) -> Any:
        self._weak[id(value)] = value
        return value

    def _function(self, value: types.FunctionType) -> Any:
        """Functions are shared. Those that were made in another refer to its variables: objects are
        the worker's own there too. Containers are not: what a function writes down in one is meant
        to be read by others."""
        cells = value.__closure__ or ()
        # A cell that stays the same is one variable for all, as `nonlocal` may need it.
        own_cells = [types.CellType() if self._is_object_in(cell) else cell for cell in cells]
        if all(map(is_, own_cells, cells)):
            return value
        function = types.FunctionType(
            value.__code__, value.__globals__, value.__name__, value.__defaults__, tuple(own_cells)
        )
        functools.update_wrapper(function, value)
        del function.__wrapped__  # type: ignore[attr-defined]
        function.__kwdefaults__ = value.__kwdefaults__
        self._memo[id(value)] = value, function  # what it refers to may refer to it
        same = True
        for cell, own in zip(cells, own_cells, strict=True):
            if own is not cell:
                own.cell_contents = self.mapped(cell.cell_contents)
                same = same and own.cell_contents is cell.cell_contents
        if same:
            self._memo[id(value)] = value, value
        return self._memo[id(value)][1]

    def _is_object_in(self, cell: types.CellType) -> bool:
        return self._kind(type(_content(cell))) in _OBJECT_KINDS


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _kind_of(cls: type) -> Callable[[Replica, Any], Any]:
    if issubclass(cls, GENERATORS):
        return Replica._generator if cls in GENERATORS else _shared
    if sharing.is_data(cls):
        return _shared
    if issubclass(cls, (dict, list, set, deque)):
        return Replica._container
    return Replica._tuple if issubclass(cls, tuple) else Replica._object


def _same_part(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, WeakMethod) and one == other)


def _referred_to(value: Any) -> list[Any]:
    """What a value refers to that is not copied by itself, such as a bound method."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, types.FunctionType):
        return [_content(cell) for cell in value.__closure__ or ()]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, _LRU):
        return [value.__wrapped__]
    return [getattr(value, "__self__", None)]


def _shared(replica: Replica, value: Any) -> Any:
    return value


class _Copied:
    """An original, its copy, and what was seen in the original when the copy was last filled."""

    __slots__ = ("copy", "original", "seen")

    def __init__(self, original: Any, copy: Any) -> None:
        self.original = original
        self.copy = copy
        self.seen: Any = None

    def of(self, copy: Any) -> _Copied:
        """The same for another copy."""
        other = type(self)(self.original, copy)
        other.seen = self.seen
        return other

    @property
    def hashes(self) -> bool:
        """Filling it may call `__hash__` of what goes in."""
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

    def update(self, replica: Replica) -> None:
        """Bring the copy up to date."""
        raise NotImplementedError

    def forget(self, stale: set[int]) -> bool:
        """What stands for the values of these identities has changed; True if there are any here,
        for `update` to take over."""
        seen = self.seen
        if not any(id(part) in stale for part in self.parts()):
            return False
        kept: Any = []
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


class _Object(_Copied):
    """An object with attributes, in its dictionary or in slots."""

    __slots__ = ("_slots",)

    def __init__(self, original: Any, copy: Any, slots: tuple[Any, ...]) -> None:
        super().__init__(original, copy)
        self._slots = slots
        self.seen = {}

    def of(self, copy: Any) -> _Object:
        other = _Object(self.original, copy, self._slots)
        other.seen = self.seen
        return other

    def now(self) -> dict[Any, Any]:
        # A copy, for other threads may set attributes meanwhile.
        now: dict[Any, Any] = dict(attributes_of(self.original) or {})
        for slot in self._slots:
            try:
                now[slot] = slot.__get__(self.original)
            except AttributeError:  # never set
                continue
        return now

    def update(self, replica: Replica) -> None:
        now, seen, attributes = self.now(), self.seen, attributes_of(self.copy)
        shared = sharing.shared_names(now)
        for name, value in now.items():
            if seen.get(name, _MISSING) is value:
                continue
            own = value if name in shared else replica.mapped(value)
            if type(name) is str:
                assert attributes is not None
                attributes[name] = own
            else:
                name.__set__(self.copy, own)
        for name in [name for name in seen if name not in now]:
            if type(name) is not str:
                name.__delete__(self.copy)
            elif attributes is not None:
                attributes.pop(name, None)
        self.seen = now
        if isinstance(self.copy, Guarded):
            note_handed(self.copy)


class _Mapping(_Copied):
    """A dictionary, of whatever class."""

    __slots__ = ()

    def __init__(self, original: Any, copy: Any) -> None:
        super().__init__(original, copy)
        self.seen = {}

    @property
    def hashes(self) -> bool:
        return any(type(key) not in _PLAIN_KEYS for key in list(self.original))

    def now(self) -> dict[Any, Any]:
        return dict(self.original)

    def update(self, replica: Replica) -> None:
        now, seen, copy = self.now(), self.seen, self.copy
        cls = OrderedDict if isinstance(copy, OrderedDict) else dict
        for key in [key for key in seen if key not in now]:
            if replica.mapped(key) in copy:
                cls.__delitem__(copy, replica.mapped(key))
        for key, value in now.items():
            if seen.get(key, _MISSING) is not value:
                cls.__setitem__(copy, replica.mapped(key), replica.mapped(value))
        if isinstance(copy, defaultdict):
            copy.default_factory = replica.mapped(self.original.default_factory)
        _update_attributes(self.original, copy, replica)
        self.seen = now


class _Items(_Copied):
    """A list, a set or a deque, of whatever class."""

    __slots__ = ()

    def __init__(self, original: Any, copy: Any) -> None:
        super().__init__(original, copy)
        self.seen = ()

    @property
    def hashes(self) -> bool:
        return isinstance(self.original, set)

    def now(self) -> list[Any]:
        return list(self.original)

    def update(self, replica: Replica) -> None:
        now, copy = self.now(), self.copy
        items = [replica.mapped(item) for item in now]
        if isinstance(copy, list):
            list.__setitem__(copy, slice(None), items)
        elif isinstance(copy, set):
            set.clear(copy)
            set.update(copy, items)
        else:
            deque.clear(copy)
            deque.extend(copy, items)
        _update_attributes(self.original, copy, replica)
        self.seen = now


def _update_attributes(original: Any, copy: Any, replica: Replica) -> None:
    """Of a subclass of a container."""
    if attributes := attributes_of(original):
        own = attributes_of(copy)
        assert own is not None
        own.update({name: replica.mapped(value) for name, value in list(attributes.items())})


_PLAIN_KEYS = frozenset([str, int, bytes, float, bool, type(None)])


def _empty_deque(value: Any, cls: type) -> Any:
    made: Any = deque.__new__(cls)
    deque.__init__(made, (), value.maxlen)
    return made


#: Empty containers of the same class; the more special ones first.
_EMPTY: dict[type, Callable[[Any, type], Any]] = {
    OrderedDict: lambda value, cls: OrderedDict.__new__(cls),
    defaultdict: lambda value, cls: defaultdict.__new__(cls),
    dict: lambda value, cls: dict.__new__(cls),
    list: lambda value, cls: list.__new__(cls),
    set: lambda value, cls: set.__new__(cls),
    deque: _empty_deque,
}

_KINDS: dict[type, Callable[[Replica, Any], Any]] = {
    types.MethodType: Replica._method,
    types.BuiltinMethodType: Replica._builtin_method,
    types.MethodWrapperType: Replica._builtin_method,
    types.FunctionType: Replica._function,
    types.SimpleNamespace: Replica._namespace,
    functools.partial: Replica._partial,
    _LRU: Replica._cached,
    weakref.ref: Replica._reference,
    frozenset: _shared,
    type(None): _shared,
    bool: _shared,
}
#: Of what a function refers to, these are the worker's own.
_OBJECT_KINDS = frozenset(
    {
        *(Replica._object, Replica._namespace, Replica._method, Replica._function),
        *(Replica._partial, Replica._cached, Replica._generator),
    }
)
