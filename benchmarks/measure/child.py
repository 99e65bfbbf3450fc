"""Calls a function in a fresh interpreter with the same options, and brings its result back.

For what must not see the threads, memory or imports of the measuring process. Arguments and result
travel as JSON; the child's result is the last line it prints.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import Any

TIMEOUT = 300.0
"""Seconds after which a child is killed."""


def interpreter() -> list[str]:
    """This interpreter with the ``-X`` options it was started with (the GIL may be one)."""
    options = [
        f"-X{name}" if value is True else f"-X{name}={value}"
        for name, value in sys._xoptions.items()
    ]
    return [sys.executable, *options]


def call_in_child(function: str, **arguments: Any) -> Any:
    """Call ``"package.module:function"`` in a child; ``RuntimeError`` if the child fails."""
    done = subprocess.run(
        [*interpreter(), "-m", __name__, function, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"child {function} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _main(function: str, arguments: str) -> None:
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    print(json.dumps(result), flush=True)
    # Some loaders leave daemon threads inside torch, which abort the interpreter's exit: how a
    # process ends is for the tests to say, not for a measurement that is finished.
    os._exit(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
