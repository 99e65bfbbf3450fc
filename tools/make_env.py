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
from collections.abc import Sequence
from pathlib import Path

from debian_source import install_packages
from interpreters import Interpreter, free_threaded_interpreter, machine_interpreter
from stages import Cache, SetupError, default_cache, say

CHECKOUT = Path(__file__).resolve().parent.parent
FORMAT = 1  # raise it when what an environment holds changes with the same requirements
LEFT_OUT = "left_out.txt"  # in an environment: the names of what could not be had

# The newest torch with a wheel for the free-threaded version; for 3.11, the newest that torchvision
# has a build for. Elsewhere pip chooses.
TORCH_PINS = {
    (True, (3, 13)): "torch==2.12.0",
    (True, (3, 14)): "torch==2.14.*",
    (False, (3, 11)): "torch==2.14.1",
}
# Each is made for one torch, with CUDA like it: beside a small CPU build it cannot be imported.
VISION_PINS = {
    (True, (3, 13)): "torchvision==0.27.0",
    (True, (3, 14)): "torchvision==0.29.*",
    (False, (3, 11)): "torchvision==0.29.1",
}


@dataclasses.dataclass(frozen=True)
class Requirements:
    """What goes into one environment."""

    runtime: tuple[str, ...]  # what the package itself needs
    extras: tuple[str, ...]  # what the demo and the tests need on top
    frameworks: tuple[str, ...]  # what the package is used with, as far as it can be had
    peers: tuple[str, ...]  # what the benchmarks compare with, as far as it can be had


def requirements_for(interpreter: Interpreter, *, lint: bool) -> Requirements:
    """Read the project's own lists, and pin torch for the interpreter."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    kind = interpreter.free_threaded, interpreter.version
    pin, vision = TORCH_PINS.get(kind), VISION_PINS.get(kind)
    frameworks = [line for line in extras["frameworks"] if not line.startswith("torchvision")]
    if interpreter.free_threaded:
        # Of the others none has a free-threaded wheel: pyyaml and safetensors have none, which they
        # all need.
        frameworks = [line for line in frameworks if line.startswith("monai")]
    return Requirements(
        runtime=(*project["dependencies"], *([pin] if pin else [])),
        extras=(*extras["demo"], *extras["test"], *(extras["lint"] if lint else [])),
        frameworks=(*frameworks, vision or "torchvision"),
        peers=tuple(extras["bench"]),
    )


def make_environment(cache: Cache, interpreter: Interpreter, wanted: Requirements) -> Path:
    """Build, or find in the cache, the environment for one interpreter.

    torch takes minutes and gigabytes, and the frameworks a minute, so what the package itself needs
    and they, which seldom change, lie in environments of their own; the one returned sees both
    through a path file. A changed extra then costs seconds.
    """
    layers = [_runtime_environment(cache, interpreter, wanted.runtime)]
    if wanted.frameworks:
        layers.append(_frameworks_environment(cache, interpreter, layers[0], wanted.frameworks))
    # The upper layer's name tells what lies below it.
    made_from = {"below": layers[-1].name, "extras": wanted.extras, "peers": wanted.peers}
    folder = _folder(cache, "env", interpreter, made_from)
    with cache.entry(folder, made_from) as to_build:
        if to_build:
            _new_venv(cache, interpreter, folder, layers)
            label = f"for Python {interpreter.name}"
            _pip_install(cache, folder, f"install tools {label}", wanted.extras)
            _install_wheels(cache, folder, "peers", label, wanted.peers)
    lists = [above / LEFT_OUT for above in (*layers[1:], folder)]
    if missing := [name for left_out in lists for name in left_out.read_text().split()]:
        say(f"env: Python {interpreter.name} goes without {', '.join(missing)}: pip found no wheel")
    return folder


def _runtime_environment(cache: Cache, interpreter: Interpreter, wanted: tuple[str, ...]) -> Path:
    made_from = {"python": [interpreter.executable, interpreter.build], "runtime": wanted}
    folder = _folder(cache, "runtime", interpreter, made_from)
    with cache.entry(folder, made_from) as to_build:
        if to_build:
            _new_venv(cache, interpreter, folder)
            torch = next(line for line in reversed(wanted) if line.startswith("torch"))
            title = f"install {torch} and the rest of what runs, for Python {interpreter.name}"
            _pip_install(cache, folder, title, wanted)
    return folder


def _frameworks_environment(
    cache: Cache, interpreter: Interpreter, runtime: Path, wanted: tuple[str, ...]
) -> Path:
    made_from = {"below": runtime.name, "frameworks": wanted}
    folder = _folder(cache, "frameworks", interpreter, made_from)
    with cache.entry(folder, made_from) as to_build:
        if to_build:
            _new_venv(cache, interpreter, folder, [runtime])
            label = f"for Python {interpreter.name}"
            _install_wheels(cache, folder, "frameworks", label, wanted)
    return folder


def _folder(cache: Cache, kind: str, interpreter: Interpreter, made_from: object) -> Path:
    """The cache entry for an environment; its name tells all that it is made from."""
    whole = json.dumps([FORMAT, made_from], sort_keys=True)
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return cache.root / "venvs" / f"{kind}-{interpreter.name}-{digest[:12]}"


def _new_venv(
    cache: Cache, interpreter: Interpreter, folder: Path, below: Sequence[Path] = ()
) -> None:
    """Make an empty environment that sees the packages of those `below`."""
    command = [interpreter.executable, "-m", "venv", str(folder)]
    cache.run(f"new environment for Python {interpreter.name}", command)
    path_file = site_packages(folder) / "minato_below.pth"
    path_file.write_text("".join(f"{site_packages(layer)}\n" for layer in below))


def site_packages(folder: Path) -> Path:
    """Where an environment keeps its packages."""
    return next(folder.glob("lib/python3*/site-packages"))


def _pip_install(
    cache: Cache, folder: Path, title: str, requirements: tuple[str, ...], *options: str
) -> None:
    # Without pip's cache: it would keep a second copy of gigabytes that lie in our own cache.
    # Rather an older wheel than the newest source: numpy 2.5, say, has no wheel for 3.13t.
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--no-input"]
    pip += ["--no-cache-dir", "--prefer-binary"]
    quiet = {"PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    cache.run(title, [*pip, *options, *requirements], env=quiet)


def _install_wheels(
    cache: Cache, folder: Path, what: str, label: str, requirements: tuple[str, ...]
) -> None:
    """Install those requirements that this Python has wheels for; list the others in a file."""
    only_wheels = "--only-binary=:all:"
    left_out = []
    try:
        _pip_install(cache, folder, f"install {what} {label}", requirements, only_wheels)
    except SetupError:
        say("env: not all of them can be had; one by one")
        for line in requirements:
            name = re.split(r"[^\w.-]", line)[0]
            try:
                _pip_install(cache, folder, f"install {name} {label}", (line,), only_wheels)
            except SetupError:
                left_out.append(name)
    (folder / LEFT_OUT).write_text("\n".join(left_out))


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
    say(f"env: ready in {time.monotonic() - started:.1f} s (cache: {cache.root})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
