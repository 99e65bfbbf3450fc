"""The set-up: what it would do, said before it is done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def plan(what: str, cache: Path, **environment: str) -> str:
    """What the set-up says that it would do with a cache; nothing is installed."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "make_env.py", what, "--plan"],
        env=os.environ | {"MINATO_CACHE": str(cache)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_sets_up_one_environment_without_frameworks_tools_and_the_second_python(
    tmp_path: Path,
) -> None:
    said = plan("demo", tmp_path)
    assert re.search(
        r"^demo: to be set up first, once, in about \d+ min on two cores:$", said, re.M
    )
    assert re.search(r"^demo:   install torch\S* and the rest .*: about 2 min$", said, re.M)
    assert len(set(re.findall(r"for Python (\S+):", said))) == 1
    assert said.count("  install ") == 2
    assert "frameworks" not in said
    assert "tools" not in said
    assert re.search(r"^demo: then .* three loaders .* about 3 min", said, re.M)
    assert not any((tmp_path / name).exists() for name in ("venvs", "interpreters"))


def test_without_a_free_threaded_python_the_demo_is_set_up_for_the_machines_own(
    tmp_path: Path,
) -> None:
    said = plan("demo", tmp_path, MINATO_NO_FREETHREADED="1")
    assert "free-threaded" not in said
    assert re.findall(r"for Python [\d.]+(\S*):", said) == ["", ""]


def test_everything_is_set_up_for_both(tmp_path: Path) -> None:
    said = plan("all", tmp_path)
    assert len(set(re.findall(r"for Python (\S+):", said))) == 2
    assert said.count("install frameworks") == said.count("install tools") == 2


@pytest.mark.parametrize("layers", [1, 2])
def test_what_is_there_is_not_set_up_again(tmp_path: Path, layers: int) -> None:
    program = """
import sys
sys.path.insert(0, "tools")
import make_env
from pathlib import Path
cache = make_env.Cache(Path(sys.argv[1]))
free = make_env.known_free_threaded(cache)
one = free or make_env.machine_interpreter()
demo = make_env.layer_folders(cache, one, make_env.demo_layers(one))
everything = make_env.layer_folders(cache, one, make_env.layers_for(one, lint=free is None))
assert everything[:2] == demo
for folder in demo[: int(sys.argv[2])]:
    folder.mkdir(parents=True)
    (folder / make_env.MARKER).touch()
print(free is None)
"""
    arguments = [sys.executable, "-c", program, str(tmp_path), str(layers)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    none_is_free = done.stdout.strip() == "True"
    said = plan("demo", tmp_path, **({"MINATO_NO_FREETHREADED": "1"} if none_is_free else {}))
    assert said.count("  install ") == 2 - layers
    assert ("demo: all that it needs is set up" in said) == (layers == 2)
