"""Waiting for threads to end, whoever started them."""

from __future__ import annotations

import threading
import time
from collections.abc import Container


def wait_for_new_threads(before: Container[object], seconds: float) -> list[threading.Thread]:
    """Wait until the threads that are not in `before` have ended, up to `seconds`; returns those
    that have not."""
    deadline = time.monotonic() + seconds
    # Again and again: one that was running may have started another.
    while new := [thread for thread in threading.enumerate() if thread not in before]:
        left = deadline - time.monotonic()
        if left < 0:
            return new
        for thread in new:
            try:
                thread.join(left)
            except RuntimeError:  # it is being started: listed already, but not to be joined yet
                time.sleep(0.001)
    return []
