"""Programs whose every case is a process of its own, forked from one that has imported torch."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ended:
    """How a case ended, and what it wrote."""

    status: int
    out: str
    err: str


def run_cases(module: str, folder: Path, cases: Iterable[str], seconds: float) -> dict[str, Ended]:
    """Run the program `module`, which calls `fork_each`, for up to `seconds`."""
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), *cases],
        cwd=ROOT,
        env=os.environ | {"PYTHONWARNINGS": "ignore:This DataLoader will create"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return {
        case: Ended(status, *((folder / f"{case}.{end}").read_text() for end in ("out", "err")))
        for case, status in json.loads(done.stdout).items()
    }


def fork_each(folder: Path, cases: Iterable[str], at_once: int, lifetime: float) -> str | None:
    """Fork a child for each case, `at_once` at a time. Returns the case in a child, and None in the
    parent when all have ended. A child that lives longer than `lifetime` seconds ends with its
    stacks."""
    waiting, running, ended = list(cases), dict[int, str](), dict[str, int]()
    while waiting or running:
        while waiting and len(running) < at_once:
            case = waiting.pop(0)
            if (pid := os.fork()) == 0:
                for number, end in ((1, "out"), (2, "err")):
                    file = os.open(folder / f"{case}.{end}", os.O_WRONLY | os.O_CREAT)
                    os.dup2(file, number)
                    os.close(file)
                faulthandler.dump_traceback_later(lifetime, exit=True)
                return case
            running[pid] = case
        pid, status = os.wait()
        ended[running.pop(pid)] = os.waitstatus_to_exitcode(status)
    print(json.dumps(ended))
    return None
