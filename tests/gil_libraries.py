"""Libraries that turn the GIL of a free-threaded Python back on when they are imported."""

from __future__ import annotations

import sys
import sysconfig
from typing import Any

import pytest

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
#: Whether such libraries can be imported without consequences for other tests.
SAFE = not FREE_THREADED or sys._xoptions.get("gil") == "0"


def import_or_skip(name: str) -> Any:
    """The module, where it is there and importing it leaves the GIL as it is. Elsewhere the test is
    run by `frameworks/test_apart.py`, in a process of its own."""
    if not SAFE:
        pytest.skip(f"importing {name} would turn the GIL on", allow_module_level=True)
    return pytest.importorskip(name)
