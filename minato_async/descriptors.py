"""Programs that run with standard input, output or error closed, as daemons do.

A descriptor opened there gets one of their numbers, and whatever writes to "standard error", a C
library say, writes into it. libuv even aborts when it comes to close such a one.
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


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
