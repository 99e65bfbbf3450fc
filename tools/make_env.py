"""Prepares the project's two environments and links them into the checkout.

``.venv`` runs on free-threaded CPython, ``.venv-gil`` on the machine's own Python. Both lie in a
cache outside the checkout (see `stages.default_cache`), under a name made from all that they were
built from, so every checkout with the same requirements shares them. The package itself is in
neither: run from the checkout's root with ``python -m``, each checkout finds its own code.

Standard library only: this is what runs before anything is installed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import signal
import sys
import time
import tomllib
from pathlib import Path

from debian_source import install_packages
from interpreters import Interpreter, free_threaded_interpreter, machine_interpreter
from stages import Cache, SetupError, default_cache, say

CHECKOUT = Path(__file__).resolve().parent.parent
FORMAT = 1  # raise it when what an environment holds changes with the same requirements

# The newest torch with a wheel for the free-threaded version; for 3.11, the one that some machines
# keep as a small CPU build. Elsewhere pip chooses.
TORCH = {
    (True, (3, 13)): "torch==2.12.0",
    (True, (3, 14)): "torch==2.14.*",
    (False, (3, 11)): "torch==2.13.0",
}


@dataclasses.dataclass(frozen=True)
class Requirements:
    """What goes into one environment: torch below, then what must be there, then what may be."""

    torch: str
    needed: tuple[str, ...]
    optional: tuple[str, ...]


def requirements_for(interpreter: Interpreter, *, lint: bool) -> Requirements:
    """Read the project's own lists and choose torch for the interpreter."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["demo"], *extras["test"]]
    if lint:
        needed += extras["lint"]
    torch = TORCH.get((interpreter.free_threaded, interpreter.version), "torch")
    return Requirements(
        torch=torch,
        needed=tuple(line for line in needed if distribution(line) != "torch"),
        optional=tuple(extras["bench"]),
    )


def distribution(requirement: str) -> str:
    """The name in a requirement line: ``spdl-core>=0.1`` gives ``spdl-core``."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return match.group().lower() if match else ""


def make_environment(cache: Cache, interpreter: Interpreter, wanted: Requirements) -> Path:
    """Build, or find in the cache, the environment for one interpreter.

    torch takes minutes and gigabytes and seldom changes, so it lies in an environment of its own;
    the one returned sees it through a path file. A changed requirement then costs a minute.
    """
    torch = _torch_layer(cache, interpreter, wanted.torch)
    made_from = {
        "format": FORMAT,
        "torch": torch.name,
        "needed": wanted.needed,
        "optional": wanted.optional,
    }
    folder = cache.root / "venvs" / _entry_name("env", interpreter, made_from)
    with cache.entry(folder, made_from) as to_build:
        if to_build:
            _new_venv(cache, interpreter, folder)
            site_packages(folder).joinpath("minato_torch.pth").write_text(
                f"{site_packages(torch)}\n"
            )
            label = f"for Python {interpreter.name}"
            _pip_install(cache, folder, f"install packages {label}", wanted.needed)
            left_out = _install_optional(cache, folder, label, wanted.optional)
            (folder / "left_out.txt").write_text("".join(f"{line}\n" for line in left_out))
    if missing := (folder / "left_out.txt").read_text().split():
        say(f"env: Python {interpreter.name} goes without {', '.join(missing)}: no wheel for it")
    return folder


def _torch_layer(cache: Cache, interpreter: Interpreter, torch: str) -> Path:
    made_from = {"format": FORMAT, "build": interpreter.build, "path": interpreter.executable}
    made_from["torch"] = torch
    folder = cache.root / "venvs" / _entry_name("torch", interpreter, made_from)
    with cache.entry(folder, made_from) as to_build:
        if to_build:
            _new_venv(cache, interpreter, folder)
            title = f"install {torch} for Python {interpreter.name} (may take minutes)"
            _pip_install(cache, folder, title, (torch, "numpy"))
    return folder


def _entry_name(kind: str, interpreter: Interpreter, made_from: object) -> str:
    digest = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    return f"{kind}-{interpreter.name}-{digest[:12]}"


def _new_venv(cache: Cache, interpreter: Interpreter, folder: Path) -> None:
    command = [interpreter.executable, "-m", "venv", str(folder)]
    cache.run(f"new environment for Python {interpreter.name}", command)


def site_packages(folder: Path) -> Path:
    """Where an environment keeps its packages."""
    return next(folder.glob("lib/python3*/site-packages"))


def _pip_install(
    cache: Cache, folder: Path, title: str, requirements: tuple[str, ...], *options: str
) -> None:
    # Without pip's cache: it would keep a second copy of gigabytes that lie in our own cache.
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--no-cache-dir", "--no-input"]
    quiet = {"PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    cache.run(title, [*pip, *options, *requirements], env=quiet)


def _install_optional(
    cache: Cache, folder: Path, label: str, requirements: tuple[str, ...]
) -> list[str]:
    """Install the benchmarks' peers, wheels only; return those that this Python has none for."""
    only_wheels = "--only-binary=:all:"
    try:
        _pip_install(cache, folder, f"install peers {label}", requirements, only_wheels)
    except SetupError:
        say("env: not all of them can be had together; one by one")
    else:
        return []
    left_out = []
    for line in requirements:
        try:
            title = f"install {distribution(line)} {label}"
            _pip_install(cache, folder, title, (line,), only_wheels)
        except SetupError:
            left_out.append(distribution(line))
    return left_out


