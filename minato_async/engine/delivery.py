"""Delivery: the batch queue and the consumers that wait on it, `for` and `async for` alike."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from minato_async.engine.batches import Batch
from minato_async.engine.bell import Bell


class Delivery:
    """Hands each batch to one consumer, by position or as they complete.

    The caller holds the engine's lock.
    """

    def __init__(self, by_position: bool) -> None:
        self._by_position = by_position
        self._queue: deque[Batch] = deque()
        self._bells: list[Bell] = []
        self._async_waiters: list[asyncio.Future[None]] = []

    def expect(self, batch: Batch) -> None:
        """`batch` was drawn next: its turn is fixed, if order is kept."""
        if self._by_position:
            self._queue.append(batch)

    def put(self, batch: Batch) -> None:
        """`batch` is complete, or lost and carries its failure."""
        batch.ready = True
        if not self._by_position:
            self._queue.append(batch)
        if self._queue[0].ready:
            self.wake()

    def pop(self) -> Batch | None:
        """The batch whose turn it is, or None if it is not ready."""
        if self._queue and self._queue[0].ready:
            return self._queue.popleft()
        return None

    def add_waiter(self) -> Bell:
        """A bell that rings once there may be something new. Wait on it without the lock."""
        bell = Bell()
        self._bells.append(bell)
        return bell

    def add_async_waiter(self) -> asyncio.Future[None]:
        """A future on the running loop that is done once there may be something new.

        It carries no batch: a cancelled waiter has nothing to lose.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._async_waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Let every consumer look again. All of them: one that was cancelled while it woke
        could not pass the news on."""
        bells, self._bells = self._bells, []
        for bell in bells:
            bell.ring()
        waiters, self._async_waiters = self._async_waiters, []
        for waiter in waiters:
            # A loop that was closed in the meantime has nobody left to wake.
            with contextlib.suppress(RuntimeError):
                waiter.get_loop().call_soon_threadsafe(_resolve, waiter)

    def clear(self) -> None:
        self._queue.clear()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
