"""How a thread waits for news."""

from __future__ import annotations

from queue import SimpleQueue


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

    def wait(self) -> None:
        self._rings.get()
