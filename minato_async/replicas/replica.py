"""A worker thread's own copy of the user's objects that run in it.

A process of its own would have such a copy by having been forked. Here it is made object by
object, by what `replicas/sharing.py` says: every object keeps its class, one memo keeps the
references between them intact, and neither constructors nor copy methods are called, as a fork
calls none.
"""

from __future__ import annotations

import functools
import io
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch

from minato_async.replicas import sharing
from minato_async.replicas.attributes import attributes_of
from minato_async.replicas.composed_transforms import Modules, Parts, TupleOfParts, add_checkpoints
from minato_async.replicas.contents import items_of
from minato_async.replicas.copied import (
    Copied,
    CopiedBuffer,
    CopiedCell,
    CopiedDict,
    CopiedItems,
    CopiedObject,
    CopiedPartial,
    CopiedWeakly,
    content_of,
)
from minato_async.replicas.empty_copy import EmptyCopies
from minato_async.replicas.held_generators import HeldGenerator, held_generators
from minato_async.replicas.loader_method import WeakMethod
from minato_async.replicas.random_generators import (
    GENERATORS,
    following,
    is_generator,
    own_generator,
)
from minato_async.replicas.thread_bound import bound_classes, holds_bound

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

    def held_generators(self) -> list[HeldGenerator]:
        """The random generators that it holds, wherever that is."""
        named = [(f"transforms[{n}]", part) for n, part in enumerate(self.transforms)]
        return held_generators(
            [
                ("dataset", self.dataset),
                *named,
                ("collate_fn", self.collate_fn),
                ("on_error", self.on_error),
            ]
        )

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
        self._copies: dict[int, Copied] = {}
        self._to_fill: list[Copied] = []
        #: Weak references, by identity. Nothing is copied for them alone, so they are the worker's
        #: own only if what they refer to is, which is known when all else is copied.
        self._weak: dict[int, Any] = {}
        self._kinds: dict[type, Callable[[Replica, Any], Any]] = dict(_KINDS)
        #: By class: how to make empty objects of it, whether those without attributes stand for
        #: themselves, and which of them always do.
        self._classes: dict[type, tuple[EmptyCopies, bool, dict[int, Any]]] = {}
        #: Of each random generator that it has in the place of an original: where that is held.
        self.places: list[Any] = []
        self.code = self._follow()
        self._find_places()

    def is_of(self, code: Code) -> bool:
        """Whether it stands for that code, and not for what a user has set in its place."""
        parts, own = code.parts(), self._original.parts()
        return len(parts) == len(own) and all(map(_same_part, parts, own))

    @property
    def has_own_collate_fn(self) -> bool:
        """Whether collating may change what is the worker's."""
        return self.code.collate_fn is not self._original.collate_fn

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
        clone._find_places()
        stays = {place.name for place in self.places if place.stays}
        for place in clone.places:
            place.stays = place.name in stays
        return clone

    def let_go_of_thread(self) -> None:
        """Another thread is to have it: what the worker has opened that only its own thread may
        use is as in the original again, for the dataset to open it anew."""
        bound = bound_classes()
        if not bound:
            return
        copies = {id(copied.copy) for copied in self._copies.values()}
        for copied in self._copies.values():
            if isinstance(copied, CopiedObject):
                copied.restore(
                    lambda value: id(value) not in copies and holds_bound(value, bound), self
                )

    def refresh(self) -> None:
        """Take over what was set anew in the originals since the last time: attributes, and the
        items of containers."""
        changed = [copied for copied in self._copies.values() if copied.has_changed()]
        if changed:
            self._to_fill += changed
            self.code = self._follow()
            self._find_places()
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

    def _find_places(self) -> None:
        """Tell the random generators that it has where their originals are held."""
        known = {id(place.generator): place for place in self.places}
        self.places = []
        for held in self._original.held_generators():
            own = self.known(held.generator)
            if own is held.generator:
                if not held.through_class:
                    continue  # all workers share it
                own = self._generator(held.generator)
                self._memo[id(held.generator)] = held.generator, own
            for owner, name in held.through_class:
                # One for all objects of a class is one for all workers: here it is their own.
                copy = self.known(owner)
                if copy is not owner and (attributes := attributes_of(copy)) is not None:
                    attributes[name] = own
            self.places.append(known.get(id(own)) or following().place(held.place, own))

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
        hashing: list[Copied] = []
        weak: list[Copied] = []
        while self._to_fill or hashing or weak:
            if not self._to_fill:
                (hashing or weak).pop().update(self)
                continue
            copied = self._to_fill.pop()
            if isinstance(copied, CopiedWeakly):
                weak.append(copied)
                continue
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

    def known(self, value: Any) -> Any:
        """What stands for `value` here, if it has been copied for something else."""
        return self._memo.get(id(value), (value, value))[1]

    def _kind(self, cls: type) -> Callable[[Replica, Any], Any]:
        kind = self._kinds.get(cls)
        if kind is None:
            kind = self._kinds[cls] = _kind_of(cls)
        return kind

    def _keep(self, copied: Copied) -> Any:
        self._copies[id(copied.original)] = copied
        self._memo[id(copied.original)] = copied.original, copied.copy
        self._to_fill.append(copied)
        return copied.copy

    def _point_back(self) -> bool:
        """Let weak references to an object which has a copy here refer to the copy. True: there
        were some, and what holds them has to be filled again."""
        stale: set[int] = set()
        for key, reference in self._weak.items():
            target = self._copies.get(id(_target(reference)))
            if target is not None and _target(self._memo[key][1]) is not target.copy:
                self._memo[key] = reference, _pointing_to(target.copy, reference)
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
        for key, copied in list(self._copies.items()):
            # Functions that refer to it are made again, with a new variable.
            if isinstance(copied, CopiedCell) and any(id(p) in stale for p in copied.parts()):
                del self._memo[key], self._copies[key]
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
        empty, is_sentinel, constants = self._classes.get(cls) or self._learn(cls)
        if id(value) in constants:
            return value
        attributes = attributes_of(value) or {}
        if (is_sentinel and not attributes) or sharing.is_shared(attributes):
            return value
        if isinstance(value, torch.nn.Module) and sharing.is_model(attributes):
            return value
        return self._keep(CopiedObject(value, empty.make(value, self._number, self), empty.slots))

    def _learn(self, cls: type) -> tuple[EmptyCopies, bool, dict[int, Any]]:
        empty = EmptyCopies(cls)
        is_sentinel = not empty.slots and sharing.is_sentinel_class(cls)
        self._classes[cls] = empty, is_sentinel, sharing.constants_of(cls)
        return self._classes[cls]

    def _container(self, value: Any) -> Any:
        cls = type(value)
        is_long = sharing.is_long(value)
        if is_long and not sharing.may_have_attributes(cls):
            return value
        make = next(make for base, make in _EMPTY.items() if issubclass(cls, base))
        copied = CopiedDict if issubclass(cls, dict) else CopiedItems
        return self._keep(copied(value, make(value, cls), is_long))

    def _frozenset(self, value: Any) -> Any:
        if len(value) > sharing.LONG:
            return value
        # Others are found by what they hold: their copies have not got it yet.
        own = [self.mapped(item) if _is_found_by_identity(type(item)) else item for item in value]
        return value if all(map(is_, own, value)) else frozenset(own)

    def _parts(self, value: Any) -> Any:
        """Of a composition in a replica that is copied: it gets checkpoints again."""
        return self.mapped(value.settle())

    def _weakly(self, value: Any) -> Any:
        return self._keep(CopiedWeakly(value, type(value)()))

    def _buffer(self, value: Any) -> Any:
        return self._keep(CopiedBuffer(value, io.BytesIO()))

    def _tuple(self, value: Any) -> Any:
        if sharing.is_long(value):
            return value
        held = items_of(value)
        items = [self.mapped(item) for item in held]
        if all(map(is_, items, held)):
            return value
        made = tuple.__new__(type(value), items)
        made_of = attributes_of(value)
        if made_of:
            vars(made).update({name: self.mapped(item) for name, item in made_of.items()})
        return made

    def _method(self, value: Any) -> Any:
        owner = self.mapped(value.__self__)
        if is_generator(type(owner)):  # it may be of a class with other methods
            return getattr(owner, value.__name__)
        return value if owner is value.__self__ else types.MethodType(value.__func__, owner)

    def _builtin_method(self, value: Any) -> Any:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return value
        own = self.mapped(owner)
        return value if own is owner else getattr(own, value.__name__)

    def _partial(self, value: Any) -> Any:
        empty = functools.partial.__new__(type(value), value.func)
        return self._keep(CopiedPartial(value, empty))

    def _cached(self, value: Any) -> Any:
        """An `lru_cache` that is an attribute."""
        wrapped = value.__wrapped__
        own = self.mapped(wrapped)
        return value if own is wrapped else functools.lru_cache(**value.cache_parameters())(own)

    def _by_its_own_method(self, value: Any) -> Any:
        return deepcopy(value)

    def _generator(self, value: Any) -> Any:
        own = own_generator(value, self._number)
        return own if own is value else following().held(own)

    def _reference(self, value: Any) -> Any:
        self._weak[id(value)] = value
        return value

    def _function(self, value: types.FunctionType) -> Any:
        """Functions are shared. Those that were made in another refer to its variables: objects are
        the worker's own there too, and in default values. Containers are not: what a function
        writes down in one is meant to be read by others."""
        cells = value.__closure__ or ()
        # A cell that stays the same is one variable for all, as `nonlocal` may need it.
        own_cells = [self._cell(cell) if self._is_object_in(cell) else cell for cell in cells]
        defaults, by_name = value.__defaults__ or (), value.__kwdefaults__ or {}
        has_objects = any(map(self._is_object, (*defaults, *by_name.values())))
        if all(map(is_, own_cells, cells)) and not has_objects:
            return value
        function = types.FunctionType(
            value.__code__, value.__globals__, value.__name__, None, tuple(own_cells)
        )
        functools.update_wrapper(function, value)
        del function.__wrapped__  # type: ignore[attr-defined]
        self._memo[id(value)] = value, function  # what it refers to may refer to it
        for cell, own in zip(cells, own_cells, strict=True):
            if own is not cell and content_of(own) is None:
                own.cell_contents = self.mapped(cell.cell_contents)
        own_defaults = tuple(self._own_default(default) for default in defaults)
        own_by_name = {name: self._own_default(default) for name, default in by_name.items()}
        function.__defaults__ = own_defaults or value.__defaults__
        function.__kwdefaults__ = own_by_name or value.__kwdefaults__
        pairs = [*zip(map(content_of, own_cells), map(content_of, cells), strict=True)]
        pairs += zip(own_defaults, defaults, strict=True)
        pairs += zip(own_by_name.values(), by_name.values(), strict=True)
        if all(own is original for own, original in pairs):
            self._memo[id(value)] = value, value
        return self._memo[id(value)][1]

    def _cell(self, cell: types.CellType) -> types.CellType:
        """The variable of the worker's functions that stands for `cell`, empty at first."""
        known = self._memo.get(id(cell))
        if known is not None:
            own: types.CellType = known[1]
            return own
        copied = CopiedCell(cell, types.CellType())
        copied.seen = copied.now()
        self._copies[id(cell)] = copied
        self._memo[id(cell)] = cell, copied.copy
        return copied.copy  # type: ignore[no-any-return]

    def _own_default(self, value: Any) -> Any:
        return self.mapped(value) if self._is_object(value) else value

    def _is_object_in(self, cell: types.CellType) -> bool:
        return self._is_object(content_of(cell))

    def _is_object(self, value: Any) -> bool:
        return self._kind(type(value)) in _OBJECT_KINDS


