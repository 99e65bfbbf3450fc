"""What a run was measured on: machine, interpreter, versions, load."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from minato_async.cpus import cpu_quota
from minato_async.gil_watch import gil_is_on

PACKAGES = ("torch", "numpy", "uvloop", "spdl-core", "torchdata", "minato_async")
"""Distributions whose versions decide a figure."""

IMPORTED = ("torch", "numpy", "uvloop", "spdl.pipeline", "torchdata.nodes", "minato_async")
"""Modules imported before the GIL's state is read: an import may switch it back on."""


def describe() -> dict[str, Any]:
    """Everything the header shows, as plain values."""
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    return {
        "machine": f"{_cpu_model()}, {cpu_quota():g} of {os.cpu_count()} cores usable, "
        f"{_memory_gib():.0f} GiB, {platform.system()} {platform.release()}",
        "python": f"{platform.python_version()} ({platform.python_implementation()}"
        f"{', free-threaded build' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''})",
        "gil": "on" if gil_is_on() else "off",
        "packages": {name: _version(name) for name in PACKAGES},
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


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # The loader itself is usually not installed but imported from the checkout.
        return "in the checkout" if name in sys.modules else "absent"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _commit() -> str:
    """The checkout's commit, with ``+`` when files differ from it."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+" if changed else commit
