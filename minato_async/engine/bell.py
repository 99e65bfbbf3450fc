"""How threads and coroutines wait for news, and how they are woken."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from queue import Empty, SimpleQueue

from minato_async.executors.base import Ringable


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
    """Bells to ring as soon as the engine's lock is released.

    Rung under the lock, they would wake threads straight into waiting for it. So whoever holds
    the lock calls `add`, and `ring` after the release; the queue is safe between threads, and it
    does not matter whose bells one rings.
    """

    def __init__(self) -> None:
        self._due: deque[Ringable] = deque()

    def add(self, bell: Ringable) -> None:
        self._due.append(bell)

    def ring(self) -> None:
        due = self._due
        while due:
            try:
                bell = due[0]
            except IndexError:  # another thread rang the last one
                return
            # Rung before it is removed: Ctrl-C in between must not leave its owner asleep for
            # ever. To ring twice does no harm.
            bell.ring()
            # Not `contextlib.suppress`, which is three more calls in every `next()`.
            try:  # noqa: SIM105
                due.remove(bell)
            except ValueError:  # another thread rang it too
                pass
