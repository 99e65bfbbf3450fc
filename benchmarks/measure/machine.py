"""What a run was measured on: machine, interpreter, versions, load."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from minato_async.cli.machine import cpu_model, interpreter_name, package_version
from minato_async.lifecycle.gil_watch import gil_is_on
from minato_async.scheduling.cpus import cpu_quota

PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "uvloop": "uvloop",
    "spdl-core": "spdl.pipeline",
    "torchdata": "torchdata.nodes",
    "minato-async": "minato_async",
}
"""Distributions whose versions decide a figure, and the module of each. All are imported before the
GIL's state is read: an import may switch it back on."""


def describe() -> dict[str, Any]:
    """Everything the header shows, as plain values."""
    for module in PACKAGES.values():
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    return {
        "machine": f"{cpu_model()}, {cpu_quota():g} of {os.cpu_count()} cores usable, "
        f"{_memory_gib():.0f} GiB, {platform.system()} {platform.release()}",
        "python": interpreter_name(),
        "gil": "on" if gil_is_on() else "off",
        "packages": {name: package_version(name, module) for name, module in PACKAGES.items()},
        "commit": _commit(),
        "load": os.getloadavg(),
    }


def header(machine: dict[str, Any]) -> str:
    """The description as text."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    load = " ".join(f"{value:.2f}" for value in machine["load"])
    return (
        f"machine: {machine['machine']}; load before: {load}\n"
        f"python: {machine['python']}, GIL {machine['gil']}; {packages}; "
        f"commit {machine['commit']}"
    )


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _commit() -> str:
    """The checkout's commit, with ``+`` when files differ from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+" if changed else commit


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    here = Path(__file__).parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    return done.stdout.strip()
