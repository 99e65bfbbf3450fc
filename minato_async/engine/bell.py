"""How threads and coroutines wait for news, and how they are woken."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from queue import Empty, SimpleQueue

from minato_async.engine.protocols import Ringable


class Bell:
    """Wakes the one thread that waits on it. A ring before the wait is not lost.

    A `SimpleQueue` underneath, because its reader parks at once: on free-threaded CPython a
    waiter on a `Lock`, and so on a `Condition`, first spins through 40 scheduler yields, which
    costs the workers the core that it is waiting for them to use. In the main thread the wait can
    be interrupted by a signal.
    """

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        self._rings.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until rung, for `timeout` seconds at most; False if it was not."""
        try:
            self._rings.get(timeout=timeout)
        except Empty:
            return False
        return True


class AsyncBell:
    """Wakes the one coroutine that awaits `rung`, on the loop on which it was made.

    It carries nothing but the news, so a cancelled waiter has nothing to lose.
    """

    __slots__ = ("rung",)

    def __init__(self) -> None:
        self.rung: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ring(self) -> None:
        # A loop that was closed in the meantime has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self.rung.get_loop().call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.rung.done():
            self.rung.set_result(None)


class DueBells:
    """What is due as soon as the engine's lock is released: bells to ring, and things to free.

    Rung under the lock, bells would wake threads straight into waiting for it. So whoever holds
    the lock calls `add`, and `ring` after the release; the queue is safe between threads, and it
    does not matter whose bells one rings.

    Freeing what was the user's may run code of the user's, which may wait for whatever a worker
    holds that waits for the engine's lock. So whoever holds the lock calls `drop` for what is not
    needed any more, and workers and consumers call `free` when they do not hold it. The event loop
    does not: it is to wait for nobody.
    """

    def __init__(self) -> None:
        # With a number each, so that no two entries are equal: a bell may become due again while
        # another thread is still about to remove the entry that it has rung.
        self._due: deque[tuple[int, Ringable]] = deque()
        self._added = 0
        self._dropped: deque[object] = deque()

    def add(self, bell: Ringable) -> None:
        self._added += 1
        self._due.append((self._added, bell))

    def ring(self) -> None:
        due = self._due
        while due:
            try:
                entry = due[0]
            except IndexError:  # another thread rang the last one
                return
            # Rung before it is removed: Ctrl-C in between must not leave its owner asleep for
            # ever. To ring twice does no harm.
            entry[1].ring()
            # Not `contextlib.suppress`, which is three more calls in every `next()`.
            try:  # noqa: SIM105
                due.remove(entry)
            except ValueError:  # another thread rang it too
                pass

    def drop(self, *things: object) -> None:
        """Nobody needs `things` any more."""
        self._dropped += things

    def free(self) -> None:
        """Let go of what was dropped."""
        dropped = self._dropped
        while dropped:
            try:
                # One by one, so that whoever drops something at this moment finds the queue.
                dropped.popleft()
            except IndexError:  # another thread freed the last one
                return
