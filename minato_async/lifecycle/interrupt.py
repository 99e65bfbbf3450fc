"""Ending what another thread is doing, at interpreter exit."""

from __future__ import annotations

import ctypes
import threading

from minato_async.checkpoint import SampleCancelled


def interrupt(thread: threading.Thread) -> None:
    """Raise `SampleCancelled` at the next bytecode of `thread`, if it has begun.

    Code that does not come back to Python (a sleep, a long operator) is not interrupted before it
    returns.
    """
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(SampleCancelled)
        )
