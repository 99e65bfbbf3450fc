"""`sys.stdout` and `sys.stderr`, which a worker may redirect for itself."""

from __future__ import annotations

import builtins
import functools
import sys
from typing import Any

from minato_async.process_wide.by_thread import divide, thread


def install() -> None:
    divide(sys, ("stdout", "stderr"), {})
    builtins.print = _by_thread(print)


def _by_thread(original: Any) -> Any:
    """`print` looks for `stdout` in the dictionary of `sys`, where the process's lies."""
    local, key = thread, ("sys", "stdout")

    @functools.wraps(original)
    def print(*args: Any, **kwargs: Any) -> None:
        own = local.own
        if own is not None and key in own.attributes and kwargs.get("file") is None:
            kwargs["file"] = own.attributes[key]
            if kwargs["file"] is None:  # there is no output, which is not the process's
                return
        original(*args, **kwargs)

    return print
