"""Collation: torch's default collate, with large tensors written straight into the batch.

The last worker of a batch would otherwise copy all of it while the consumer waits. Written row by
row, the copying is shared out among the workers, and a finished sample's own memory is free at
once. Only large, plain CPU tensors gain by it; everything else goes through torch's collate, and
what comes out is the same either way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch._C import DisableTorchFunction
from torch.utils.data._utils.collate import collate, default_collate_fn_map

#: Bytes above which copying a tensor alone costs less than having one worker copy the batch.
LARGE = 128 * 1024

_NUMERIC = "biuf"


class RowLeaf:
    """Stands for a tensor that was written into its row of a batch."""

    __slots__ = ("leaf", "row")

    def __init__(self, leaf: _Leaf, row: int) -> None:
        self.leaf = leaf
        self.row = row

    def original(self) -> torch.Tensor | np.ndarray[Any, Any]:
        row = self.leaf.buffer[self.row]
        return row if self.leaf.type is torch.Tensor else row.numpy()


class _Leaf:
    """The rows of one tensor, or array, of the sample's structure."""

    __slots__ = ("buffer", "type")

    def __init__(self, buffer: torch.Tensor, type_: type) -> None:
        self.buffer = buffer
        self.type = type_


def _collate_row_leaves(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
    buffer: torch.Tensor = batch[0].leaf.buffer
    return buffer


_COLLATE_MAP: dict[Any, Callable[..., Any]] = {
    RowLeaf: _collate_row_leaves,
    **default_collate_fn_map,
}


def is_extended() -> bool:
    """Whether the user has put a function into the table of `default_collate`, as torch suggests
    for classes that it does not know. The rows know torch's own functions only."""
    return any(f.__module__ != collate.__module__ for f in default_collate_fn_map.values())


Allocate = Callable[[Sequence[int], torch.dtype], torch.Tensor]


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


class DefaultRowWriter:
    """Writes the large tensors of samples whose batch `default_collate` would make, to what
    `allocate` gives for a shape and a dtype."""

    def __init__(self, allocate: Allocate = _empty) -> None:
        self._allocate = allocate

    def pays(self, sample: Any) -> bool:
        """Whether `sample` is, or directly contains, a large plain CPU tensor or array."""
        # Every question to a tensor would go through the mode that a worker runs under.
        with DisableTorchFunction():
            if type(sample) in (tuple, list):
                return any(map(_is_large, sample))
            if type(sample) is dict:
                return any(map(_is_large, sample.values()))
            return _is_large(sample)

    def rows(self, size: int) -> DefaultRows:
        return DefaultRows(size, self._allocate)

    def collate(self, samples: list[Any]) -> Any:
        """The batch of samples of which none was written before, in what `allocate` gives."""
        if samples and self.pays(samples[0]):
            return self.rows(len(samples)).collate(samples)
        return collate(samples, collate_fn_map=default_collate_fn_map)


class DefaultRows:
    """One batch's tensors, made on the model of the first sample that is written.

    Different rows may be written from different threads at once.
    """

    def __init__(self, size: int, allocate: Allocate = _empty) -> None:
        self._size = size
        self._allocate = allocate
        # Guards `_leaves`, so that two first samples do not make a tensor each.
        self._lock = threading.Lock()
        self._leaves: dict[Any, _Leaf] = {}

    def write(self, row: int, sample: Any) -> Any:
        """Copy the large tensors of `sample` into `row`; returns the sample with a `RowLeaf` in
        the place of each. A tensor that does not fit the others' shape or dtype stays itself, and
        so does a sample that cannot be written: torch's collate will decide, for all of them."""
        try:
            with DisableTorchFunction():
                if type(sample) in (tuple, list):
                    parts = [self._write(row, key, part) for key, part in enumerate(sample)]
                    return type(sample)(parts)
                if type(sample) is dict:
                    return {key: self._write(row, key, part) for key, part in sample.items()}
                return self._write(row, None, sample)
        except Exception:  # no memory, say, or an array with strides that torch does not take
            return sample

    def _write(self, row: int, key: Any, part: Any) -> Any:
        if not _is_large(part):
            return part
        tensor = part if isinstance(part, torch.Tensor) else torch.as_tensor(part)
        with self._lock:
            leaf = self._leaves.get(key)
            if leaf is None:
                buffer = self._allocate((self._size, *tensor.shape), tensor.dtype)
                leaf = self._leaves[key] = _Leaf(buffer, type(part))
        alike = leaf.buffer.dtype == tensor.dtype and leaf.buffer.shape[1:] == tensor.shape
        if not alike or leaf.type is not type(part):
            return part
        leaf.buffer[row].copy_(tensor)
        return RowLeaf(leaf, row)

    def collate(self, samples: list[Any]) -> Any:
        """The batch. Where some sample is unlike the others, torch's collate decides, over the
        original values: it may convert them, or raise the error that the user knows."""
        # Not into a batch that became shorter: a sample's row is not its own there any more.
        if len(samples) == self._size:
            written = [s if _has_row_leaf(s) else self.write(i, s) for i, s in enumerate(samples)]
            if self._all_written(written):
                try:
                    return collate(written, collate_fn_map=_COLLATE_MAP)
                except Exception:
                    samples[:] = map(_restore, written)  # to be described in the error's notes
                    raise
            samples[:] = written
        samples[:] = map(_restore, samples)
        return collate(samples, collate_fn_map=default_collate_fn_map)

    def _all_written(self, samples: list[Any]) -> bool:
        keys, container = set(self._leaves), type(samples[0])
        return all(type(s) is container and _row_leaf_keys(s) == keys for s in samples)


def _is_large(value: Any) -> bool:
    # Exact types: a subclass may mean something else by copying. Plain and contiguous: what
    # torch.stack makes of other layouts is for torch to decide.
    if type(value) is torch.Tensor:
        return (
            value.layout is torch.strided  # first: some of the others are not for every layout
            and not value.is_nested
            and value.nbytes >= LARGE
            and value.device.type == "cpu"
            and value.is_contiguous()
            and not value.requires_grad
            and not value.is_quantized
            and not value.is_conj()
            and not value.is_neg()
        )
    if type(value) is np.ndarray:
        return (
            value.nbytes >= LARGE
            and value.dtype.kind in _NUMERIC
            and value.dtype.itemsize <= 8  # torch has no long double
            and value.dtype.isnative
            and value.flags.c_contiguous
        )
    return False


def _parts(sample: Any) -> dict[Any, Any]:
    if type(sample) in (tuple, list):
        return dict(enumerate(sample))
    if type(sample) is dict:
        return sample
    return {None: sample}


def _row_leaf_keys(sample: Any) -> set[Any]:
    return {key for key, part in _parts(sample).items() if type(part) is RowLeaf}


def _has_row_leaf(sample: Any) -> bool:
    return any(type(part) is RowLeaf for part in _parts(sample).values())


def _restore(sample: Any) -> Any:
    if type(sample) in (tuple, list):
        return type(sample)([_restore_part(part) for part in sample])
    if type(sample) is dict:
        return {key: _restore_part(part) for key, part in sample.items()}
    return _restore_part(sample)


def _restore_part(part: Any) -> Any:
    return part.original() if type(part) is RowLeaf else part