def _is_found_by_identity(cls: Any) -> bool:
    return cls.__hash__ is object.__hash__


def _target(reference: Any) -> Any:
    """What a weak reference of any kind refers to."""
    cls = type(reference)
    if cls is weakref.WeakMethod:
        return getattr(reference(), "__self__", None)
    if cls is weakref.ref:
        return reference()
    try:
        return reference.__sizeof__.__self__
    except (ReferenceError, AttributeError):
        return None


def _pointing_to(copy: Any, reference: Any) -> Any:
    """A weak reference of the same kind to `copy`."""
    cls = type(reference)
    if cls is weakref.WeakMethod:
        return weakref.WeakMethod(types.MethodType(reference().__func__, copy))
    return weakref.ref(copy) if cls is weakref.ref else weakref.proxy(copy)


def _kind_of(cls: type) -> Callable[[Replica, Any], Any]:
    if issubclass(cls, GENERATORS):
        return Replica._generator if is_generator(cls) else _shared
    if issubclass(cls, functools.partial):
        return Replica._partial
    if (cls.__module__, cls.__name__) in _HAVE_SETTINGS:
        return Replica._by_its_own_method
    if sharing.is_data(cls):
        return _shared
    if issubclass(cls, (dict, list, set, deque)):
        return Replica._container
    return Replica._tuple if issubclass(cls, tuple) else Replica._object


