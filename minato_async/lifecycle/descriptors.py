"""Descriptors: above the standard streams, and files that are read without a file object.

Programs may run with standard input, output or error closed, as daemons do. A descriptor opened
there gets one of their numbers, and whatever writes to "standard error", a C library say, writes
into it. libuv even aborts when it comes to close such a one.

A file object costs too much where others wait: on free-threaded CPython 3.13 its critical sections
are entered again by their own thread, which first yields the core forty times. Beside other
programs each of these takes a time slice.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_STANDARD = (0, 1, 2)

# Held while the numbers are taken: else another thread that waits for them to be taken would see
# them so, and find them free a moment later.
_lock = threading.Lock()


@contextlib.contextmanager
def above_standard() -> Iterator[None]:
    """Within this, what is opened gets no number that belongs to a standard stream."""
    with _lock:
        taken = []
        try:
            while (number := os.open(os.devnull, os.O_RDWR)) in _STANDARD:
                taken.append(number)
            os.close(number)
            yield
        finally:
            for number in taken:
                os.close(number)


def read_file(path: str) -> bytes:
    """What `path` holds now. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(number, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(number)


#: Numbers of files that are kept open. A forked child has no use for them, and closes its copies.
_kept: set[int] = set()


class KeptFile:
    """A file that is opened once and read over and over, from its beginning. One user at a time;
    a forked child cannot read it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._number: int | None = None
        self._closed = False
        self._pid = os.getpid()

    def read(self, size: int) -> bytes:
        """Its first `size` bytes as they are now. Raises OSError."""
        if self._closed or os.getpid() != self._pid:
            raise ValueError(f"{self._path} is closed")
        if self._number is None:
            with above_standard():
                self._number = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            _kept.add(self._number)
        return os.pread(self._number, size, 0)

    def close(self) -> None:
        """Idempotent. In a forked child its copy is closed already."""
        number, self._number, self._closed = self._number, None, True
        if number is not None and os.getpid() == self._pid:
            _kept.discard(number)
            os.close(number)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for number in list(_kept):
        with contextlib.suppress(OSError):
            os.close(number)
    _kept.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
