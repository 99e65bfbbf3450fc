"""The blocks of one worker: which are free, and which tensors here still refer to."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable, Sequence

import torch

from minato_async.executors.process.transport.shared_memory import Arena, Block, SharedMemory


class OwnBlocks:
    """Hands out blocks of a worker's arena. Used by the worker's own thread alone.

    A block is lent to a tensor of this process, or belongs to the parent, or both: a collated
    batch is packed where it lies, and user code may keep it here all the same. It is free when
    neither needs it.
    """

    def __init__(self, memory: SharedMemory, arena: int) -> None:
        self.memory = memory
        self._arena = Arena(memory, arena)
        self._base = torch.frombuffer(memory.view((0, 8)), dtype=torch.uint8).data_ptr()
        #: Lent blocks by their offset, with what tells when the last tensor is gone.
        self._lent: dict[int, tuple[Block, weakref.ref[memoryview]]] = {}
        #: Offsets of lent blocks that belong to the parent too.
        self._exported: set[int] = set()
        #: Offsets of blocks whose tensors are gone. A finalizer appends, whoever is next collects.
        self._dropped: deque[int] = deque()

    def allocate(self, size: int) -> Block | None:
        """A block for the parent; None if there is no room."""
        self._collect()
        return self._arena.allocate(size)

    def release(self, block: Block) -> None:
        """The parent needs `block` no more, or was never given it."""
        self._collect()
        if block[0] in self._lent:
            self._exported.discard(block[0])
        else:
            self._arena.release(block)

    def release_all(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self.release(block)

    def trim(self) -> None:
        """Give back the memory of what is free."""
        self._collect()
        self._arena.trim()

    def new_tensor(self, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor | None:
        """A tensor in shared memory, for which `export` gives the block; None if there is no
        room."""
        block = self.allocate(math.prod(shape) * dtype.itemsize)
        if block is None:
            return None
        view, offset, dropped = self.memory.view(block), block[0], self._dropped
        self._lent[offset] = block, weakref.ref(view, lambda _: dropped.append(offset))
        return torch.frombuffer(view, dtype=dtype).view(tuple(shape))

    def export(self, tensor: torch.Tensor) -> Block | None:
        """The block that is `tensor`, from now on the parent's too; None if there is none, or the
        parent has it already."""
        offset = tensor.data_ptr() - self._base
        entry = self._lent.get(offset)
        if entry is None or offset in self._exported or entry[0][1] != tensor.nbytes:
            return None
        self._exported.add(offset)
        return entry[0]

    def _collect(self) -> None:
        while self._dropped:
            offset = self._dropped.popleft()
            block, _ = self._lent.pop(offset)
            if offset in self._exported:
                self._exported.discard(offset)
            else:
                self._arena.release(block)
