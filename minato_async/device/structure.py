"""The tensors inside a batch: how it is moved, and where they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch

#: How deep objects are looked into that are no containers.
_DEPTH = 4

Copy = Callable[[torch.Tensor], torch.Tensor]


def moved(value: Any, move: Copy, device: torch.device) -> Any:
    """`value`, with each tensor replaced by `move(tensor)`.

    As torch's `pin_memory`, it looks into mappings, named and other tuples, and sequences, and
    keeps their types where they can be made anew. What has a method `to` of its own is asked to go
    to `device`.
    """
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, (str, bytes)):
        return value
    if callable(getattr(value, "to", None)):
        try:
            return value.to(device, non_blocking=True)
        except TypeError:  # it does not know the argument
            return value.to(device)
    if isinstance(value, Mapping):
        parts = {key: moved(part, move, device) for key, part in value.items()}
        return _mapping_like(value, parts)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(part, move, device) for part in value))
    if isinstance(value, Sequence) and not isinstance(value, range):
        return _sequence_like(value, [moved(part, move, device) for part in value])
    return value


def _mapping_like(value: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    kind: Any = type(value)
    if kind is dict:
        return parts
    try:
        if isinstance(value, MutableMapping):
            # Whatever else it has stays with it.
            clone = copy.copy(value)
            clone.update(parts)
            return clone
        return kind(parts)
    except TypeError:  # it cannot be copied, or made of these
        return parts


def _sequence_like(value: Sequence[Any], parts: list[Any]) -> Any:
    kind: Any = type(value)
    if kind is list:
        return parts
    try:
        return kind(parts)
    except TypeError:
        return parts


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """The tensors of `value`: in containers, and in the attributes of what else there may be."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (str, bytes, range, type, ModuleType, FunctionType)):
        return
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part, depth)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part, depth)
    elif depth:
        for part in getattr(value, "__dict__", {}).values():
            yield from tensors_in(part, depth - 1)
