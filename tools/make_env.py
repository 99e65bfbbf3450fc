"""Prepares the project's environments and links them into the checkout.

``.venv`` runs on free-threaded CPython, ``.venv-gil`` on the machine's own Python; ``.venv-demo``
is what of the first the demo needs. They lie in a cache outside the checkout (see
`stages.default_cache`), under a name made from all that they were built from, so every checkout
with the same requirements shares them. The package itself is in none of them: run from the
checkout's root with ``python -m``, each checkout finds its own code.

Standard library only: this is what runs before anything is installed.
"""

from __future__ import annotations

import argparse
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
from interpreters import (
    Interpreter,
    known_free_threaded,
    machine_interpreter,
    new_free_threaded,
    refused,
)
from stages import MARKER, Cache, SetupError, default_cache, say

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

TO_BE_MADE = Interpreter("", (3, 13), "3.13", free_threaded=True, has_pip=True)
"""Stands for the free-threaded Python where there is none yet."""
MAKE_SECONDS = 120  # about, to build it on two cores


@dataclasses.dataclass(frozen=True)
class Layer:
    """Packages that lie in an environment of their own, which sees those of the layers below it.

    torch takes minutes and gigabytes, and the frameworks a minute, and both seldom change: a
    changed tool then costs seconds, and the demo goes without what lies above it.
    """

    kind: str
    title: str
    needed: tuple[str, ...]
    wanted: tuple[str, ...]  # left out where pip finds no wheel
    seconds: int  # about, to fill it on two cores, from a near index


