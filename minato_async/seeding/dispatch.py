"""Putting the dispatch in place, once in a process."""

from __future__ import annotations

import threading

from minato_async.seeding import python_random, torch_draws, torch_random
from minato_async.seeding.rebinding import rebind
from minato_async.seeding.streams import HAS_NUMPY

_lock = threading.Lock()
_installed: set[str] = set()


def install(torch: bool = True) -> None:
    """Make `random`, `numpy.random` and torch ask which thread is calling.

    Threads that entered no `SampleStreams.active()` get the global generators as before, bit for
    bit. Idempotent, any thread. Best called before workers start; there is no way back. `torch`:
    torch too, which samples in worker processes do not need.
    """
    with _lock:
        if "modules" not in _installed:
            replacements = python_random.install()
            if HAS_NUMPY:
                from minato_async.seeding import numpy_random

                replacements |= numpy_random.install()
            rebind(replacements)
            _installed.add("modules")
        if torch and "torch" not in _installed:
            torch_draws.install()
            torch_random.install()
            _installed.add("torch")
