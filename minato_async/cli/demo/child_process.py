"""Starting a measuring child, listening to it, and never leaving it behind."""

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, Any

import psutil

from minato_async.cli.demo.memory import PeakMemory
from minato_async.cli.demo.messages import Result, Task
from minato_async.cli.machine import gil_setting, gil_state

_CHILD = "minato_async.cli.demo.child"

# Seconds without a word after which a loader is taken to hang. The longest silence of a healthy
# one is its import of torch from a cold disk.
_SILENCE = 300.0


class MeasurementError(Exception):
    """A child came to no result; the message says why, for people."""


@dataclass(frozen=True)
class Measurement:
    """One loader, measured once.

    Attributes:
        result: What the child answered.
        peak_memory: Bytes, of all its processes, as `memory.METHOD` says.
    """

    result: Result
    peak_memory: int


def run_child(
    task: Task, on_batch: Callable[[int], None], silence: float = _SILENCE
) -> Measurement:
    """Measure one loader once in a fresh process.

    Args:
        task: What to measure.
        on_batch: Called now and then with the number of batches trained on so far.
        silence: Seconds without a message after which the child is given up.

    Raises:
        MeasurementError: The child failed, or fell silent. It and its workers are gone then.
    """
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            [sys.executable, *_interpreter_options(), "-m", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            encoding="utf-8",
        )
        try:
            with PeakMemory(child.pid) as memory:
                result = _converse(child, task, on_batch, silence)
            if result is None:
                raise MeasurementError(_last_words(child.wait(), complaints))
            return Measurement(result, memory.peak)
        finally:
            _end(child)


def _interpreter_options() -> list[str]:
    """Return the options of the child's interpreter, the same for every loader.

    A free-threaded one is told to keep the GIL off, unless the user has set it: making any of
    torch's optimizers imports torch._dynamo and with it triton, where that is installed, and
    triton's extension turns the GIL on. A training script has to be started in the same way.
    """
    if gil_state() == "always":
        return []  # Such a build knows no such option.
    return ["-X", f"gil={gil_setting() or '0'}"]


def _converse(
    child: subprocess.Popen[str], task: Task, on_batch: Callable[[int], None], silence: float
) -> Result | None:
    """Give the child its task and listen until it ends; None if it ended without a result."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(json.dumps(asdict(task)))
        child.stdin.close()
    except BrokenPipeError:
        pass  # It died at its start; why is told by what it wrote to its standard error.

    # A thread, because reading a pipe takes no time limit.
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(child.stdout, lines), daemon=True).start()
    result: Result | None = None
    while True:
        try:
            line = lines.get(timeout=silence)
        except queue.Empty:
            raise MeasurementError(f"no sign of life for {silence:.0f} s") from None
        if line is None:
            return result if child.wait() == 0 else None
        message: dict[str, Any] = json.loads(line)
        if "batches" in message:
            on_batch(message["batches"])
        elif "result" in message:
            result = Result.from_json(message["result"])


def _read_lines(stream: IO[str], lines: "queue.SimpleQueue[str | None]") -> None:
    try:
        for line in stream:
            lines.put(line)
    except (OSError, ValueError):
        pass  # Closed, because the child is being given up.
    lines.put(None)


def _last_words(status: int, complaints: IO[bytes]) -> str:
    """Say why a child failed: the last line it wrote to its standard error."""
    complaints.seek(0)
    words = [line for line in complaints.read().decode(errors="replace").splitlines() if line]
    return words[-1].strip() if words else f"its process ended with exit code {status}"


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
