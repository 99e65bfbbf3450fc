"""Putting the dispatch in place, once in a process."""

from __future__ import annotations

import threading

from minato_async.seeding import python_random, torch_mode, torch_random
from minato_async.seeding.rebinding import rebind
from minato_async.seeding.streams import HAS_NUMPY

_lock = threading.Lock()
_installed = False


def install() -> None:
    """Make `random`, `numpy.random` and torch ask which thread is calling.

    Threads that entered no `SampleStreams.active()` get the global generators as before, bit for
    bit. Idempotent, any thread. Best called before workers start; there is no way back.
    """
    global _installed
    with _lock:
        if _installed:
            return
        replacements = python_random.install()
        if HAS_NUMPY:
            from minato_async.seeding import numpy_random

            replacements |= numpy_random.install()
        rebind(replacements)
        torch_mode.install()
        torch_random.install()
        _installed = True
