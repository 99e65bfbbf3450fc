"""Waiting for threads to end, whoever started them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable


def wait_for_new_threads(before: Container[object], seconds: float) -> list[threading.Thread]:
    """Wait until the threads that are not in `before` have ended, up to `seconds`; returns those
    that have not."""
    return _wait_for(lambda: [t for t in threading.enumerate() if t not in before], seconds)


def wait_for_threads(threads: Iterable[threading.Thread], seconds: float) -> list[threading.Thread]:
    """Wait until `threads` have ended, up to `seconds`; returns those that have not."""
    waited_for = set(threads)
    return _wait_for(lambda: [t for t in threading.enumerate() if t in waited_for], seconds)


def _wait_for(
    running: Callable[[], list[threading.Thread]], seconds: float
) -> list[threading.Thread]:
    deadline = time.monotonic() + seconds
    # Again and again: one that was running may have started another.
    while threads := running():
        left = deadline - time.monotonic()
        if left < 0:
            return threads
        for thread in threads:
            try:
                thread.join(left)
            except RuntimeError:  # it is being started: listed already, but not to be joined yet
                time.sleep(0.001)
    return []
