"""Tells the user when something has turned the GIL back on: threads then gain little."""

from __future__ import annotations

import ctypes
import re
import sys
import sysconfig
import threading
import types
import warnings
from importlib.machinery import ExtensionFileLoader
from typing import Any

from minato_async.user_warnings import PACKAGE

_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

#: Taken by the first to warn, and never released. No flag, for two threads may start at once.
_warned = threading.Lock()


def warn_if_on(executor: str) -> None:
    """Warn, once in a process, if this Python is free-threaded and its GIL is on all the same.
    `executor`: what loads.

    Asked again for every epoch: an import in between may have turned it on.
    """
    if _FREE_THREADED and gil_is_on() and _warned.acquire(blocking=False):
        _warn(_explanation(executor))


def gil_is_on() -> bool:
    """Whether threads run Python code one at a time in this process, now."""
    enabled: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
    return enabled


def _warn(message: str) -> None:
    if sys.version_info >= (3, 12):
        warnings.warn(message, RuntimeWarning, skip_file_prefixes=(PACKAGE,))


def _explanation(executor: str) -> str:
    effect = "worker threads run Python code one at a time."
    if executor == "process":
        effect = "worker processes load, because threads would run Python code one at a time."
    if getattr(sys.flags, "gil", None) == 1:
        return (
            "The GIL is on, because PYTHON_GIL=1 or -X gil=1 asks for it; no module has turned "
            f"it on. So {effect} To have it off, leave that out."
        )
    module = module_that_turned_it_on()
    if module is None:
        cause = "some import has turned it on; which one can no longer be told"
        unsafe = "That module has"
    else:
        cause = f"importing {module!r} has turned it on"
        unsafe = f"{module!r} has"
    return (
        f"The GIL is on: {cause}. So {effect} To keep it off, start Python with PYTHON_GIL=0 or "
        f"-X gil=0. {unsafe} not declared that it is safe without the GIL: see that it is."
    )


def module_that_turned_it_on() -> str | None:
    """The name of the module whose import turned the GIL on, if it can still be found out."""
    return _named_by_python() or _first_that_needs_it()


def _named_by_python() -> str | None:
    """The module in Python's own warning, which names it and is remembered unless a filter
    suppressed or always shows it. It is charged to the import system's own code."""
    registry: dict[Any, Any] = getattr(
        sys.modules.get("_frozen_importlib"), "__warningregistry__", {}
    )
    for key in list(registry):
        text = str(key[0]) if isinstance(key, tuple) else ""
        if found := re.match(r"The global interpreter lock .* to load module '(.+?)'", text):
            return found[1]
    return None


def _first_that_needs_it() -> str | None:
    """The first loaded extension module that has not declared to be safe without the GIL.

    Modules are listed in the order of their import, and the first of these turns the GIL on.
    """
    offset = _offset_of_declaration()
    if offset is None:
        return None
    for name, module in list(sys.modules.items()):
        # Exact type: others may do anything when looked at, lazy ones import themselves.
        if type(module) is not types.ModuleType:
            continue
        spec = vars(module).get("__spec__")
        is_extension = isinstance(getattr(spec, "loader", None), ExtensionFileLoader)
        if is_extension and not _word_at(module, offset):
            return name
    return None


def _offset_of_declaration() -> int | None:
    """Where a module object keeps what it declared about the GIL, Py_MOD_GIL_USED (0) or
    Py_MOD_GIL_NOT_USED (1); None if this Python's modules are not as we know them.

    No function tells it. Since 3.13 it is the last field: the module's name before it, and before
    that the list of weak references.
    """
    word = ctypes.sizeof(ctypes.c_void_p)
    offset: int = types.ModuleType.__weakrefoffset__ + 2 * word
    if types.ModuleType.__basicsize__ != offset + word:
        return None
    # `sys` has declared it, and what Python code makes has not.
    known = _word_at(sys, offset), _word_at(types.ModuleType("new"), offset)
    return offset if known == (1, 0) else None


def _word_at(module: types.ModuleType, offset: int) -> int:
    return ctypes.c_size_t.from_address(id(module) + offset).value
