"""A debugging mode that finds samples which change data that they share with others."""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from minato_async.replicas import sharing
from minato_async.replicas.attributes import attributes_of, slots_of
from minato_async.replicas.replica import Code


class SharedDataCheck:
    """Runs steps one at a time, and compares all arrays and tensors that the worker's objects refer
    to before and after each. Slow: it reads all of them twice for every step."""

    def __init__(self) -> None:
        # One step at a time, over all threads of the loader: what has changed was changed by it.
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedDataCheck, ()

    def checked(self, code: Code, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`step`, which from now on raises RuntimeError if it changes an array or a tensor in
        place that an object of `code` refers to."""
        return partial(self._run, code, step)

    def _run(self, code: Code, step: Callable[[Any], Any], value: Any) -> Any:
        with self._lock:
            before = [(name, data, _digest(data)) for name, data in _data_of(code)]
            result = step(value)
            changed = [name for name, data, digest in before if _digest(data) != digest]
        if changed:
            raise RuntimeError(
                f"check: this sample changed {', '.join(changed)} in place. Workers on threads "
                "share arrays and tensors, and the next epoch starts from what is left of them: "
                "change a copy instead"
            )
        return result


def _data_of(code: Code) -> Iterator[tuple[str, Any]]:
    """Arrays and tensors that can be changed, each with the attribute that it is found in."""
    left = deque([("dataset", code.dataset)])
    left += [(f"transforms[{n}]", transform) for n, transform in enumerate(code.transforms)]
    left.append(("collate_fn", code.collate_fn))
    seen: set[int] = set()
    while left:
        name, value = left.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (np.ndarray, torch.Tensor)):
            if _can_change(value):
                yield name, value
        elif isinstance(value, dict):
            left += [(f"{name}[{key!r}]", item) for key, item in list(value.items())]
        elif isinstance(value, (list, tuple, deque)):
            left += [(f"{name}[{n}]", item) for n, item in enumerate(list(value))]
        elif not sharing.is_data(type(value)):
            left += [(f"{name}.{key}", item) for key, item in _attributes(value)]


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from list((attributes_of(value) or {}).items())
    for slot in slots_of(type(value)):
        yield slot.__name__, getattr(value, slot.__name__, None)


def _can_change(data: Any) -> bool:
    if isinstance(data, np.ndarray):
        return bool(data.flags.writeable) and not data.dtype.hasobject
    return data.device.type == "cpu" and data.layout is torch.strided


def _digest(data: Any) -> int:
    """Of its bytes. Not safe against a forger, who would be the user."""
    if isinstance(data, torch.Tensor):
        data = data.detach().contiguous().flatten().view(torch.uint8).numpy()
    return zlib.crc32(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
