"""What the demo and the benchmarks measure with: children, turns, tables."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

import psutil
import pytest

from minato_async.cli.measure.child import ChildFailed, call_in_child, tell
from minato_async.cli.measure.memory import PeakMemory
from minato_async.cli.measure.rounds import Row, turns
from minato_async.cli.measure.table import Table

HERE = "tests.cli.test_measure"


def talk(words: list[str]) -> dict[str, Any]:
    """Called in a child: a library's own output must be in nobody's way."""
    for word in words:
        print("printed")
        os.write(1, b"written\n")
        tell(word)
    return {"pid": os.getpid(), "words": len(words)}


def start_another() -> None:
    """Called in a child: it starts one of its own that would live for long, and waits for it."""
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    other = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    tell(other.pid)
    other.wait()


def fail() -> None:
    """Called in a child."""
    raise LookupError("as it was told")


def test_a_child_tells_and_answers_whatever_is_printed() -> None:
    told: list[str] = []
    memory = PeakMemory()
    answer = call_in_child(f"{HERE}:talk", told=told.append, watch=memory.watch, words=["a", "b"])

    assert told == ["a", "b"]
    assert answer["words"] == 2
    assert answer["pid"] != os.getpid()
    assert memory.peak > 0


def test_outside_a_child_nobody_is_told() -> None:
    assert talk(["a"])["pid"] == os.getpid()


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(ChildFailed, match="Traceback") as failed:
        call_in_child(f"{HERE}:fail")

    assert failed.value.reason == "LookupError: as it was told"


def test_a_child_that_is_given_up_takes_its_own_children_with_it() -> None:
    others: list[psutil.Process] = []

    def give_up(pid: int) -> None:
        others.append(psutil.Process(pid))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_in_child(f"{HERE}:start_another", told=give_up)

    try:
        assert psutil.wait_procs(others, timeout=60)[1] == []
    finally:
        for other in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                other.kill()


def test_each_round_begins_with_another() -> None:
    assert list(turns("abc", 2)) == [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (1, "a")]


def test_a_row_that_failed_has_no_numbers() -> None:
    row = Row("x", [1.0, 3.0])
    assert row.spread(float).text(1) == "2.0 [1.0–3.0]"
    row.error = "late failure"
    assert row.values(float) == []


def test_a_column_may_have_a_name_of_several_lines() -> None:
    table = Table("", ("name", "first\n(s)"), [("x", "1.0")])

    assert str(table) == "        first\n  name    (s)\n  x       1.0"
