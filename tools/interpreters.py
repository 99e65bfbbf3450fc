"""Finds Python interpreters on this machine, and gets a free-threaded one where there is none."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import debian_source
from stages import Cache, SetupError, say

FREE_THREADED_NAMES = ("python3.13t", "python3.14t", "python3.13-nogil", "python3.14-nogil")
FREE_THREADED_VERSIONS = ((3, 13), (3, 14))
WITH_GIL_NAMES = ("python3", "python3.11", "python3.12", "python3.13", "python3.14")

# An interpreter that cannot import these can neither make an environment nor install into it.
PROBE = """
import bz2, ctypes, json, lzma, os, ssl, sys, sysconfig, venv, zlib
# One name for one interpreter, however it was called: its own full name, where it has one.
name = os.path.join(sys.base_prefix, "bin", "python%d.%d" % sys.version_info[:2] + sys.abiflags)
if not os.path.exists(name):
    name = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({
    "executable": os.path.realpath(name),
    "version": list(sys.version_info[:2]),
    "build": sys.version,
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "has_pip": __import__("importlib.util").util.find_spec("ensurepip") is not None,
}))
"""


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """One usable Python and what an environment built from it depends on."""

    executable: str
    version: tuple[int, int]
    build: str
    free_threaded: bool
    has_pip: bool

    @property
    def name(self) -> str:
        """Such as ``3.13.5t``."""
        return self.build.split()[0] + ("t" if self.free_threaded else "")


def probe(executable: str | Path) -> Interpreter | None:
    """What the interpreter says of itself, or None if it does not run or lacks what we need."""
    try:
        answer = subprocess.run(
            [str(executable), "-I", "-c", PROBE],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=True,
        )
        facts = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(**{**facts, "version": tuple(facts["version"])})


def machine_interpreter() -> Interpreter | None:
    """The machine's own Python: the one that runs this program, or, if that has no GIL, another."""
    for executable in (sys.executable, *_on_path(WITH_GIL_NAMES)):
        found = probe(executable)
        if found and not found.free_threaded and found.version >= (3, 11):
            return found
    return None


def refused() -> bool:
    """Whether the user wants to go without a free-threaded one."""
    return os.environ.get("MINATO_NO_FREETHREADED", "0") not in ("", "0")


def known_free_threaded(cache: Cache) -> Interpreter | None:
    """A free-threaded one that is there already."""
    if refused():
        return None
    return _first_free_threaded(
        (sys.executable, *_on_path(FREE_THREADED_NAMES), *_known_to_uv(), *_built_before(cache))
    )


def new_free_threaded(cache: Cache) -> Interpreter:
    """Ask uv for one, else build one; `SetupError` says why there is none."""
    if refused():
        raise SetupError("MINATO_NO_FREETHREADED is set")
    return _from_uv(cache) or _built_now(cache)


def _first_free_threaded(executables: Iterable[str | Path]) -> Interpreter | None:
    for executable in executables:
        found = probe(executable)
        if found is None or not (found.free_threaded and found.has_pip):
            continue
        if found.version in FREE_THREADED_VERSIONS:
            return found
    return None


def _on_path(names: Iterable[str]) -> list[str]:
    return [path for name in names if (path := shutil.which(name))]


def _known_to_uv() -> list[str]:
    """The free-threaded interpreters that uv has installed already."""
    uv = shutil.which("uv")
    # Only uv's own: the others are on the path, and a broken one there would end uv's search.
    own = ("--python-preference=only-managed", "--no-python-downloads", "--system")
    answers: list[str] = []
    for wanted in ("3.13t", "3.14t") if uv else ():
        answer = subprocess.run(
            [str(uv), "python", "find", *own, wanted],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if answer.returncode == 0:
            answers.append(answer.stdout.strip())
    return answers


def _from_uv(cache: Cache) -> Interpreter | None:
    """Have uv install one; on a closed network it gives up within seconds."""
    uv = shutil.which("uv")
    if uv is None:
        return None
    hurry = {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1"}
    try:
        cache.run(
            "uv python install 3.13t", [uv, "python", "install", "3.13t"], env=hurry, timeout=300
        )
    except SetupError as error:
        reason = error.details.rpartition("\n")[2].strip()
        say(f"env: uv could not install one ({reason})")
        return None
    return _first_free_threaded(_known_to_uv())


def _built_before(cache: Cache) -> list[Path]:
    return [folder / "bin/python3.13t" for folder in debian_source.complete_builds(cache)]


def _built_now(cache: Cache) -> Interpreter:
    executable = debian_source.build(cache) / "bin/python3.13t"
    found = probe(executable)
    if found is None or not found.free_threaded:
        raise SetupError(f"{executable} was built, but is no usable free-threaded Python")
    return found
