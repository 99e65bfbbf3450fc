"""Which worker writes to which part of the shared memory, and what of it is in use here."""

from __future__ import annotations

from typing import Any

from minato_async.transport.memory import Block, SharedMemory
from minato_async.transport.packing import Packed


class Regions:
    """Belongs to the parent's event loop.

    A region outlives its worker: batches may still lie in it. It is given to another when nothing
    does.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory: SharedMemory | None = memory
        self._fresh = list(range(memory.regions - 1, -1, -1))
        #: Regions whose workers have ended.
        self._left: list[int] = []
        #: Blocks of each region that are in use here.
        self._used = [0] * memory.regions

    def open(self) -> int:
        """A region that nobody uses. Raises RuntimeError if there is none."""
        for region in self._left:
            self.take_freed(region)
            if not self._used[region]:
                self._left.remove(region)
                assert self._memory is not None
                self._memory.discard(self._memory.start_of(region), self._memory.region_size)
                return region
        if not self._fresh:
            raise RuntimeError("no shared memory is left for another worker: drop old batches")
        return self._fresh.pop()

    def leave(self, region: int) -> None:
        """Its worker has ended."""
        self._left.append(region)

    def take_freed(self, region: int) -> list[Block]:
        """Blocks that are in use here no more, each once."""
        assert self._memory is not None
        freed = self._memory.take_freed(region)
        self._used[region] -= len(freed)
        return freed

    def adopt(self, region: int, events: Any) -> None:
        """What the worker of `region` has packed into `events` is freed by whoever drops it."""
        for event in events:
            for part in event:
                for packed in part if isinstance(part, list) else (part,):
                    if isinstance(packed, Packed):
                        packed.memory = self._memory
                        self._used[region] += len(packed.blocks)

    def close(self) -> None:
        """Let go of the memory."""
        self._memory = None
