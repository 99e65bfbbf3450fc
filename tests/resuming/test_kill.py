"""The training is killed at random moments, and goes on from its last checkpoint each time."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.resuming.training import N, fails

#: As many kills as have to be survived; `MINATO_KILLS=100` for the full number.
KILLS = int(os.environ.get("MINATO_KILLS", "8"))


class Training:
    """The training, and the log of what was trained on, which no kill reaches."""

    def __init__(self, folder: Path, executor: str) -> None:
        self._checkpoint = folder / "checkpoint"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.resuming.training", str(folder), executor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._told() == "ready"
        #: By its number, each step that the surviving training has taken.
        self.log: dict[int, Any] = {}

    def _told(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the program has ended"
        return json.loads(line)

    def live(self, steps: int, longer: float) -> None:
        """Another life, killed after so many steps and so many seconds more."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        told = self._told()
        child = told if isinstance(told, int) else None
        while steps > 0 or child is None:
            if isinstance(told, dict):
                self.log[told["step"]] = told
                steps -= 1
            told = self._told()
            if isinstance(told, int):
                child = told
            assert told != "ended", "the training has failed"
        assert child is not None
        select.select([], [], [], longer)
        os.kill(child, signal.SIGKILL)
        while told != "ended":
            if isinstance(told, dict):
                self.log[told["step"]] = told
            told = self._told()
        self._forget()

    def _forget(self) -> None:
        """What was trained on after the last checkpoint died with the training."""
        saved = 0
        if self._checkpoint.exists():
            saved = torch.load(self._checkpoint, weights_only=True)["step"]
        self.log = {step: told for step, told in self.log.items() if step <= saved}
        assert sorted(self.log) == list(range(1, saved + 1))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_each_sample_is_trained_on_once_whenever_it_is_killed(
    tmp_path: Path, executor: str
) -> None:
    moments, training = random.Random(5), Training(tmp_path, executor)
    try:
        for _ in range(KILLS):
            training.live(moments.randrange(1, 25), moments.random() * 0.02)
    finally:
        training.close()
    trained: dict[int, Counter[int]] = {}
    for told in training.log.values():
        trained.setdefault(told["epoch"], Counter()).update(told["batch"])
    whole = Counter(index for index in range(N) if not fails(index))
    *earlier, last = sorted(trained)
    assert earlier, "no epoch was finished"
    for epoch in earlier:
        assert trained[epoch] == whole, f"epoch {epoch}"
    assert trained[last] <= whole
