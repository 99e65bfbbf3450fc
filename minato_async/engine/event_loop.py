"""The engine's event loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable

from minato_async.lifecycle.descriptors import above_standard

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # not built for every platform; asyncio's own loop does the same, slower
    from asyncio import new_event_loop

#: Seconds that a thread may need to put a callback into the loop's queue.
_SENDING = 1.0


class EventLoopThread:
    """Runs one coroutine function on an event loop of its own until it is asked to stop.

    `main(stop)` must return soon after the event `stop` is set. It runs in this thread and not
    in the consumer's loop: a training step that blocks the consumer must not stall loading.
    """

    def __init__(self, name: str, main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        self._main = main
        with above_standard():
            self._loop = new_event_loop()
        self._stop = asyncio.Event()
        # `send` runs inside finalizers, which the collector may start in any thread at any
        # allocation, and in the main thread Ctrl-C may end it anywhere. So it waits for nothing,
        # holds nothing, and may be called again until it has succeeded.
        self._stop_sent = False
        #: One entry for each thread that is inside `send`.
        self._senders: deque[None] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError while the interpreter shuts down."""
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    def stop_soon(self) -> None:
        """Ask `main` to end, without waiting. Any thread, any number of times, finalizers too."""
        if not self._stop_sent:
            self.send(self._stop.set)
            self._stop_sent = True

    def send(self, callback: Callable[[], object]) -> None:
        """As `call_soon`, also when `main` may have returned, and for finalizers."""
        self._senders.append(None)
        try:
            if not self._closing:
                self._loop.call_soon_threadsafe(callback)
        finally:
            self._senders.pop()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Run `callback` on the loop. The caller must know that `main` has not returned yet."""
        self._loop.call_soon_threadsafe(callback)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> None:
        """Run `callback` on the loop after `seconds`. On the loop only."""
        self._loop.call_later(seconds, callback)

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the thread to end; True if it has."""
        if self._thread is threading.current_thread():
            return False  # a finalizer, started in this very thread by the collector
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        main = self._main
        # It refers to whoever holds this object: a circle that only the collector could free.
        del self._main
        try:
            self._loop.run_until_complete(main(self._stop))
        finally:
            # The loop may only be closed once no other thread is inside call_soon_threadsafe:
            # closing under it frees what it writes to. Not wait for ever: of a sender that Ctrl-C
            # has ended the entry may be left.
            self._closing = True
            deadline = time.monotonic() + _SENDING
            while self._senders and time.monotonic() < deadline:
                time.sleep(1e-4)
            self._loop.close()
