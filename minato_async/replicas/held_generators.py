"""Where the user's objects hold random generators."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from minato_async.replicas import sharing
from minato_async.replicas.attributes import attributes_of, slots_of
from minato_async.replicas.contents import entries_of, items_of
from minato_async.replicas.random_generators import GENERATORS, is_generator

_LRU = type(functools.lru_cache(len))


@dataclass(frozen=True)
class HeldGenerator:
    """One that the user's objects hold, in one place or in several."""

    #: The first of these places, the same in every process: "dataset.transform.transforms[1].R".
    place: str
    generator: Any
    #: Objects that see it as an attribute of their class, and the name of that.
    through_class: list[tuple[Any, str]] = field(default_factory=list)


def held_generators(parts: Sequence[tuple[str, Any]]) -> list[HeldGenerator]:
    """What `parts`, objects with their names, hold, also further inside. What all workers share is
    not looked into."""
    found: dict[int, HeldGenerator] = {}
    seen: set[int] = set()
    #: By class: nothing is held in there, and what the class itself holds.
    empty: dict[type, bool] = {}
    of_class: dict[type, Sequence[tuple[str, Any]]] = {}
    # The nearest first: so the place does not depend on what else refers to it.
    left = deque(parts)
    while left:
        place, value = left.popleft()
        cls = type(value)
        if cls not in empty:
            empty[cls] = _is_empty(cls)
        if empty[cls] or id(value) in seen:
            continue
        if is_generator(cls):
            if value is not torch.default_generator:
                found.setdefault(id(value), HeldGenerator(place, value))
            continue
        seen.add(id(value))
        left += _inside(place, value, cls)
        if cls not in of_class:
            of_class[cls] = _of_class(cls)
        for name, generator in of_class[cls]:
            if name not in (attributes_of(value) or {}):
                held = found.setdefault(id(generator), HeldGenerator(f"{place}.{name}", generator))
                held.through_class.append((value, name))
    return list(found.values())


def _is_empty(cls: type) -> bool:
    """Whether all objects of `cls` are data."""
    looked_into = is_generator(cls) or cls in _LOOKED_INTO
    return cls is type(None) or (sharing.is_data(cls) and not looked_into)


#: Of these there may be many.
_PLAIN = (int, float, str, torch.Tensor)
_LOOKED_INTO = (types.FunctionType, types.MethodType, types.BuiltinMethodType)


def _inside(place: str, value: Any, cls: type) -> Iterator[tuple[str, Any]]:
    if issubclass(cls, (list, tuple, deque)):
        if not sharing.is_long(value):
            for n, item in enumerate(items_of(value)):
                if type(item) not in _PLAIN:
                    yield f"{place}[{n}]", item
    elif issubclass(cls, dict):
        if not sharing.is_long(value):
            for key, item in entries_of(value).items():
                if type(key) in (str, int):
                    yield f"{place}[{key!r}]", item
    elif cls in (types.MethodType, types.BuiltinMethodType):
        yield f"{place}.__self__", value.__self__
        return
    elif cls is types.FunctionType:
        for n, cell in enumerate(value.__closure__ or ()):
            content = getattr(cell, "cell_contents", None)
            yield f"{place}.__closure__[{n}]", content
        for n, default in enumerate(value.__defaults__ or ()):
            yield f"{place}.__defaults__[{n}]", default
        for name, default in (value.__kwdefaults__ or {}).items():
            yield f"{place}.__kwdefaults__[{name!r}]", default
        return
    elif issubclass(cls, functools.partial):
        yield f"{place}.func", value.func
        yield f"{place}.args", value.args
        yield f"{place}.keywords", value.keywords
    elif cls is _LRU:
        yield f"{place}.__wrapped__", value.__wrapped__
        return
    yield from _attributes(place, value, cls)


def _attributes(place: str, value: Any, cls: type) -> Iterator[tuple[str, Any]]:
    attributes = attributes_of(value) or {}
    if sharing.is_shared(attributes):
        return
    if isinstance(value, torch.nn.Module) and sharing.is_model(attributes):
        return
    shared = sharing.shared_names(attributes)
    for name, item in list(attributes.items()):
        if name not in shared:
            yield f"{place}.{name}", item
    for slot in slots_of(cls):
        try:
            yield f"{place}.{slot.__name__}", slot.__get__(value)
        except AttributeError:  # not set
            continue


def _of_class(cls: type) -> Sequence[tuple[str, Any]]:
    """The generators that `cls` and its bases have as attributes, by name."""
    names = {name for base in cls.__mro__ for name in vars(base)}
    held = []
    for name in sorted(names):
        value = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
        if type(value) in GENERATORS and value is not torch.default_generator:
            held.append((name, value))
    return held
