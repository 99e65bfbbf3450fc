"""Tests of libraries that turn the GIL on, on free-threaded Python: a process that is told to keep
it off runs them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.support import CHECKOUT
from tests.gil_libraries import FREE_THREADED


@pytest.mark.skipif(not FREE_THREADED, reason="needs no other process")
@pytest.mark.parametrize(
    ("library", "files", "least"),
    [
        ("torchvision", ["tests/seeding/test_torchvision.py"], 80),
        (
            "monai",
            [
                f"tests/frameworks/test_{name}.py"
                for name in ("monai_transforms", "monai_loaders", "monai_caches")
            ],
            10,
        ),
        ("torchvision", ["tests/frameworks/test_patched.py"], 2),
    ],
)
def test_in_a_process_whose_gil_stays_off(
    library: str, files: list[str], least: int, tmp_path: Path
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"no {library} here")
    command = [sys.executable, "-X", "gil=0", "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tmp_path / 'base'}"]
    done = subprocess.run([*command, *files], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least
