"""The example trains the same whichever loader it imports: the project's promise, on a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import imagenet_style
from minato_async import MinatoLoader
from tests.frameworks.support import ROOT

STEPS = 256 // 16  # of an epoch


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the last checkpoint of every run."""
    folder = tmp_path_factory.mktemp("checkpoints")
    env = {
        "PYTHONPATH": str(ROOT),
        # A process of its own, for an optimizer imports what turns the GIL back on; and told not
        # to let it, for it is without one that the loader has to be right.
        "PYTHON_GIL": "0",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.examples.run_imagenet_style", str(folder)],
        cwd=ROOT,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert done.returncode == 0, done.stderr
    return folder


def load(checkpoints: Path, name: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(checkpoints / f"{name}.pt")
    return state


def test_the_import_is_what_changes() -> None:
    assert imagenet_style.import_data_loader("torch") is torch.utils.data.DataLoader
    assert imagenet_style.import_data_loader("minato") is MinatoLoader


@pytest.mark.parametrize("run", ["1", "2", "resumed"])
def test_same_losses_to_the_last_bit(checkpoints: Path, run: str) -> None:
    """On one rank, on two, and on one that goes on from a checkpoint of torch's first epoch."""
    stock, ours = (load(checkpoints, f"{loader}-{run}") for loader in ("torch", "minato"))
    assert len(stock["losses"]) == 2 * STEPS
    assert stock["losses"][0] > 2 * stock["losses"][-1], "it learns"
    assert ours["losses"] == stock["losses"]
    assert ours["model"].keys() == stock["model"].keys()
    for name, weights in stock["model"].items():
        assert torch.equal(ours["model"][name], weights), name
    assert ours["accuracy"] == stock["accuracy"]


@pytest.mark.parametrize(("steps", "epoch"), [(5, 0), (7, 1)])
def test_killed_in_the_middle_of_an_epoch_it_goes_on_with_the_same_losses(
    checkpoints: Path, steps: int, epoch: int
) -> None:
    left, whole = load(checkpoints, f"left-{steps}"), load(checkpoints, "minato-1")
    assert left["epoch"] == epoch
    assert len(left["losses"]) % STEPS, "in the middle"
    resumed = load(checkpoints, f"killed-{steps}")
    assert resumed["losses"] == whole["losses"]
    assert all(torch.equal(resumed["model"][name], w) for name, w in whole["model"].items())
    assert resumed["accuracy"] == whole["accuracy"]


def test_resuming_goes_on_from_the_checkpoint(checkpoints: Path) -> None:
    first = load(checkpoints, "torch-first")
    assert first["epoch"] == 1
    assert load(checkpoints, "minato-resumed")["losses"][:STEPS] == first["losses"]
