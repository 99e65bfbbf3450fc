"""Which worker writes to which part of the shared memory, and what of it is in use here."""

from __future__ import annotations

from typing import Any

from minato_async.executors.process.transport.packing import Packed
from minato_async.executors.process.transport.shared_memory import Block, SharedMemory


class Arenas:
    """Belongs to the parent's event loop.

    An arena outlives its worker: batches may still lie in it. It is given to another when nothing
    does.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory: SharedMemory | None = memory
        self._fresh = list(range(memory.arenas - 1, -1, -1))
        #: Arenas whose workers have ended.
        self._left: list[int] = []
        #: Blocks of each arena that are in use here.
        self._used = [0] * memory.arenas

    def open(self) -> int:
        """An arena that nobody uses. Raises RuntimeError if there is none."""
        for arena in self._left:
            self.take_freed(arena)
            if not self._used[arena]:
                self._left.remove(arena)
                assert self._memory is not None
                self._memory.discard(self._memory.start_of(arena), self._memory.arena_size)
                return arena
        if not self._fresh:
            raise RuntimeError("no shared memory is left for another worker: drop old batches")
        return self._fresh.pop()

    def leave(self, arena: int) -> None:
        """Its worker has ended."""
        self._left.append(arena)

    def take_freed(self, arena: int) -> list[Block]:
        """Blocks that are in use here no more, each once."""
        assert self._memory is not None
        freed = self._memory.take_freed(arena)
        self._used[arena] -= len(freed)
        return freed

    def adopt(self, arena: int, events: Any) -> None:
        """What the worker of `arena` has packed into `events` is freed by whoever drops it."""
        for event in events:
            for part in event:
                for packed in part if isinstance(part, list) else (part,):
                    if isinstance(packed, Packed):
                        packed.memory = self._memory
                        self._used[arena] += len(packed.blocks)

    def close(self) -> None:
        """Let go of the memory."""
        self._memory = None
