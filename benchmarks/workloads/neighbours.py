"""Other programs on the same cores: processes that do nothing but compute."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_SPIN = "print(flush=True)\nwhile True: pass"


@contextlib.contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Within this, `count` other processes are busy. They have begun when it is entered."""
    neighbours: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-S", "-c", _SPIN]
            neighbours.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        for neighbour in neighbours:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
        for neighbour in neighbours:
            neighbour.communicate()


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[int]:
    """Within this, the calling thread and what it starts run on so many cores, or on all that there
    are if they are fewer: as many as are yielded."""
    if not hasattr(os, "sched_setaffinity"):  # not Linux
        yield os.cpu_count() or 1
        return
    before = os.sched_getaffinity(0)
    chosen = set(sorted(before)[:count])
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, before)
