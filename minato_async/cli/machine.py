"""What a measurement was made on: interpreter, GIL, versions, processor."""

import importlib
import os
import platform
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from minato_async.lifecycle.gil_watch import gil_is_on
from minato_async.scheduling.cpus import cpu_quota

GilState = Literal["off", "on", "always"]


def gil_state() -> GilState:
    """Say whether the GIL is in force, now.

    Returns:
        ``"off"``; ``"on"`` in a free-threaded build where an import, ``PYTHON_GIL`` or ``-X gil``
        turned it on; ``"always"`` in a build that has no other way.
    """
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "always"
    return "on" if gil_is_on() else "off"


def gil_setting() -> str | None:
    """Return what ``-X gil`` or else ``PYTHON_GIL`` asks for, ``"0"`` or ``"1"``, None if unset."""
    option = sys._xoptions.get("gil")
    return option if isinstance(option, str) else os.environ.get("PYTHON_GIL") or None


def interpreter_name() -> str:
    """Return, for people, the interpreter and its kind: ``CPython 3.13.5 free-threaded``."""
    kind = " free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{platform.python_implementation()} {platform.python_version()}{kind}"


def package_version(distribution: str, module: str | None = None) -> str:
    """Return the version of a package.

    Args:
        distribution: Its name in package registries.
        module: Its import name, asked for ``__version__`` where the distribution is not
            installed (a checkout that is run in place). Imported if it is not yet.

    Returns:
        The version, or ``"not installed"`` or ``"unknown"``.
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        pass
    if module is None:
        return "not installed"
    try:
        return str(getattr(importlib.import_module(module), "__version__", "unknown"))
    except ModuleNotFoundError:
        return "not installed"


def whole_cpus() -> int:
    """Return how many CPUs this process may use: its affinity mask, cut to its cgroup's quota."""
    return max(1, int(cpu_quota()))


def cpu_model() -> str:
    """Return the processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return " ".join(value.split())
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class Machine:
    """The machine a table was measured on.

    Attributes:
        cpu: Name of the processor.
        cpus_usable: CPUs this process may use.
        cpus_present: CPUs the machine has.
        system: Operating system and architecture.
        load: Runnable processes, averaged over the minute before the start; None if unknown.
    """

    cpu: str
    cpus_usable: int
    cpus_present: int
    system: str
    load: float | None

    @classmethod
    def here(cls) -> "Machine":
        """Describe the machine this runs on, with its load of the last minute."""
        try:
            load: float | None = os.getloadavg()[0]
        except (OSError, AttributeError):
            load = None
        return cls(
            cpu=cpu_model(),
            cpus_usable=whole_cpus(),
            cpus_present=os.cpu_count() or 1,
            system=f"{platform.system()} {platform.machine()}",
            load=load,
        )