def _same_part(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, WeakMethod) and one == other)


def _referred_to(value: Any) -> list[Any]:
    """What a value refers to that is not copied by itself, such as a bound method."""
    cls = type(value)
    if issubclass(cls, tuple):
        return items_of(value)
    if cls is frozenset:
        return list(value)
    if cls is types.FunctionType:
        cells = value.__closure__ or ()
        defaults = *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()
        return [*cells, *map(content_of, cells), *defaults]
    if cls is _LRU:
        return [value.__wrapped__]
    if cls in (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType):
        return [value.__self__]
    return []


def _shared(replica: Replica, value: Any) -> Any:
    return value


def _empty_deque(value: Any, cls: type) -> Any:
    made: Any = deque.__new__(cls)
    deque.__init__(made, (), value.maxlen)
    return made


#: Are no Python objects, but keep the settings of the last call, here the length to cut and to pad
#: to: threads that shared one would read those of each other.
_HAVE_SETTINGS = frozenset([("tokenizers", "Tokenizer")])

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
    functools.partial: Replica._partial,
    _LRU: Replica._cached,
    io.BytesIO: Replica._buffer,
    Parts: Replica._parts,
    TupleOfParts: Replica._parts,
    Modules: Replica._parts,
    **dict.fromkeys(
        (weakref.ref, weakref.WeakMethod, weakref.ProxyType, weakref.CallableProxyType),
        Replica._reference,
    ),
    **dict.fromkeys(
        (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet), Replica._weakly
    ),
    frozenset: Replica._frozenset,
    type(None): _shared,
    bool: _shared,
}
#: Of what a function refers to, these are the worker's own.
_OBJECT_KINDS = frozenset(
    {
        *(Replica._object, Replica._method, Replica._function),
        *(Replica._partial, Replica._cached, Replica._generator),
    }
)
