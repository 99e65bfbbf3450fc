"""The command: exit status, the last line, the JSON, and a quick run of every target."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import cli
from benchmarks.figures import Line, at_least, at_most, parse_line
from benchmarks.registry import find_targets
from benchmarks.report import Report
from benchmarks.target import Options, Target
from minato_async.cli.measure.child import call_in_child, interpreter
from tests.forked import Ended, run_cases

ROOT = Path(__file__).parents[2]


def fake(name: str, value: float) -> Target:
    """A target whose one figure is ``value``, to be at least 1."""

    def run(options: Options, report: Report) -> None:
        report.figures.append(at_least("figure", value, 1.0))

    return Target(name, "a fake", "at least 1", run)


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "good": fake("good", 2.0),
        "fine": fake("fine", 1.0),
        "bad": fake("bad", 0.5),
        "unmeasured": fake("unmeasured", float("nan")),
    }
    monkeypatch.setattr(cli, "find_targets", lambda: found)


@pytest.mark.usefixtures("targets")
@pytest.mark.parametrize(("name", "status"), [("good", 0), ("bad", 1), ("unmeasured", 1)])
def test_one_target_gives_its_status_and_line(
    name: str, status: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "found.json"
    assert cli.main([name, "--json", str(file)]) == status
    last = capsys.readouterr().out.splitlines()[-1]
    assert parse_line(last).reached == (status == 0)
    found = json.loads(file.read_text())
    assert found["line"] == last
    assert found["machine"]["gil"] in ("on", "off")


@pytest.mark.usefixtures("targets")
@pytest.mark.parametrize(
    ("lines", "status", "summary"),
    [
        ({"good": 2.0, "fine": 1.0}, 0, "2 targets: 2 reached, 0 missed, 0 could not run"),
        ({"good": 2.0, "bad": 0.5}, 1, "2 targets: 1 reached, 1 missed, 0 could not run"),
        ({"bad": 0.5, "good": None}, 2, "2 targets: 0 reached, 1 missed, 1 could not run"),
    ],
)
def test_several_targets_are_summed_up(
    lines: dict[str, float | None],
    status: int,
    summary: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_child(name: str, options: Options, result: Path) -> Line | None:
        value = lines[name]
        if value is None:
            return None
        report = Report(name, figures=[at_least("figure", value, 1.0)])
        result.write_text(json.dumps(report.as_json()))
        return parse_line(report.line)

    monkeypatch.setattr(cli, "_run_child", run_child)
    assert cli.main(list(lines)) == status
    assert capsys.readouterr().out.splitlines()[-1] == summary


def test_an_unknown_name_nonsense_rounds_and_parts_that_are_none_are_wrong_use() -> None:
    for arguments in (
        ["P99"],
        ["P1", "--rounds", "0"],
        ["P1", "--rounds", "many"],
        ["P1", "--part", "computing"],
        ["scheduler", "--part", "no such"],
        ["scheduler", "P1", "--part", "computing"],
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2


def test_each_target_has_one_line_in_the_list_which_names_it_and_its_number() -> None:
    command = [*interpreter(), "-m", "benchmarks", "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(find_targets())
    assert [line.split()[1] for line in lines[:4]] == ["P1", "P2", "P3", "P3order"]
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("name", ["plain", "P42"])
def test_a_target_goes_by_its_name_and_by_its_number(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = dataclasses.replace(fake("plain", 2.0), number="P42")
    monkeypatch.setattr(cli, "find_targets", lambda: {"plain": target})
    assert cli.main([name, "plain"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["plain (P42): a fake", "goal: at least 1"]
    assert parse_line(out[-1]).name == "plain"


def test_rounds_come_from_the_command_then_from_the_target() -> None:
    assert Options(rounds=7, quick=True).rounds_or(3) == 7
    assert Options(quick=True).rounds_or(3) == 1
    assert Options().rounds_or(3) == 3


def test_a_child_runs_in_a_fresh_interpreter_with_the_same_options() -> None:
    assert interpreter()[0] == sys.executable
    assert call_in_child("benchmarks.limits:sleeping_limit", costs=[1.0, 3.0], workers=2) == 2.0
    with pytest.raises(RuntimeError, match="workers must be at least 1"):
        call_in_child("benchmarks.limits:sleeping_limit", costs=[1.0], workers=0)


def test_only_the_parts_asked_for_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(options: Options, report: Report) -> None:
        asked.extend(options.parts)
        report.figures.append(at_least("figure", 1.0, 1.0))

    target = Target("parted", "a fake", "none", run, parts=("one", "two", "three"))
    monkeypatch.setattr(cli, "find_targets", lambda: {"parted": target})
    assert cli.main(["parted", "--part", "two", "--part", "one", "--part", "two"]) == 0
    assert asked == ["two", "one"]


#: Without it every worker thread contends for the constants of what it runs.
@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="for free-threaded Python"
)
def test_what_is_measured_is_loaded_from_bytecode(tmp_path: Path) -> None:
    done = subprocess.run(
        [*interpreter(), "-v", "-m", "benchmarks", "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    sources = re.findall(r"^# code object from '?([^'\n]*)'?$", done.stderr, re.M)
    ours = [source for source in sources if str(ROOT / "benchmarks" / "measure") in source]
    assert ours
    assert all(source.endswith(".pyc") for source in ours)


#: What is tried on an ordinary Python; all else without the GIL. The pipelines are measured on
#: both, but their libraries turn the GIL on.
WITH_GIL = ("pipelines", "processes", "views")
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
#: Seconds for all quick runs together, on a machine that may be busy.
TIMEOUT = 600.0


TARGETS = [name for name in find_targets() if (name in WITH_GIL) != FREE_THREADED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where quick runs leave what they have measured."""
    return tmp_path_factory.mktemp("quick")


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, Ended]:
    """How quick runs of all targets have ended."""
    return run_cases("tests.benchmarks.quick_runs", folder, TARGETS, TIMEOUT)


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("name", TARGETS)
def test_a_quick_run_of(name: str, folder: Path, ended: dict[str, Ended]) -> None:
    done = ended[name]
    assert done.status in (0, 1), done.err[-4000:]
    line = parse_line(done.out.splitlines()[-1])
    assert line.name == name
    assert line.reached == (done.status == 0)
    assert json.loads((folder / f"{name}.json").read_text())["raw"]
    # Small sizes may miss a goal; a loader that fails is another matter.
    assert not re.search(r"^note: MinatoLoader.* (failed|left out)", done.out, re.M), done.out
    assert all(figure.value == figure.value for figure in line.figures), done.out


@pytest.mark.parametrize(
    ("build", "value", "reached"),
    [(at_least, 1.0, True), (at_least, 0.999, False), (at_most, 1.0, True), (at_most, 1.1, False)],
)
def test_a_goal_itself_is_reached(
    build: Callable[[str, float, float], object], value: float, reached: bool
) -> None:
    assert getattr(build("x", value, 1.0), "reached", None) is reached
