"""``minato-async run``: real scripts in real processes, against what Python itself does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from minato_async.cli import main
from minato_async.cli.run.script import CannotStart, Script

ROOT = Path(__file__).resolve().parents[2]
RUN = ("-m", "minato_async.cli", "run")

#: What a script can see of how it was started.
FACTS = '''
"""A script."""
import json, os, sys
main = sys.modules["__main__"]
facts = json.dumps({
    "argv": sys.argv,
    "path": sys.path[0],
    "here": vars(main) is globals(),
    "loader": type(__loader__).__name__,
    "spec": __spec__ and __spec__.name,
    "names": {n: v for n, v in sorted(globals().items()) if type(v) in (str, type(None))},
})
if __name__ == "__main__":
    print(facts)
'''

SPAWNS = """
from torch.utils.data import DataLoader

class Squares:
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return index * index

if __name__ == "__main__":
    executor = {"executor": "process"} if DataLoader.__module__.startswith("minato") else {}
    loader = DataLoader(Squares(), 3, num_workers=1, multiprocessing_context="spawn", **executor)
    print(sum(int(batch.sum()) for batch in loader), loader.in_order, type(loader).__module__)
    sys.exit(3)
"""

FAILS = """
import sys
def deep():
    raise ModuleNotFoundError("no such thing", name="nothing")
try:
    1 / 0
finally:
    deep()
"""

INTERRUPTED = """
import os, signal
from torch.utils.data import DataLoader
for batch in DataLoader([1]):
    os.kill(os.getpid(), signal.SIGINT)
"""

WAITS = """
import time, threading
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

class Late(list):
    def __getitem__(self, index):
        time.sleep(0.1)
        return index

data = Late(range(4))
for _ in range(2):
    loader = DataLoader(data, 2)
    for epoch in range(2):
        for batch in loader:
            time.sleep(0.1)
for batch in DataLoader(data, 2, num_workers=2):
    pass
assert len(list(_SingleProcessDataLoaderIter(loader))) == 2
"""


def python(*command: object, cwd: Path = ROOT, **environment: str) -> Any:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | environment,
        timeout=270,
    )


@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
def test_it_is_run_as_python_would(tmp_path: Path, as_module: bool) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    script = package / "train.py"
    script.write_text(FACTS)
    if as_module:
        command, cwd, path = ("-m", "package.train"), tmp_path, str(ROOT)
    else:
        # We are found through the current folder alone, which is no longer on the script's path;
        # the process that is spawned has to find us all the same.
        command, cwd, path = (os.path.relpath(package, ROOT) + "/../package/train.py",), ROOT, ""
    arguments = ("--in-order", "-m", "x")
    expected = python(*command, *arguments, cwd=cwd, PYTHONPATH=path)
    assert expected.returncode == 0, expected.stderr
    script.write_text(FACTS + SPAWNS)
    done = python(*RUN, "--in-order", "true", *command, *arguments, cwd=cwd, PYTHONPATH=path)

    assert done.returncode == 3, done.stderr
    facts, loaded = done.stdout.splitlines()
    assert json.loads(facts) == json.loads(expected.stdout)
    assert loaded == "55 True minato_async.patching"
    assert "2 batches from 1 MinatoLoader\n" in done.stderr


def test_an_error_looks_as_without_us(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAILS)
    expected = python(script)
    done = python(*RUN, script)
    assert done.returncode == expected.returncode == 1
    report, traceback = done.stderr.split("Traceback", 1)
    assert "Traceback" + traceback == expected.stderr
    assert report.splitlines()[2] == "minato-async: no loader of this process was out of reach"


def test_ctrl_c_ends_it_as_it_ends_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(INTERRUPTED)
    done = python(*RUN, script)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "1 batch from 1 MinatoLoader, 1 of them without workers" in done.stderr
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert "minato_async/cli" not in done.stderr


def test_it_says_how_long_the_training_waited(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    done = python(*RUN, script, **({"PYTHON_GIL": "1"} if free_threaded else {}))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("minato-async: ")]
    times = re.search(
        r"waited ([\d.]+) s for data, inside next\(\): (\d+) % of ([\d.]+) s", lines[0]
    )
    assert times is not None
    waited, share, whole = map(float, times.groups())
    # Sixteen samples of 0.1 s, and four of torch's; eight pauses of as long are no waiting.
    assert 2.0 <= waited <= whole - 0.8
    assert share == pytest.approx(100 * waited / whole, abs=2)
    assert "10 batches from 3 MinatoLoaders, 2 of them without workers" in lines[1]
    theirs = re.search(r"not reached: 2 batches, ([\d.]+) s of the waiting, from torch's", lines[2])
    assert theirs is not None
    assert 0.4 <= float(theirs[1]) <= waited - 1.6
    assert ("start with PYTHON_GIL=0" in done.stderr.splitlines()[-1]) == free_threaded


@pytest.mark.parametrize(
    ("name", "is_module", "status", "words"),
    [
        ("nothing.py", False, 2, r"can't open file '.*nothing.py': \[Errno 2\]"),
        ("nothing.at_all", True, 1, "no module 'nothing.at_all'"),
        ("tests.cli", True, 1, "no module 'tests.cli.__main__'"),
        ("math", True, 1, "no module 'math'"),
    ],
)
def test_what_is_not_there_is_not_run(
    name: str, is_module: bool, status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises(CannotStart, match=words) as failed:
        Script([name], is_module).run()
    assert failed.value.status == status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "it takes a script"),
        (["-m"], "it takes a script"),
        (["--max-workers", "0", "train.py"], "max_workers must be at least 1"),
        (["--in-order", "maybe", "train.py"], "true or false, not 'maybe'"),
    ],
)
def test_bad_options_are_told(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
