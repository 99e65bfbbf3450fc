"""The command as a user runs it: real processes, tiny sizes."""

import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from minato_async.cli import main
from minato_async.cli.demo.command import train_in_child
from minato_async.cli.demo.options import LOADERS
from minato_async.cli.demo.training import Task, Training
from minato_async.cli.machine import gil_state
from minato_async.cli.measure.child import ChildFailed

TINY = ("--samples", "12", "--batch-size", "4", "--epochs", "1", "--workers", "2")
COMMAND = (sys.executable, "-m", "minato_async.cli", "demo")


def test_the_table(pictures: Path) -> None:
    arguments = [*TINY, "--rounds", "1", "--loaders", "torch,minato", "--photos", str(pictures)]
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, encoding="utf-8", check=False
    )

    assert done.stderr == ""
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout), "control characters in a pipe"
    cells = [re.split(r"  +", line.strip()) for line in done.stdout.splitlines()]
    table = {row[0]: row[1:] for row in cells if row[0] in LOADERS.values()}
    assert list(table) == ["torch in order", "MinatoLoader"]
    for row in table.values():
        speed, first, wait, gap, memory, loss, right = row
        assert float(speed.replace(",", "")) > 0
        assert float(first) > 0
        assert 0 <= float(wait) <= 100
        assert float(gap.replace(",", "")) >= 0
        assert 100 < float(memory.replace(",", "")) < 10_000
        assert 0 < float(loss) < 5
        assert 0 <= float(right) <= 100
    for word in ("python", "versions", "torch 2.", "pillow", "CPUs usable", "2 workers"):
        assert word in done.stdout
    first = " ".join(done.stdout.split("\n\n")[0].split())
    if gil_state() == "always":
        assert "no free-threaded Python is in use" in first
        assert "workers are processes then" in first
        assert "with the GIL" in done.stdout
    else:
        assert "every loader with -X gil=0" in first
        assert "free-threaded, GIL off" in done.stdout
    assert "Equal work: every training saw the same 12 samples in 3 batches" in done.stdout
    verdict = " ".join(done.stdout.split("Equal work")[1].split())
    assert re.search(r"MinatoLoader fed the training .* torch in order", verdict)


def test_no_photos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--photos", str(tmp_path / "[bold]absent")]) == 2

    output = capsys.readouterr().out
    assert "there is no folder" in output
    assert "[bold]absent" in output.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--loaders", "torch,other"), "no loader 'other'; there are: torch, torch-any-order, min"),
        (("--epochs", "0"), "must be at least 1, not 0"),
        (("--workers", "many"), "invalid"),
    ],
)
def test_arguments_that_make_no_sense(
    arguments: tuple[str, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", *arguments])

    assert ended.value.code == 2
    output = capsys.readouterr()
    assert complaint in output.err
    assert output.out == ""


def test_a_child_that_fails_says_why(pictures: Path) -> None:
    task = Task("torch", (str(pictures / "picture0.png"), "absent.png"), 1, 1, 4, 8, 1)

    with pytest.raises(ChildFailed, match=r"FileNotFoundError.*absent\.png") as failed:
        train_in_child(task, on_batch=lambda batches: None)
    assert failed.value.reason == str(failed.value).splitlines()[-1]


def test_a_loader_that_fails_is_named_and_the_others_are_reported(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @functools.cache  # once for both rounds: a child takes seconds to import torch
    def train_torch(task: Task) -> Training:
        return train_in_child(task, on_batch=lambda batches: None)

    def fail_minato(task: Task, on_batch: Callable[[int], None]) -> Training:
        if task.loader == "minato":
            raise ChildFailed("somewhere\n[red] is out of order")
        return train_torch(task)

    monkeypatch.setattr("minato_async.cli.demo.command.train_in_child", fail_minato)
    arguments = [*TINY, "--rounds", "2", "--loaders", "minato,torch", "--photos", str(pictures)]

    assert main(["demo", *arguments]) == 1
    output = capsys.readouterr().out
    assert "1/4 MinatoLoader: failed\n" in output
    assert "4/4 MinatoLoader: left out, it failed before\n" in output
    assert "MinatoLoader failed: [red] is out of order\n" in output
    assert re.search(r"^  MinatoLoader( +–){7}$", output, re.M)
    assert re.search(r"^  torch in order +[\d.,]+ ±[\d.,]+  +[\d.,]+ ", output, re.M)
    assert "torch in order fed the training" in output


def test_a_child_that_hangs_is_ended_with_its_workers(pictures: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "picture.png"
    os.mkfifo(pipe)  # Opening it waits for a writer, who never comes.
    paths = (str(pictures / "picture0.png"), str(pipe))

    with pytest.raises(ChildFailed, match="no sign of life for 8 s"):
        train_in_child(Task("torch", paths, 2, 1, 4, 8, 1), lambda batches: None, silence=8)

    assert psutil.Process().children(recursive=True) == []


def test_ctrl_c_leaves_nothing_behind(pictures: Path) -> None:
    command = [*COMMAND, "--samples", "4000", "--loaders", "torch", "--photos", str(pictures)]
    # A session of its own, so that the signal reaches all its processes, as from a keyboard.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        root = psutil.Process(running.pid)
        while len(family := root.children(recursive=True)) < 3:  # The child and two workers.
            assert running.poll() is None
        os.killpg(running.pid, signal.SIGINT)
        _, complaints = running.communicate()

    assert running.returncode == 130
    assert complaints == "stopped.\n"
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