def layers_for(interpreter: Interpreter, *, lint: bool) -> list[Layer]:
    """Read the project's own lists, and pin torch for the interpreter; the lowest layer first."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    kind = interpreter.free_threaded, interpreter.version
    pin, vision = TORCH_PINS.get(kind), VISION_PINS.get(kind)
    frameworks = [line for line in extras["frameworks"] if not line.startswith("torchvision")]
    if interpreter.free_threaded:
        # Of the others none has a free-threaded wheel: pyyaml and safetensors have none, which they
        # all need.
        frameworks = [line for line in frameworks if line.startswith("monai")]
    runtime = (*project["dependencies"], *([pin] if pin else []))
    tools = (*extras["test"], *(extras["lint"] if lint else []))
    return [
        Layer("runtime", f"{pin or 'torch'} and the rest of what runs", runtime, (), 90),
        Layer("demo", "what the demo needs", tuple(extras["demo"]), (), 15),
        Layer("frameworks", "frameworks", (), (*frameworks, vision or "torchvision"), 30),
        Layer("env", "tools and peers", tools, tuple(extras["bench"]), 20),
    ]


def demo_layers(interpreter: Interpreter) -> list[Layer]:
    """What the demo needs: neither frameworks nor tools, nor other loaders."""
    return layers_for(interpreter, lint=False)[:2]


def layer_folders(cache: Cache, interpreter: Interpreter, layers: Sequence[Layer]) -> list[Path]:
    """The cache entry of each layer; its name is made from all that it and those below it hold."""
    folders: list[Path] = []
    for layer in layers:
        whole = json.dumps([FORMAT, _made_from(interpreter, layer, folders)], sort_keys=True)
        digest = hashlib.sha256(whole.encode()).hexdigest()
        name = f"{layer.kind}-{interpreter.name}-{digest[:12]}"
        folders.append(cache.root / "venvs" / name)
    return folders


def _made_from(interpreter: Interpreter, layer: Layer, below: Sequence[Path]) -> dict[str, object]:
    made_from: dict[str, object] = {layer.kind: layer.needed}
    if layer.wanted:
        made_from["wanted"] = layer.wanted
    if below:
        return made_from | {"below": below[-1].name}
    return made_from | {"python": [interpreter.executable, interpreter.build]}


def make_environment(cache: Cache, interpreter: Interpreter, layers: Sequence[Layer]) -> Path:
    """Build, or find in the cache, the layers for one interpreter; the uppermost is returned."""
    label = f"for Python {interpreter.name}"
    folders = layer_folders(cache, interpreter, layers)
    left_out: list[str] = []
    for number, (layer, folder) in enumerate(zip(layers, folders, strict=True)):
        below = folders[:number]
        with cache.entry(folder, _made_from(interpreter, layer, below)) as to_build:
            if to_build:
                _new_venv(cache, interpreter, folder, below)
                if layer.needed:
                    _pip_install(cache, folder, f"install {layer.title} {label}", layer.needed)
                if layer.wanted:
                    _install_wheels(cache, folder, layer.title, label, layer.wanted)
        if layer.wanted:
            left_out += (folder / LEFT_OUT).read_text().split()
    if left_out:
        say(f"env: Python {interpreter.name} goes without {', '.join(left_out)}: no wheel found")
    return folders[-1]


def still_to_do(
    cache: Cache, interpreter: Interpreter, layers: Sequence[Layer]
) -> list[tuple[str, int]]:
    """What is missing for one interpreter, in words, each with about the seconds that it takes."""
    label = f"for Python {interpreter.name}"
    if interpreter is TO_BE_MADE:
        missing = list(layers)
        todo = [("get a free-threaded Python, built here if need be", MAKE_SECONDS)]
    else:
        folders = layer_folders(cache, interpreter, layers)
        pairs = zip(layers, folders, strict=True)
        missing = [layer for layer, folder in pairs if not (folder / MARKER).exists()]
        todo = []
    return [*todo, *((f"install {layer.title} {label}", layer.seconds) for layer in missing)]


def _time(seconds: int) -> str:
    return f"about {seconds} s" if seconds < 60 else f"about {round(seconds / 60)} min"


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


def announce(what: str, todo: Sequence[tuple[str, int]]) -> None:
    """Say what is going to be set up, before it begins."""
    if not todo:
        return say(f"{what}: all that it needs is set up")
    total = _time(sum(seconds for _, seconds in todo))
    say(f"{what}: to be set up first, once, in {total} on two cores:")
    for words, seconds in todo:
        say(f"{what}:   {words}: {_time(seconds)}")


def prepare_demo(cache: Cache, *, only_say: bool) -> None:
    """Make the one environment that the demo needs, free-threaded if that can be had."""
    free = known_free_threaded(cache)
    own = machine_interpreter() if free is None else None
    planned = free or (own if own is not None and refused() else TO_BE_MADE)
    announce("demo", still_to_do(cache, planned, demo_layers(planned)))
    say("demo: then small trainings are fed by three loaders in turn: about 3 min on two cores")
    if only_say:
        return
    try:
        chosen = free or new_free_threaded(cache)
    except SetupError as error:
        if own is None:
            raise
        say_details(error)
        say(f"demo: no free-threaded Python here, so this runs with the GIL: {error}")
        chosen = with_pip(cache, own)
    link(".venv-demo", make_environment(cache, chosen, demo_layers(chosen)))


def prepare(cache: Cache, *, only_say: bool) -> None:
    """Make both environments and link them; to have no free-threaded Python is no error."""
    own, free = machine_interpreter(), known_free_threaded(cache)
    planned = [found for found in (own, free) if found is not None]
    if free is None and not refused():
        planned.append(TO_BE_MADE)
    todo: list[tuple[str, int]] = []
    for one in planned:
        todo += still_to_do(cache, one, layers_for(one, lint=one is own or own is None))
    announce("env", todo)
    if only_say:
        return
    if own is None:
        say("env: no Python with a GIL on this machine: no .venv-gil")
        link(".venv-gil", None)
    else:
        own = with_pip(cache, own)
        link(".venv-gil", make_environment(cache, own, layers_for(own, lint=True)))
        say(f"env: .venv-gil: Python {own.name}")
    try:
        free = free or new_free_threaded(cache)
    except SetupError as error:
        if own is None:
            raise
        link(".venv", None)
        say_details(error)
        say(f"env: no free-threaded Python here, only .venv-gil: {error}")
        return
    link(".venv", make_environment(cache, free, layers_for(free, lint=own is None)))
    say(f"env: .venv: Python {free.name}, free-threaded")


def say_details(error: SetupError) -> None:
    """Show the end of the failed command's log, set off from our own lines."""
    for line in error.details.splitlines():
        say(f"  | {line}")


def _exit_on_terminate(number: int, frame: object) -> None:
    """Leave through the `finally` blocks, which end the running command."""
    sys.exit(128 + number)


def main() -> int:
    """Prepare what is asked for; one line and a non-zero exit when that fails."""
    parser = argparse.ArgumentParser(description="Prepares the project's environments.")
    parser.add_argument("what", nargs="?", choices=("all", "demo"), default="all")
    parser.add_argument("--plan", action="store_true", help="only say what there is to do")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, _exit_on_terminate)
    started = time.monotonic()
    cache = Cache(default_cache())
    try:
        with cache.locked():
            make = prepare_demo if chosen.what == "demo" else prepare
            make(cache, only_say=chosen.plan)
    except SetupError as error:
        say_details(error)
        say(f"env: {error}")
        return 1
    except KeyboardInterrupt:
        say("env: interrupted; what was half-built will not be used")
        return 130
    if not chosen.plan:
        say(f"env: ready in {time.monotonic() - started:.1f} s (cache: {cache.root})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
