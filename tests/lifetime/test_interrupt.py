"""Ctrl-C: at once, with one traceback, and whoever catches it can go on."""

from __future__ import annotations

import _thread
import signal
import sys
import threading

import pytest

from minato_async import MinatoLoader
from tests.forked import Ended, run_cases
from tests.lifetime import interrupts
from tests.lifetime.support import Gate, Samples, eventually, in_thread

#: Seconds for all cases together, on a machine that may be busy.
TIMEOUT = 270.0
ENDING = (
    "waiting",
    "waiting_in_a_loop",
    "waiting_for_the_sampler",
    "in_asyncio",
    f"waiting{interrupts.NO_UVLOOP}",
    f"in_asyncio{interrupts.NO_UVLOOP}",
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How all cases have ended."""
    cases = (*ENDING, "goes_on", "at_any_moment")
    folder = tmp_path_factory.mktemp("interrupts")
    return run_cases("tests.lifetime.interrupts", folder, cases, TIMEOUT)


@pytest.mark.parametrize("case", ENDING)
def test_it_ends_the_program_at_once(ended: dict[str, Ended], case: str) -> None:
    child = ended[case]
    assert child.status == -signal.SIGINT
    # One traceback and no others, of threads or of finalizers. In a coroutine it has two parts.
    assert child.err.splitlines()[-1] == "KeyboardInterrupt"
    tracebacks = child.err.count("Traceback (most recent call last):")
    assert tracebacks == 1 + case.startswith("in_asyncio")
    assert "Exception" not in child.err
    assert child.out == ("at once\n" if case == "waiting_for_the_sampler" else "")


def test_the_iterator_goes_on_after_it(ended: dict[str, Ended]) -> None:
    going_on = ["interrupted"] * 3 + [str(list(range(20)))]
    assert ended["goes_on"] == Ended(0, "\n".join([*going_on, ""]), "")


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


def test_at_any_moment_it_hangs_nothing(ended: dict[str, Ended]) -> None:
    assert ended["at_any_moment"] == Ended(0, "done\n", "")
