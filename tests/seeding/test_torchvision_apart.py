"""The tests of torchvision on free-threaded Python: where the GIL must stay off, whatever they
import, they need a process that is told so."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.cases.support import CHECKOUT


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs no other process"
)
@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="no torchvision here")
def test_in_a_process_whose_gil_stays_off(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "gil=0", "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tmp_path / 'base'}"]
    command += ["tests/seeding/test_torchvision.py"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 80
