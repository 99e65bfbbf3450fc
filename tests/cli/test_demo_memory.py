"""The memory of a tree of processes, measured on real ones."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minato_async.cli.measure.memory import PeakMemory, can_see_shared_memory

pytestmark = pytest.mark.skipif(
    not can_see_shared_memory(), reason="this system does not tell how pages are shared"
)

MIB = 2**20


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program until its first line of output, and end it on exit."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.stdin.close()  # What it waits for.
        process.wait()
        process.stdout.close()


def peak(program: str) -> float:
    """Return the MiB that a program's processes use when it says that it is ready."""
    with running(program) as process:
        memory = PeakMemory()
        with memory.watch(process.pid):
            pass  # It looks at least once.
    return memory.peak / MIB


WAIT = "print('ready', flush=True); input_ended = __import__('sys').stdin.read()"
HOLD = f"held = b'x' * (100 * {MIB})"


def test_one_process() -> None:
    assert 100 < peak(f"{HOLD}\n{WAIT}") - peak(WAIT) + 3 < 110


def test_what_forked_workers_share_counts_once() -> None:
    fork = "import os\nif os.fork() == 0: __import__('sys').stdin.read(); os._exit(0)"

    assert 100 < peak(f"{HOLD}\n{fork}\n{fork}\n{WAIT}") < 160


def test_what_each_worker_has_for_itself_counts_for_each() -> None:
    own = (
        "import os\nr, w = os.pipe()\n"
        f"if os.fork() == 0: {HOLD}; os.write(w, b'x'); __import__('sys').stdin.read(); os._exit(0)"
        "\nos.read(r, 1)"
    )

    assert 200 < peak(f"{HOLD}\n{own}\n{WAIT}") < 260


def test_a_process_that_is_gone_ends_the_watch() -> None:
    memory = PeakMemory()
    with running(WAIT) as process:
        pass
    with memory.watch(process.pid):
        pass

    assert memory.peak == 0
