"""The command line: list the targets, run one or several, sum them up.

Exit status: 0 every target reached, 1 some figure missed, 2 wrong use or a target that could not
run. One target runs in this process; several run each in a fresh one, for no target may find the
memory or the threads of another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Line, parse_line
from benchmarks.measure.machine import describe, header
from benchmarks.registry import find_targets
from benchmarks.report import Report
from benchmarks.target import Options, Target
from minato_async.cli.measure.child import interpreter
from minato_async.lifecycle.gil_watch import gil_is_on

REACHED, MISSED, BROKEN = 0, 1, 2


def _rounds(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures MinatoLoader beside its peers; the last line holds the figures.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="targets to run, such as trivial or P1 (all)"
    )
    parser.add_argument("--list", action="store_true", help="only say what targets there are")
    parser.add_argument(
        "--rounds", type=_rounds, help="interleaved rounds (the target's: five minutes at most)"
    )
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        metavar="PART",
        help="only this part of the one target named, or these (default: all)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes, to try the code in less than a minute: figures mean nothing",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    targets = find_targets()
    if chosen.list:
        for target in targets.values():
            print(f"{target.name:14}{target.number:8}{target.what}")
        return REACHED
    by_number = {target.number: target.name for target in targets.values() if target.number}
    names = list(dict.fromkeys(by_number.get(name, name) for name in chosen.names))
    unknown = [name for name in names if name not in targets]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(targets)}")
    options = Options(chosen.rounds, chosen.quick, list(dict.fromkeys(chosen.part)))
    if options.parts:
        if len(names) != 1:
            parser.error("--part is for one target")
        there = targets[names[0]].parts
        if not set(options.parts) <= set(there):
            parser.error(f"the parts of {names[0]} are: {', '.join(there) or 'none'}")
    if len(names) == 1:
        return run_one(targets[names[0]], options, chosen.json)
    return run_several(names or list(targets), options, chosen.json)


def run_one(target: Target, options: Options, file: Path | None) -> int:
    """Run one target here and print its line last."""
    report = Report(target.name, describe())
    name = f"{target.name} ({target.number})" if target.number else target.name
    print(f"{name}: {target.what}\ngoal: {target.goal}")
    if target.parts:
        print(f"parts: {', '.join(target.parts)}")
    print(f"{header(report.machine)}\n", flush=True)
    if options.quick:
        report.note("quick: sizes so small that the figures mean nothing")
    before, began = gil_is_on(), time.monotonic()
    target.run(options, report)
    report.seconds = time.monotonic() - began
    if gil_is_on() != before:
        report.note("the GIL was switched on during the run, by an import")
    if file is not None:
        file.write_text(json.dumps(report.as_json(), indent=1))
    print(f"took {report.seconds:.0f} s")
    print(report.line, flush=True)
    return REACHED if report.reached else MISSED


def run_several(names: Sequence[str], options: Options, file: Path | None) -> int:
    """Run each target in a fresh process and sum up; all go on when one fails."""
    lines: dict[str, Line | None] = {}
    found: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            result = Path(folder) / f"{name}.json"
            lines[name] = _run_child(name, options, result)
            if result.exists():
                found.append(json.loads(result.read_text()))
            print(flush=True)
    if file is not None:
        file.write_text(json.dumps(found, indent=1))
    print("summary:")
    by_name = {entry["name"]: entry["line"] for entry in found}
    for name in names:
        print(by_name[name] if lines[name] is not None else f"{name}: could not run")
    reached = sum(line is not None and line.reached for line in lines.values())
    broken = sum(line is None for line in lines.values())
    missed = len(names) - reached - broken
    print(f"{len(names)} targets: {reached} reached, {missed} missed, {broken} could not run")
    return BROKEN if broken else MISSED if missed else REACHED


def _run_child(name: str, options: Options, result: Path) -> Line | None:
    """Run one target in a child, pass its output on, and read its last line."""
    command = [*interpreter(), "-m", "benchmarks", name, "--json", str(result)]
    if options.rounds is not None:
        command += ["--rounds", str(options.rounds)]
    if options.quick:
        command.append("--quick")
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for text in child.stdout:
            sys.stdout.write(text)
            sys.stdout.flush()
            last = text if text.strip() else last
    if child.returncode not in (REACHED, MISSED):
        return None
    try:
        return parse_line(last)
    except ValueError:
        return None