def link(name: str, target: Path | None) -> None:
    """Point the checkout's link `name` at an environment, or remove it where there is none."""
    path = CHECKOUT / name
    if path.exists() and not path.is_symlink():
        raise SetupError(f"{name} is a folder of your own; move it away, then try again")
    if target is None:
        path.unlink(missing_ok=True)
    elif not path.is_symlink() or path.readlink() != target:
        fresh = CHECKOUT / f"{name}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(path)


def with_pip(cache: Cache, interpreter: Interpreter) -> Interpreter:
    """Debian keeps what `venv` needs in a package of its own: install it, or say so."""
    if interpreter.has_pip:
        return interpreter
    package = f"python{interpreter.version[0]}.{interpreter.version[1]}-venv"
    if os.geteuid() != 0:
        raise SetupError(f"this Python makes no environments yet: sudo apt-get install {package}")
    install_packages(cache, [package])
    return dataclasses.replace(interpreter, has_pip=True)


def prepare(cache: Cache) -> None:
    """Make both environments and link them; to have no free-threaded Python is no error."""
    own = machine_interpreter()
    if own is None:
        say("env: no Python with a GIL on this machine: no .venv-gil")
        link(".venv-gil", None)
    else:
        own = with_pip(cache, own)
        link(".venv-gil", make_environment(cache, own, requirements_for(own, lint=True)))
        say(f"env: .venv-gil: Python {own.name}")
    try:
        free = free_threaded_interpreter(cache)
    except SetupError as error:
        if own is None:
            raise
        link(".venv", None)
        say_details(error)
        say(f"env: no free-threaded Python here, only .venv-gil: {error}")
        return
    link(".venv", make_environment(cache, free, requirements_for(free, lint=own is None)))
    say(f"env: .venv: Python {free.name}, free-threaded")


def say_details(error: SetupError) -> None:
    """Show the end of the failed command's log, set off from our own lines."""
    for line in error.details.splitlines():
        say(f"  | {line}")


def _exit_on_terminate(number: int, frame: object) -> None:
    """Leave through the `finally` blocks, which end the running command."""
    sys.exit(128 + number)


def main() -> int:
    """Prepare everything; one line and a non-zero exit when that fails."""
    signal.signal(signal.SIGTERM, _exit_on_terminate)
    started = time.monotonic()
    cache = Cache(default_cache())
    try:
        with cache.locked():
            prepare(cache)
    except SetupError as error:
        say_details(error)
        say(f"env: {error}")
        return 1
    except KeyboardInterrupt:
        say("env: interrupted; what was half-built will not be used")
        return 130
    say(f"env: ready in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
