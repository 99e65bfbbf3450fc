"""Shared memory of one loader: a file without a name, mapped by the parent and every worker.

It is sparse: a page costs memory once it is written. So it can be as large as might ever be
needed, and nothing is passed around when more of it is used. Made with `memfd_create`, it does not
lie in /dev/shm, whose size in containers is often 64 MB, and whatever is killed, nothing is left.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from minato_async.lifecycle.descriptors import above_standard

#: Blocks begin at multiples of this: what torch aligns its own memory to.
ALIGNMENT = 64
#: The first arena of the file is not for blocks but for what workers tell of themselves.
STATUS_SIZE = 1 << 20
#: Arenas, one for each worker; that of a worker that died serves another when it is empty.
ARENAS = 256

#: Bytes of an arena below which large batches have to travel otherwise.
_SMALL = 1 << 30

Block = tuple[int, int]
"""Where in the file, and how many bytes."""


class SharedMemory:
    """The file, mapped. A forked child has the same mapping; for one that is started afresh it is
    pickled, as long as the file is open. Raises OSError where there is none to be had."""

    def __init__(self) -> None:
        self.arena_size, self.arenas = _physical_memory(), ARENAS
        with above_standard():
            self._file: int | None = os.memfd_create("minato-async", os.MFD_CLOEXEC)
            try:
                # Mapping it opens it once more.
                self._begin(self._mapped(self._file))
            except BaseException:
                self.close_file()
                raise

    def close_file(self) -> None:
        """All who are to have it have it. What is mapped stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _begin(self, mapped: mmap.mmap) -> None:
        self._map = mapped
        self._view = memoryview(self._map)
        self.status = self._view[:STATUS_SIZE].cast("d")
        #: Blocks that nobody in this process needs any more, by arena: what finalizers append to.
        self.freed: list[deque[Block]] = [deque() for _ in range(self.arenas)]
        self._leases: dict[int, _Lease] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        assert self._file is not None
        return _arrived, (reduction.DupFd(self._file), self.arena_size, self.arenas)

    @property
    def _size(self) -> int:
        return STATUS_SIZE + self.arenas * self.arena_size

    def _mapped(self, fd: int) -> mmap.mmap:
        limited = False
        while True:
            try:
                os.ftruncate(fd, self._size)
                mapped = mmap.mmap(fd, self._size)
            except (OSError, OverflowError, ValueError):
                # Less address space than hoped for: `ulimit -v`, or strict overcommit.
                if self.arenas == 1 and self.arena_size < 1 << 20:
                    raise
                limited = True
                if self.arenas > 16:
                    self.arenas //= 2
                else:
                    self.arena_size //= 2
                continue
            if not limited:
                return mapped
            # As much as there is: the program needs most of that for other things.
            mapped.close()
            self.arena_size //= 4
            limited = False

    @property
    def is_small(self) -> bool:
        """Whether much of what is loaded will not fit."""
        return self.arena_size < _SMALL

    def arena_of(self, offset: int) -> int:
        return (offset - STATUS_SIZE) // self.arena_size

    def start_of(self, arena: int) -> int:
        return STATUS_SIZE + arena * self.arena_size

    def view(self, block: Block) -> memoryview:
        """The bytes of `block`."""
        offset, size = block
        return self._view[offset : offset + size]

    def leased(self, block: Block) -> memoryview:
        """As `view`; when the last that refers to it is gone, the block is freed."""
        view = self.view(block)
        # The callback may run in any thread at any allocation, also inside code of ours that
        # holds a lock: it takes none.
        self._leases[block[0]] = _Lease(view, self._lease_ended, block)
        return view

    def _lease_ended(self, lease: _Lease) -> None:
        del self._leases[lease.block[0]]
        self.free(lease.block)

    def free(self, block: Block) -> None:
        """Nobody in this process needs `block` any more. Any thread, finalizers too."""
        self.freed[self.arena_of(block[0])].append(block)

    def take_freed(self, arena: int) -> list[Block]:
        freed, found = self.freed[arena], []
        while freed:
            found.append(freed.popleft())
        return found

    def discard(self, start: int, size: int) -> None:
        """Give the memory of these bytes back, which nobody uses: whole pages of it."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            # Where it is refused, it is only memory that is lost.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                self._map.madvise(mmap.MADV_REMOVE, first, last - first)


def _arrived(file: Any, arena_size: int, arenas: int) -> SharedMemory:
    memory = SharedMemory.__new__(SharedMemory)
    memory.arena_size, memory.arenas, memory._file = arena_size, arenas, file.detach()
    try:
        memory._begin(mmap.mmap(memory._file, memory._size))
    finally:
        memory.close_file()
    return memory


class _Lease(weakref.ref[memoryview]):
    __slots__ = ("block",)
    block: Block

    def __new__(cls, view: memoryview, callback: Callable[[Any], None], block: Block) -> _Lease:
        self = super().__new__(cls, view, callback)
        self.block = block
        return self

    def __init__(self, *_: Any) -> None:
        """`weakref.ref` has no place for more arguments here either."""


class Arena:
    """The part of the memory that one worker writes to: which of it is free. Has one user."""

    def __init__(self, memory: SharedMemory, number: int) -> None:
        self.memory = memory
        start = memory.start_of(number)
        self._end = start + memory.arena_size
        #: Free extents by address; neighbours are always joined.
        self._starts = [start]
        self._sizes = {start: memory.arena_size}
        #: Where what was never written to begins.
        self._fresh = start
        #: Something was released since the last `trim`.
        self._released = False

    def allocate(self, size: int) -> Block | None:
        """A block of `size` bytes, the lowest that is free: it was written to before, most
        likely, and its pages are there. None: the arena is full."""
        needed = -(-size // ALIGNMENT) * ALIGNMENT
        for place, start in enumerate(self._starts):
            free = self._sizes[start]
            if free >= needed:
                del self._sizes[start]
                if free == needed:
                    del self._starts[place]
                else:
                    self._starts[place] = start + needed
                    self._sizes[start + needed] = free - needed
                self._fresh = max(self._fresh, start + needed)
                return start, size
        return None

    def trim(self) -> None:
        """Give back the memory of what is free."""
        if not self._released:
            return
        self._released = False
        for start in self._starts:
            self.memory.discard(start, min(self._sizes[start], self._fresh - start))

    def release(self, block: Block) -> None:
        self._released = True
        start, size = block
        size = -(-size // ALIGNMENT) * ALIGNMENT
        place = bisect_left(self._starts, start)
        if place < len(self._starts) and self._starts[place] == start + size:
            size += self._sizes.pop(self._starts[place])
            del self._starts[place]
        if place and self._starts[place - 1] + self._sizes[self._starts[place - 1]] == start:
            self._sizes[self._starts[place - 1]] += size
        else:
            insort(self._starts, start)
            self._sizes[start] = size


def _physical_memory() -> int:
    """Bytes of memory that the machine has, in whole GiB: no arena can need more."""
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        size = 1 << 34
    return -(-size // (1 << 30)) << 30
