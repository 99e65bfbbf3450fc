"""How many bytes samples and batches hold."""

from __future__ import annotations

from typing import Any


def nbytes(value: Any) -> int:
    """Bytes of the tensors and arrays in nested lists, tuples and dictionaries; what else there
    may be is not counted."""
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(nbytes, value))
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
