"""Interpreter exit: every engine still running is closed before Python is taken apart."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from typing import Protocol

#: Seconds that workers get to come to the end of what they run, and seconds more for those that
#: `interrupt` reaches.
_GRACE = 1.0
_INTERRUPTED_GRACE = 1.0


class Closable(Protocol):
    def close_soon(self) -> None: ...

    def join(self, timeout: float | None = None) -> bool: ...

    def join_workers(self, timeout: float | None = None) -> bool: ...

    def interrupt(self) -> None: ...


# Engines are members from start to end of their event loop. The references are strong: a running
# thread keeps its engine alive anyway, and a weak set would run callbacks under this lock.
_lock = threading.Lock()
_running: set[Closable] = set()


def register(engine: Closable) -> None:
    with _lock:
        _running.add(engine)


def forget(engine: Closable) -> None:
    with _lock:
        _running.discard(engine)


def _close_all() -> None:
    """A worker inside a torch operator when the interpreter finalises aborts the process, and
    one stuck in a sleep must not hold it up: so join them all, and in bounded time."""
    with _lock:
        engines = list(_running)
    for engine in engines:
        engine.close_soon()
    if _join(engines, _GRACE):
        return
    for engine in engines:
        engine.interrupt()
    if not _join(engines, _INTERRUPTED_GRACE):
        _never_abort()


def _join(engines: list[Closable], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    joined = []
    for engine in engines:
        joined.append(engine.join(max(0.0, deadline - time.monotonic())))
        # Workers that were given up are not waited for by the loop.
        joined.append(engine.join_workers(max(0.0, deadline - time.monotonic())))
    return all(joined)


def _never_abort() -> None:
    """Make a thread that comes back from an operator after the interpreter has gone stop there.

    Before 3.14 Python ends such a thread by unwinding its stack, and C++ answers that with
    `std::terminate`, which aborts the process. Here it waits for the process to end instead.
    """
    if sys.version_info >= (3, 14):
        return  # Python itself lets such a thread hang
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        pause = ctypes.CDLL(None).pause
    except (OSError, AttributeError):
        return  # another platform, or another C++ library
    set_terminate(ctypes.cast(pause, ctypes.c_void_p))


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _running.clear()


# Not with `threading._register_atexit`, which runs before the threads that are no daemons are
# joined: one of them may be training, and would see its epoch end early.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
