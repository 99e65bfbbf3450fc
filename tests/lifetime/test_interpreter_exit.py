"""The interpreter exits while loaders are at work: promptly, with its own exit code, in silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lifetime import exits

_CHECKOUT = Path(__file__).parents[2]
#: How often each way to exit is tried. Races hide: MINATO_REPEATS=50 looks for them.
REPEATS = int(os.environ.get("MINATO_REPEATS", "1"))
AT_ONCE = 6
#: Seconds from the end of the main program to that of the process: two for steps that are stuck,
#: and what Python itself needs, which is half a second of a core that it may have to share.
PROMPT = 30.0
PATIENCE = 60.0
#: For a busy machine, where all of these may take minutes.
TIMEOUT = 600.0

pytestmark = pytest.mark.timeout(TIMEOUT)

CODES = {"exit_code": 3, "uncaught": 1, "inside_asyncio_for": 4}
OUTPUT = {"cleans_up": "cleaned up\n", "other_thread_trains_on": "trained\n"}
WITH_UVLOOP = tuple(exits.CASES)
#: Those where it may make a difference that the engine's loop is Python's own.
WITH_ASYNCIO = (
    "at_module_level",
    "persistent",
    "several",
    "closed",
    "daemon_thread_waits",
    "inside_asyncio",
)

Results = dict[str, list[dict[str, Any]]]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(_CHECKOUT),
        "PYTHONWARNINGS": "ignore:This DataLoader will create",  # on machines of few cores
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # what TCPStore.wait raises, whoever catches it
    }
    return subprocess.run(
        [sys.executable, "-m", "tests.lifetime.exits", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT,
    )


def exit_all(folder: Path, *arguments: str) -> Results:
    """Run cases all together: for most of their time they wait."""
    numbers = ["--each", str(REPEATS), "--at-once", str(AT_ONCE), "--folder", str(folder)]
    parent = run(*numbers, *arguments)
    assert parent.returncode == 0, parent.stderr
    results: Results = {}
    for line in parent.stdout.splitlines():
        result = json.loads(line)
        results.setdefault(result["case"], []).append(result)
    return results


@pytest.fixture(scope="module")
def with_uvloop(tmp_path_factory: pytest.TempPathFactory) -> Results:
    pytest.importorskip("uvloop")
    return exit_all(tmp_path_factory.mktemp("exits"), *WITH_UVLOOP)


@pytest.fixture(scope="module")
def with_asyncio(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return exit_all(tmp_path_factory.mktemp("exits"), "--no-uvloop", *WITH_ASYNCIO)


@pytest.mark.parametrize("case", WITH_UVLOOP)
def test_exit(with_uvloop: Results, case: str) -> None:
    check(case, with_uvloop[case])


@pytest.mark.parametrize("case", WITH_ASYNCIO)
def test_exit_without_uvloop(with_asyncio: Results, case: str) -> None:
    check(case, with_asyncio[case])


def check(case: str, results: list[dict[str, Any]]) -> None:
    assert len(results) == REPEATS
    assert {result["code"] for result in results} == {CODES.get(case, 0)}
    seconds = [result["seconds"] for result in results]
    assert min(seconds) < PROMPT
    assert max(seconds) < PATIENCE
    for result in results:
        assert result["stdout"] == OUTPUT.get(case, "")
        if case == "uncaught":
            assert_only_the_users_traceback(result["stderr"])
        else:
            assert result["stderr"] == ""


def assert_only_the_users_traceback(stderr: str) -> None:
    lines = stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("ZeroDivisionError: with <minato_async")
    assert stderr.count("Traceback") == 1
    assert "Exception ignored" not in stderr


@pytest.mark.parametrize("case", ["at_module_level", "exit_code"])
def test_exit_of_a_program_that_nobody_forked(case: str) -> None:
    child = run(case)
    assert child.returncode == CODES.get(case, 0)
    assert child.stderr == ""
