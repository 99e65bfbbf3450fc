"""Values as bytes, but for their tensors and arrays, which lie in shared memory."""

from __future__ import annotations

import io
import math
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from minato_async.executors.process.transport.own_blocks import OwnBlocks
from minato_async.executors.process.transport.shared_memory import Block, SharedMemory
from minato_async.executors.process.transport.tensor_views import cut, reduced, typed

#: Bytes below which a tensor travels with the rest: a block costs as much as copying so many.
SMALL = 2048
#: Bytes from which the rest lies in shared memory, too: through a socket it is copied many times.
_LONG = 1 << 16
#: Bytes that are copied into new blocks in a second, about, and bytes that are pickled.
_COPIED, _PICKLED = 1e9, 2e8
#: Bytes that the pickler writes at once, at most, but for a value that is longer.
_FRAME = 1 << 17

_DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if type(d) is torch.dtype}


class Packed:
    """A value on its way. Whoever drops it without having unpacked it frees its blocks, in the
    process that has the `memory`."""

    __slots__ = ("__weakref__", "blocks", "data", "memory")

    def __init__(
        self, data: bytes, blocks: Sequence[Block], memory: SharedMemory | None = None
    ) -> None:
        #: The pickle; empty: it is what lies in the first of the blocks.
        self.data = data
        self.blocks = blocks
        #: Set where the blocks are owned: in the parent.
        self.memory = memory

    @property
    def nbytes(self) -> int:
        return len(self.data) + sum(size for _, size in self.blocks)

    def unpack(self) -> Any:
        """The value, whose tensors and arrays are views of the shared memory; each block is freed
        with the last of them. Once, by the owner."""
        assert self.memory is not None or not self.blocks
        blocks, self.blocks = self.blocks, ()
        return loads(self.data or blocks[0], self.memory, blocks)

    def peek(self, memory: SharedMemory) -> Any:
        """The value for a process that is lent it: its views must not outlive the loan."""
        return loads(self.data or self.blocks[0], memory)

    def copy(self, memory: SharedMemory) -> Any:
        """The value for a process that is lent it, and passes it to who may keep it."""
        return loads(self.data or self.blocks[0], memory, copied=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (self.data, self.blocks)

    def __del__(self) -> None:
        if self.memory is not None:
            for block in self.blocks:
                self.memory.free(block)


class _Reading(threading.local):
    """What the functions below find while `loads` runs in their thread."""

    memory: SharedMemory | None = None
    #: Blocks of the value being read that nothing refers to yet; None: it is only lent.
    owned: set[Block] | None = None
    copied = False


_reading = _Reading()


def loads(
    data: bytes | Block,
    memory: SharedMemory | None,
    owned: Sequence[Block] | None = None,
    copied: bool = False,
) -> Any:
    before = _reading.memory, _reading.owned, _reading.copied
    _reading.memory, _reading.owned = memory, None if owned is None else set(owned)
    _reading.copied = copied
    try:
        if isinstance(data, bytes):
            return pickle.loads(data)
        assert memory is not None
        return pickle.loads(memory.view(data))
    finally:
        if _reading.owned:
            # The pickle's own; and not all was read if a class of the user's has raised.
            assert memory is not None
            for block in _reading.owned:
                memory.free(block)
        _reading.memory, _reading.owned, _reading.copied = before


def _bytes_of(block: Block) -> memoryview:
    memory, owned = _reading.memory, _reading.owned
    assert memory is not None
    if _reading.copied:
        return memoryview(bytearray(memory.view(block)))
    if owned is None or block not in owned:
        return memory.view(block)
    owned.discard(block)
    return memory.leased(block)


def _tensor(block: Block, dtype: str, shape: Sequence[int], stride: Sequence[int] | None) -> Any:
    flat = torch.frombuffer(_bytes_of(block), dtype=_DTYPES[dtype])
    return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


def _small_tensor(
    data: bytes, dtype: str, shape: Sequence[int], stride: Sequence[int] | None
) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    flat = torch.frombuffer(bytearray(data), dtype=_DTYPES[dtype])
    return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


def _untyped(flat: torch.Tensor) -> torch.UntypedStorage:
    return flat.untyped_storage()


def _array(block: Block, dtype: Any, shape: Sequence[int], order: Any) -> Any:
    # By way of a tensor, which keeps the view that it is made of: numpy makes a view of its own.
    flat = torch.frombuffer(_bytes_of(block), dtype=torch.uint8).numpy()
    return flat.view(dtype).reshape(shape, order=order)


class TooDear(Exception):
    """It would take longer than it may."""


class _Budget:
    """Seconds that packing may take. They are reckoned from the bytes and not read from a clock: a
    worker that had to wait for the processor does not pack a sample otherwise than the others."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def take(self, copied: int, pickled: int = 0) -> None:
        self._left -= copied / _COPIED + pickled / _PICKLED
        if self._left < 0:
            raise TooDear


class _Stream(io.BytesIO):
    """Where the pickle is written to, frame by frame."""

    def __init__(self, budget: _Budget) -> None:
        super().__init__()
        self._budget = budget

    def write(self, data: Any) -> int:
        size = len(data)
        pickled = min(size, _FRAME)
        self._budget.take(size - pickled, pickled)
        return super().write(data)


class _Packer(pickle.Pickler):
    """Puts what is large and plain into the worker's own blocks. Everything else is pickled as
    ever: it arrives as it was, only slower."""

    def __init__(self, file: io.BytesIO, own: OwnBlocks, budget: _Budget) -> None:
        super().__init__(file, protocol=5)
        self._own = own
        self._budget = budget
        self.blocks: list[Block] = []

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor and is_plain(value):
            return self._tensor(value)
        if kind is np.ndarray:  # a subclass has more to it than its numbers
            return self._array(value)
        if issubclass(kind, torch.Tensor):
            return reduced(value)
        if kind is torch.UntypedStorage and value.device.type == "cpu":
            # torch's own way to pickle one is broken.
            return _untyped, (torch.empty(0, dtype=torch.uint8).set_(value),)
        if kind is torch.storage.TypedStorage and value._untyped_storage.device.type == "cpu":
            memory = value._untyped_storage
            return typed, (torch.empty(0, dtype=torch.uint8).set_(memory), value.dtype)
        return NotImplemented

    def _allocate(self, size: int) -> Block | None:
        self._budget.take(size)
        return self._own.allocate(size)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        contiguous, layout, stride = tensor.is_contiguous(), None, None
        if not contiguous:
            tensor, layout, stride = cut(tensor)
        size = tensor.numel() * tensor.itemsize
        shown = tensor.shape
        block = self._own.export(tensor) if contiguous and size >= SMALL else None
        if block is None and size >= SMALL and (block := self._allocate(size)) is not None:
            flat = torch.frombuffer(self._own.memory.view(block), dtype=tensor.dtype)
            place = flat.view(shown) if layout is None else flat.as_strided(shown, layout)
            place.copy_(tensor)
        if block is not None:
            self.blocks.append(block)
            return _tensor, (block, dtype, shape, stride)
        if layout is not None:
            tensor = torch.empty_strided(shown, layout, dtype=tensor.dtype).copy_(tensor)
        flat = tensor.as_strided((tensor.numel(),), (1,))
        data = flat.view(torch.uint8).numpy().tobytes() if size else b""
        return _small_tensor, (data, dtype, shape, stride)

    def _array(self, array: np.ndarray[Any, Any]) -> Any:
        large = array.nbytes >= SMALL and not array.dtype.hasobject
        block = self._allocate(array.nbytes) if large else None
        if block is None:
            # What arrives can be written to, however large, as with torch. Later protocols keep
            # an array read-only, such as `np.frombuffer` makes.
            return NotImplemented if array.flags.writeable else array.__reduce_ex__(4)
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        flat = np.frombuffer(self._own.memory.view(block), dtype=array.dtype)
        np.copyto(flat.reshape(array.shape, order=order), array)  # type: ignore[call-overload]
        self.blocks.append(block)
        return _array, (block, array.dtype, array.shape, order)


def pack(value: Any, own: OwnBlocks, seconds: float = math.inf) -> Packed:
    """`value`, ready to travel. Raises what pickling it raises, and `TooDear` as soon as it shows
    that it would take longer than `seconds`."""
    budget = _Budget(seconds)
    file = _Stream(budget)
    packer = _Packer(file, own, budget)
    try:
        # Without the mode that looks for random draws, through which every call would pass.
        with torch._C.DisableTorchFunction():
            packer.dump(value)
    except BaseException:
        own.release_all(packer.blocks)
        raise
    data = file.getbuffer()
    block = own.allocate(data.nbytes) if data.nbytes >= _LONG else None
    if block is None:
        return Packed(data.tobytes(), tuple(packer.blocks))
    own.memory.view(block)[:] = data
    return Packed(b"", (block, *packer.blocks))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its numbers, shape and layout and nothing else."""
    return (
        tensor.layout is torch.strided  # first: some of the others are not for every layout
        and not tensor.is_nested
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def stack_in(own: OwnBlocks, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """What `torch.stack` makes of `tensors`, in a block of its own so that it need not be copied
    to travel; None where it does not pay, or may not be the same."""
    first = tensors[0]
    if type(first) is not torch.Tensor:
        return None
    # Without the mode that looks for random draws, which every call below would pass through.
    with torch._C.DisableTorchFunction():
        size = len(tensors) * first.numel() * first.itemsize
        if size < SMALL or not is_plain(first):
            return None
        shape, dtype, layout, device = first.shape, first.dtype, first.layout, first.device
        for tensor in tensors:
            if not (
                type(tensor) is torch.Tensor
                and tensor.dtype is dtype
                and tensor.shape == shape
                and tensor.layout is layout
                and tensor.device == device
                and not tensor.requires_grad
            ):
                return None
        out = own.new_tensor(dtype, (len(tensors), *shape))
        return None if out is None else torch.stack(tuple(tensors), 0, out=out)
