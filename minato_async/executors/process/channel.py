"""Messages between the parent's event loop and one worker process, over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable

_HEADER = struct.Struct("!Q")
_CHUNK = 1 << 18

#: The parent's ends. A forked child closes its copies, or a worker would not be told of the
#: parent's end as long as that child lives.
_parents_ends: set[socket.socket] = set()


def parents_end(end: socket.socket) -> socket.socket:
    """`end`, to be closed in every child that is forked from now on."""
    _parents_ends.add(end)
    return end


def close_parents_end(end: socket.socket) -> None:
    _parents_ends.discard(end)
    end.close()


def _after_fork_in_child() -> None:
    for end in list(_parents_ends):
        end.close()
    _parents_ends.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


class LoopChannel:
    """The parent's end, on its event loop: it never blocks. `on_message` is called with the bytes
    of every message that comes. All methods on the loop alone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        on_message: Callable[[bytes], None],
    ) -> None:
        self._loop = loop
        self._end = parents_end(end)
        self._on_message = on_message
        end.setblocking(False)
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._open = True
        #: Told to end once what is still to be sent is sent.
        self._ending = False
        loop.add_reader(end.fileno(), self._readable)

    def send(self, message: bytes) -> None:
        """Send `message`, now or as soon as the worker takes it."""
        if not self._open:
            return
        idle = not self._outgoing
        self._outgoing += _HEADER.pack(len(message))
        self._outgoing += message
        if idle:
            self._writable()

    def end(self) -> None:
        """Nothing more will be sent: the worker ends when it has read all."""
        self._ending = True
        self._end_if_sent()

    def _end_if_sent(self) -> None:
        if self._open and self._ending and not self._outgoing:
            with contextlib.suppress(OSError):
                self._end.shutdown(socket.SHUT_WR)

    def _writable(self) -> None:
        if not self._open:
            return
        try:
            sent = self._end.send(self._outgoing)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            # The worker is gone; its end is told by the fork server.
            self._outgoing.clear()
            self._loop.remove_writer(self._end.fileno())
            return
        del self._outgoing[:sent]
        if self._outgoing:
            self._loop.add_writer(self._end.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._end.fileno())
            self._end_if_sent()

    def _readable(self) -> None:
        self._read(1)

    def _read(self, chunks: int) -> None:
        while self._open and chunks:
            chunks -= 1
            try:
                data = self._end.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._loop.remove_reader(self._end.fileno())
                return
            self._incoming += data
            self._deliver()

    def _deliver(self) -> None:
        incoming, start = self._incoming, 0
        while len(incoming) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(incoming, start)
            stop = start + _HEADER.size + size
            if len(incoming) < stop:
                break
            message = bytes(memoryview(incoming)[start + _HEADER.size : stop])
            start = stop
            self._on_message(message)
        del incoming[:start]

    def close(self) -> None:
        """Read what has come, and let go. Idempotent."""
        if not self._open:
            return
        self._read(1 << 30)
        self._open = False
        self._loop.remove_reader(self._end.fileno())
        self._loop.remove_writer(self._end.fileno())
        close_parents_end(self._end)


class WorkerChannel:
    """The worker's end: it blocks."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._end = end
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        # A child that the user's code forks, and lets return, is not to go on as this worker.
        os.register_at_fork(after_in_child=end.close)

    def send(self, message: bytes) -> None:
        self._end.sendall(_HEADER.pack(len(message)) + message)

    def wait(self, seconds: float) -> bool:
        """Whether there is something to receive within that time: a message, or the end."""
        return bool(self._buffer or self._poll.poll(seconds * 1000))

    def receive(self) -> bytes | None:
        """The next message; None when the parent has no more, or is gone."""
        while True:
            buffer = self._buffer
            if len(buffer) >= _HEADER.size:
                (size,) = _HEADER.unpack_from(buffer)
                stop = _HEADER.size + size
                if len(buffer) >= stop:
                    message = bytes(memoryview(buffer)[_HEADER.size : stop])
                    del buffer[:stop]
                    return message
            try:
                data = self._end.recv(_CHUNK)
            except OSError:
                return None
            if not data:
                return None
            buffer += data
