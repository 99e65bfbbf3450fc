"""What a worker thread changes of the process is its own, as in a worker process.

That is what context managers of the standard library change: filters of warnings, `sys.stdout`,
`sys.stderr`; and the event loop that a thread has. What else is one for the whole process stays so.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from minato_async.process_wide import event_loops, output, warning_filters
from minato_async.process_wide.by_thread import Own, entered, is_divided, worker

__all__ = ["Own", "entered", "install", "worker_apart"]

_lock = threading.Lock()


def install() -> None:
    """Make `warnings`, `sys.stdout`, `sys.stderr`, `print` and asyncio ask which thread is calling.

    Nothing changes for threads outside `worker_apart`. Idempotent, also if this package is imported
    anew; any thread; there is no way back.
    """
    with _lock:
        if is_divided(sys):
            return
        warning_filters.install()
        event_loops.install()
        output.install()  # last: `is_divided` asks for it


@contextlib.contextmanager
def worker_apart() -> Iterator[None]:
    """Within this, the calling thread is a worker's, whose changes are its own."""
    with worker(), event_loops.closed_at_the_end():
        yield
