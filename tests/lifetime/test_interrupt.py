"""Ctrl-C: at once, with one traceback, and whoever catches it can go on."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from minato_async import MinatoLoader
from tests.lifetime import interrupts
from tests.lifetime.support import Gate, Samples, eventually, in_thread

_CHECKOUT = Path(__file__).parents[2]
TIMEOUT = 100.0
#: The cases, and whether uvloop is hidden from them.
WITH_UVLOOP = [(case, False) for case in interrupts.CASES]
WITHOUT_UVLOOP = [("waiting", True), ("in_asyncio", True)]

Children = dict[tuple[str, bool], subprocess.Popen[str]]


def start(case: str, no_uvloop: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lifetime.interrupts", case, *["--no-uvloop"] * no_uvloop],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {
            "PYTHONPATH": str(_CHECKOUT),
            "PYTHONWARNINGS": "ignore:This DataLoader will create",
        },
    )


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """All at once: to import torch takes them longer than all else."""
    started = {key: start(*key) for key in WITH_UVLOOP + WITHOUT_UVLOOP}
    yield started
    for child in started.values():
        with child:
            child.kill()


@pytest.mark.parametrize(
    ("case", "no_uvloop"),
    [
        ("waiting", False),
        ("waiting_in_a_loop", False),
        ("waiting_for_the_sampler", False),
        ("in_asyncio", False),
        *WITHOUT_UVLOOP,
    ],
)
def test_it_ends_the_program_at_once(children: Children, case: str, no_uvloop: bool) -> None:
    child = children[case, no_uvloop]
    stdout, stderr = child.communicate(timeout=TIMEOUT)
    assert child.returncode == -signal.SIGINT
    # One traceback and no others, of threads or of finalizers. In a coroutine it has two parts.
    assert stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert stderr.count("Traceback (most recent call last):") == 1 + (case == "in_asyncio")
    assert "Exception" not in stderr
    assert stdout == ("at once\n" if case == "waiting_for_the_sampler" else "")


def test_the_iterator_goes_on_after_it(children: Children) -> None:
    child = children["goes_on", False]
    stdout, stderr = child.communicate(timeout=TIMEOUT)
    assert stderr == ""
    assert stdout.splitlines() == ["interrupted"] * 3 + [str(list(range(20)))]
    assert child.returncode == 0


def test_an_interrupt_that_ends_no_wait_is_seen() -> None:
    """As Ctrl-C does that comes just before the wait, and `interrupt_main` at any time."""
    gate = Gate()
    iterator = iter(MinatoLoader(Samples(4, gate), num_workers=1))
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        eventually(lambda: "bell.wait" in interrupts.innermost(sys._current_frames()[main]))
        _thread.interrupt_main()

    in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    gate.let_go()
    assert len(list(iterator)) == 4


def test_at_any_moment_it_hangs_nothing(children: Children) -> None:
    child = children["at_any_moment", False]
    stdout, stderr = child.communicate(timeout=TIMEOUT)
    assert stderr == ""
    assert stdout == "done\n"
    assert child.returncode == 0
