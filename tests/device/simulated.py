"""An accelerator played by a thread, which does as late, and in as bad an order, as it may.

Its memory is the program's, and its tensors are on the CPU for torch. What is put into a stream
holds addresses and no references, as on a device: memory that is freed is poisoned by the stream
that it belongs to, and given to whoever asks next. So whoever reads it in another stream without
having been waited for reads poison; a copy whose source is gone before it was made is a fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

POISON = 0xA5


class Stream:
    """Operations that are done one after the other. `lag`: so many stay undone, as long as nobody
    waits for them."""

    def __init__(self, lag: int = 0) -> None:
        self.lag = lag
        self.operations: deque[Any] = deque()
        #: Somebody waits for all that was put in so far.
        self.flushed = False


class Mark:
    """A place in a stream; done when the device comes to it."""

    def __init__(self, device: Simulated, stream: Stream) -> None:
        self._device, self.stream = device, stream
        self.when: float | None = None
        device.put(stream, self)

    def reached(self) -> bool:
        return self.when is not None

    def wait(self) -> None:
        self._device.wait_for([self])

    def seconds_since(self, earlier: Any) -> float:
        assert self.when is not None
        return self.when - float(earlier.when)


class Wait:
    """What comes behind it in a stream waits for a mark in another one."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark


class Block:
    """Memory of the device. It belongs to a stream, and is never given back to the system."""

    def __init__(self, size: int, owner: Stream) -> None:
        self.size, self.owner = size, owner
        self.bytes = np.full(size, POISON, np.uint8)
        #: Streams that have to have passed before it is used again.
        self.recorded: set[Stream] = set()


class Simulated:
    """A `minato_async.device.backend.Backend`."""

    def __init__(self, seed: int = 0, copy_lag: int = 0, step_lag: int = 0) -> None:
        self.device = torch.device("cuda:0")
        self._prefetch = Stream(copy_lag)
        #: That of the consumer.
        self.main = Stream(step_lag)
        self._streams = [self._prefetch, self.main]
        self._random = random.Random(seed)
        # Reentrant: a tensor may be freed, by the collector, inside any line below.
        self._changed = threading.Condition(threading.RLock())
        self._blocks: dict[int, Block] = {}
        self._free: dict[int, list[Block]] = {}
        #: Freed, and marks that have to be reached before they may be used.
        self._pending: list[tuple[Block, list[Mark]]] = []
        #: Nothing is done before the test lets it.
        self.held = False
        self.faults: list[str] = []
        #: Blocks that were used again.
        self.reused = 0
        self._here = threading.local()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="simulated device", daemon=True)

    def __enter__(self) -> Simulated:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()

    # What a prefetch asks for

    @contextlib.contextmanager
    def prefetching(self) -> Iterator[None]:
        self._here.stream = self._prefetch
        try:
            yield
        finally:
            self._here.stream = self.main

    @property
    def current(self) -> Stream:
        stream: Stream = getattr(self._here, "stream", self.main)
        return stream

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        source, shape = weakref.ref(tensor), tuple(tensor.shape)
        block, target = self._allocate(tensor.nbytes, tensor.dtype, shape)

        def run() -> None:
            there = source()
            if there is None:
                self.faults.append(f"the source of a copy of shape {shape} was freed before it")
            else:
                block.bytes[:] = there.contiguous().view(-1).numpy().view(np.uint8)

        self.put(self.current, run)
        return target

    def mark(self) -> Mark:
        return Mark(self, self.current)

    def hand_over(self, ready: Any, tensors: Iterable[torch.Tensor]) -> Mark:
        asked = self.mark()
        self.put(self.current, Wait(ready))
        with self._changed:
            for tensor in tensors:
                self._blocks[tensor.data_ptr()].recorded.add(self.current)
        return asked

    # What a program has the device do

    def kernel(self, function: Callable[[Any], Any], tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like `tensor`, made of it by `function`, of arrays, when the device comes to
        it."""
        source = self._blocks[tensor.data_ptr()]
        kind = tensor.numpy().dtype
        block, target = self._allocate(tensor.nbytes, tensor.dtype, tuple(tensor.shape))

        def run() -> None:
            block.bytes[:] = np.ascontiguousarray(function(source.bytes.view(kind))).view(np.uint8)

        self.put(self.current, run)
        return target

    def read(self, tensor: torch.Tensor, into: list[Any]) -> None:
        """Have the device append to `into` what it finds in the memory of `tensor`."""
        block, kind = self._blocks[tensor.data_ptr()], tensor.numpy().dtype
        self.put(self.current, lambda: into.append(block.bytes.view(kind).tolist()))

    def synchronize(self) -> None:
        """Wait for all that was put into any stream."""
        self.wait_for([Mark(self, stream) for stream in self._streams])

    def wait_for(self, marks: list[Mark]) -> None:
        with self._changed:
            for mark in marks:
                mark.stream.flushed = mark.stream.flushed or not mark.reached()
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: all(m.reached() for m in marks), 60)

    def let_go(self) -> None:
        with self._changed:
            self.held = False
            self._changed.notify_all()

    def put(self, stream: Stream, operation: Any) -> None:
        with self._changed:
            stream.operations.append(operation)
            self._changed.notify_all()

    # Memory

    def _allocate(self, size: int, dtype: torch.dtype, shape: Any) -> tuple[Block, torch.Tensor]:
        with self._changed:
            self._reclaim()
            free = self._free.get(size)
            block = free.pop() if free else Block(size, self._prefetch)
            self.reused += block.recorded is not None and bool(free is not None)
            address = block.bytes.ctypes.data
            lease = type("Lease", (ctypes.c_char * size,), {}).from_address(address)
            weakref.finalize(lease, self._freed, block).atexit = False
            self._blocks[address] = block
        return block, torch.frombuffer(lease, dtype=dtype).view(shape)

    def _freed(self, block: Block) -> None:
        """The last reference to a tensor in `block` is gone."""
        with self._changed:
            marks = [Mark(self, stream) for stream in block.recorded]
            block.recorded.clear()
            self._pending.append((block, marks))
            self._reclaim()

    def _reclaim(self) -> None:
        still = []
        for block, marks in self._pending:
            if all(mark.reached() for mark in marks):
                self.put(block.owner, lambda block=block: block.bytes.fill(POISON))
                self._free.setdefault(block.size, []).append(block)
            else:
                still.append((block, marks))
        self._pending = still

    # The device

    def _run(self) -> None:
        while True:
            with self._changed:
                stream = self._next()
                while stream is None:
                    if self._over:
                        return
                    self._changed.wait()
                    stream = self._next()
                self._do(stream)

    def _next(self) -> Stream | None:
        """A stream of which something may be done, and does not have to wait any longer."""
        if self.held:
            return None
        ready = []
        for stream in self._streams:
            operations = stream.operations
            if not operations:
                stream.flushed = False
                continue
            if len(operations) <= stream.lag and not stream.flushed:
                continue
            if isinstance(operations[0], Wait) and not operations[0].mark.reached():
                if stream.flushed:
                    operations[0].mark.stream.flushed = True
                continue
            ready.append(stream)
        if not ready:
            # A stream that another waits for may have been flushed just now.
            ready = [s for s in self._streams if s.flushed and s.operations]
            ready = [s for s in ready if not isinstance(s.operations[0], Wait)]
        return self._random.choice(ready) if ready else None

    def _do(self, stream: Stream) -> None:
        operation = stream.operations.popleft()
        if isinstance(operation, Mark):
            operation.when = time.perf_counter()
            self._changed.notify_all()
        elif not isinstance(operation, Wait):
            operation()
