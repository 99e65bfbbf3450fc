"""Tensors that are views: of the memory they lie in, only what they show travels.

torch pickles a tensor together with all of the memory that it is a view of. So a crop of a volume
would be as large as the volume, and a line of a table as large as the table.
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from typing import Any

import torch

#: What torch's own pickles make tensors anew with, of memory, offset, shape, strides and the rest.
_REBUILD = [
    getattr(torch._utils, name, None)
    for name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor")
]
#: And with a class and attributes: of another of these, the class, its arguments, and attributes.
_REBUILD_CLASS: Any = getattr(torch._tensor, "_rebuild_from_type_v2", None)
_REBUILD_SPARSE = getattr(torch._utils, "_rebuild_sparse_tensor", None)
#: Plain numbers of the size of those of quantized tensors.
_NUMBERS = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}


def cut(tensor: torch.Tensor) -> tuple[torch.Tensor, Sequence[int], Sequence[int]]:
    """What to copy of a plain `tensor`, the strides to copy it with into memory that it fills, and
    the strides of the whole tensor there: its own where parts of it lie on one another."""
    shape, strides = tensor.shape, tensor.stride()
    expanded = [stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True)]
    if any(expanded):
        once = [1 if more else size for size, more in zip(shape, expanded, strict=True)]
        tensor = tensor.as_strided(once, strides)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    if span < tensor.numel():  # a sliding window
        return tensor.as_strided((span,), (1,)), (1,), strides
    # Its layout, if it fills its memory: channels last, say, or transposed.
    layout = torch.empty_like(tensor, device="meta").stride()
    whole = [0 if more else stride for stride, more in zip(layout, expanded, strict=True)]
    return tensor, layout, whole


def reduced(tensor: torch.Tensor) -> Any:
    """What pickles a `tensor` that has more to it than its numbers: a class of its own, attributes,
    a gradient. It is what its class says, but with a view in the place of the memory."""
    if type(tensor) in copyreg.dispatch_table:
        return NotImplemented
    untyped: Any = tensor
    return _with_view(untyped.__reduce_ex__(4))


def _with_view(found: Any) -> Any:
    if not isinstance(found, tuple) or len(found) != 2:
        return found
    function, args = found
    if function is _REBUILD_CLASS:
        inner, cls, inner_args, state = args
        inner, inner_args = _with_view((inner, inner_args))
        return function, (inner, cls, inner_args, state)
    if function is not None and function is _REBUILD_SPARSE:
        return _sparse, args
    if function is None or function not in _REBUILD:
        return found
    memory, offset, shape, strides, *rest = args
    if isinstance(memory, torch.UntypedStorage):
        dtype = rest[2]
    else:
        dtype, memory = memory.dtype, memory._untyped_storage
    if memory.device.type != "cpu":
        return found
    view = torch.empty(0, dtype=_NUMBERS.get(dtype, dtype)).set_(memory, offset, shape, strides)
    return _rebuilt, (function, view, dtype, rest)


def _rebuilt(function: Any, view: torch.Tensor, dtype: torch.dtype, rest: Sequence[Any]) -> Any:
    # Typed for all of them, whatever was there: none takes anything else outside of `torch.load`.
    memory = typed(view, dtype)
    return function(memory, view.storage_offset(), view.size(), view.stride(), *rest)


def _sparse(layout: torch.layout, parts: Sequence[Any]) -> torch.Tensor:
    # torch's own function keeps what it makes in a list, for `torch.load` to check, for ever.
    if layout is not torch.sparse_coo:
        return torch.sparse_compressed_tensor(*parts, layout=layout, check_invariants=False)
    indices, values, size, *rest = parts
    made = torch.sparse_coo_tensor(indices, values, size, check_invariants=False)
    return made._coalesced_(rest[0]) if rest else made


def typed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.storage.TypedStorage:
    """The memory of `tensor`, as numbers of `dtype`."""
    made: Any = torch.storage.TypedStorage
    found: torch.storage.TypedStorage = made(
        wrap_storage=tensor.untyped_storage(), dtype=dtype, _internal=True
    )
    return found
