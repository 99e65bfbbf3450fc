"""Calls a function in a fresh interpreter, and leaves nothing of it behind.

For what must not see the threads, memory or imports of the measuring process. Arguments and result
travel as JSON through pipes of their own, so that whatever a library prints is not in their way.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, TextIO

import psutil

SILENCE = 300.0
"""Seconds without a word after which a child is given up. The longest silence of a healthy one is
its import of torch from a cold disk."""

LAST_WORDS = 4000
"""Characters of a failed child's standard error that are told."""


class ChildFailed(RuntimeError):
    """A child came to no result.

    The message says why: all that it wrote to its standard error, cut at the front. ``reason`` is
    its last line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.reason = message.splitlines()[-1].strip()


def interpreter() -> list[str]:
    """This interpreter with the ``-X`` options it was started with (the GIL may be one)."""
    options = [
        f"-X{name}" if value is True else f"-X{name}={value}"
        for name, value in sys._xoptions.items()
    ]
    return [sys.executable, *options]


def call_in_child(
    function: str,
    *,
    python: Sequence[str] | None = None,
    told: Callable[[Any], object] | None = None,
    watch: Callable[[int], AbstractContextManager[object]] = contextlib.nullcontext,
    silence: float = SILENCE,
    **arguments: Any,
) -> Any:
    """Call ``"package.module:function"`` with `arguments` in a child, and return what it returns.

    ``python``: the interpreter and its options, :func:`interpreter` unless given. ``told`` gets
    what the child tells meanwhile, with :func:`tell`. ``watch`` is entered with the child's process
    id while it runs. ``silence``: seconds without a word after which it is given up.

    Raises :class:`ChildFailed`. Whatever happens, the child and its own children are gone then.
    """
    command = [*(python or interpreter()), "-m", __name__, function]
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            encoding="utf-8",
        )
        try:
            with watch(child.pid):
                messages = _converse(child, arguments, told, silence)
            if child.wait() == 0 and "result" in messages:
                return messages["result"]
            raise ChildFailed(_last_words(child, complaints))
        finally:
            _end(child)


def _converse(
    child: subprocess.Popen[str],
    arguments: dict[str, Any],
    told: Callable[[Any], object] | None,
    silence: float,
) -> dict[str, Any]:
    """Give the child its arguments and listen until it ends; returns its last message."""
    assert child.stdin is not None
    assert child.stdout is not None
    # It may have died at its start: why is told by what it wrote to its standard error.
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(arguments))
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    # A thread, because reading a pipe takes no time limit.
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(child.stdout, lines), daemon=True).start()
    message: dict[str, Any] = {}
    while True:
        try:
            line = lines.get(timeout=silence)
        except queue.Empty:
            raise ChildFailed(f"no sign of life for {silence:.0f} s") from None
        if line is None:
            return message
        message = json.loads(line)
        if told is not None and "told" in message:
            told(message["told"])


def _read_lines(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    try:
        for line in stream:
            lines.put(line)
    except (OSError, ValueError):
        pass  # Closed, because the child is being given up.
    lines.put(None)


def _last_words(child: subprocess.Popen[str], complaints: IO[bytes]) -> str:
    complaints.seek(0)
    words = complaints.read().decode(errors="replace").strip()[-LAST_WORDS:]
    return words or f"its process ended with exit code {child.returncode}"


def _end(child: subprocess.Popen[str]) -> None:
    """Kill whatever is left of the child and its workers, and wait until it is gone."""
    try:
        root = psutil.Process(child.pid)
        left = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        left = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


_to_parent: TextIO | None = None


def tell(message: Any) -> None:
    """In a child: pass something on to its parent, as JSON. Elsewhere it does nothing."""
    _send({"told": message})


def _send(message: dict[str, Any]) -> None:
    if _to_parent is not None:
        _to_parent.write(json.dumps(message) + "\n")
        _to_parent.flush()


def _main(function: str) -> None:
    # Imported by its name, for the function that is called imports `tell` by it too.
    this: Any = importlib.import_module("minato_async.cli.measure.child")
    # What a library prints must not end up between the messages.
    this._to_parent = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    arguments = json.loads(sys.stdin.read())
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(**arguments)
    this._send({"result": result})
    # Some loaders leave daemon threads inside torch, which abort the interpreter's exit: how a
    # process ends is for the tests to say, not for a measurement that is finished.
    os._exit(0)


# Workers that are not forked import this file again: they must not measure.
if __name__ == "__main__":
    _main(sys.argv[1])
