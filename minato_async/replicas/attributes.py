"""The attributes of any object, without running code of the user's."""

from __future__ import annotations

import types
from typing import Any


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The dictionary of its attributes, not a copy; None if it has none."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return attributes if isinstance(attributes, dict) else None


def slots_of(cls: type) -> tuple[Any, ...]:
    """The descriptors of the slots of its instances."""
    return tuple(
        member
        for base in cls.__mro__
        for member in vars(base).values()
        if type(member) is types.MemberDescriptorType and member.__name__ != "__dict__"
    )


def has_own_dict(cls: type) -> bool:
    """Whether `__dict__` of its instances is what Python makes it, if they have one: a stand-in for
    another object may show that one's."""
    shown = next((vars(base)["__dict__"] for base in cls.__mro__ if "__dict__" in vars(base)), None)
    return shown is None or type(shown) in (types.GetSetDescriptorType, types.MemberDescriptorType)
