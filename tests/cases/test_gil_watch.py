"""Case 35: something turns the GIL back on, and the user is told what, once.

As yet threads are used all the same; on processes there will be more to see.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases import gil_scenarios

CHECKOUT = Path(__file__).parents[2]
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

#: An extension module that, as most that were written before 2024, says nothing of the GIL.
MODULE = """
#include <Python.h>
static int start(PyObject *module) {{ {body} }}
static PyModuleDef_Slot slots[] = {{{{Py_mod_exec, start}}, {{0, NULL}}}};
static struct PyModuleDef module = {{
    PyModuleDef_HEAD_INIT, .m_name = "{name}", .m_slots = slots
}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModuleDef_Init(&module); }}
"""
MODULES = {
    "needs_gil": "return 0;",
    "needs_gil_too": "return 0;",
    "needs_gil_and_fails": 'PyErr_SetString(PyExc_ImportError, "no"); return -1;',
}

#: Each scenario, and the module that the one warning names: "" for a warning that names none, None
#: for no warning.
EXPECTED: dict[Callable[[], None], str | None] = {
    gil_scenarios.nothing: None,
    gil_scenarios.without_workers: None,
    gil_scenarios.before_minato_is_imported: "needs_gil",
    gil_scenarios.before_the_loader_is_made: "needs_gil",
    gil_scenarios.between_two_epochs: "needs_gil",
    gil_scenarios.between_two_epochs_of_persistent_workers: "needs_gil",
    gil_scenarios.iterable: "needs_gil",
    gil_scenarios.many_loaders_from_many_threads: "needs_gil",
    gil_scenarios.first_of_two: "needs_gil",
    gil_scenarios.warning_was_ignored: "needs_gil",
    gil_scenarios.warning_was_recorded_elsewhere: "needs_gil",
    gil_scenarios.import_failed: "needs_gil_and_fails",
    gil_scenarios.no_trace_is_left: "",
}


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the modules, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    include = sysconfig.get_path("include")
    if compiler is None or not Path(include, "Python.h").exists():
        pytest.skip("no C compiler, or no headers of this Python")
    folder = tmp_path_factory.mktemp("extensions")
    for name, body in MODULES.items():
        source = folder / f"{name}.c"
        source.write_text(MODULE.format(name=name, body=body))
        built = folder / (name + sysconfig.get_config_var("EXT_SUFFIX"))
        command = [compiler, "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(built)]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def run(extensions: Path, *names: str, gil: str | None = None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    environment["PYTHONPATH"] = str(CHECKOUT)
    options = [] if gil is None else ["-X", f"gil={gil}"]
    done = subprocess.run(
        [sys.executable, *options, "-m", "tests.cases.gil_scenarios", str(extensions), *names],
        capture_output=True,
        text=True,
        env=environment,
        timeout=270,
    )
    assert done.returncode == 0, done.stderr
    written: dict[str, str] = json.loads(done.stdout)
    assert not any(text.startswith("exit status") for text in written.values()), written
    return written


def warnings_in(written: str) -> list[str]:
    """Our warnings, each with the place that it is charged to."""
    return [line for line in written.splitlines() if "The GIL is on" in line]


@pytest.fixture(scope="module")
def written(extensions: Path) -> dict[str, str]:
    return run(extensions, *(scenario.__name__ for scenario in EXPECTED), "warnings_are_errors")


@pytest.mark.skipif(not FREE_THREADED, reason="this Python always has its GIL on")
class TestFreeThreaded:
    @pytest.mark.parametrize(
        ("scenario", "module"), EXPECTED.items(), ids=[each.__name__ for each in EXPECTED]
    )
    def test_one_warning_names_the_module_and_the_cure(
        self, written: dict[str, str], scenario: Callable[[], None], module: str | None
    ) -> None:
        found = warnings_in(written[scenario.__name__])
        if module is None:
            assert found == []
            return
        (warning,) = found
        assert re.findall(r"importing '(\w+)'", warning) == ([module] if module else [])
        assert ("can no longer be told" in warning) == (not module)
        assert "PYTHON_GIL=0" in warning
        assert "-X gil=0" in warning
        assert "RuntimeWarning" in warning

    def test_it_is_charged_to_the_code_that_iterates(self, written: dict[str, str]) -> None:
        (warning,) = warnings_in(written["before_the_loader_is_made"])
        assert f"{gil_scenarios.__file__}:" in warning

    def test_as_an_error_it_leaves_nothing_and_is_raised_once(
        self, written: dict[str, str]
    ) -> None:
        (raised,) = warnings_in(written["warnings_are_errors"])
        assert raised.startswith("raised ")

    def test_gil_that_was_asked_for(self, extensions: Path) -> None:
        """There is no module to name, not even one that would have turned it on."""
        found = run(extensions, "nothing", "first_of_two", gil="1")
        for written in found.values():
            (warning,) = warnings_in(written)
            assert "no module has turned it on" in warning
            assert "PYTHON_GIL=1" in warning
            assert "importing" not in warning

    def test_gil_that_is_kept_off(self, extensions: Path) -> None:
        (written,) = run(extensions, "first_of_two", gil="0").values()
        assert warnings_in(written) == []


@pytest.mark.skipif(FREE_THREADED, reason="for Pythons that always have a GIL")
def test_with_an_ordinary_python_there_is_no_warning(extensions: Path) -> None:
    found = run(extensions, "nothing", "before_the_loader_is_made")
    assert list(map(warnings_in, found.values())) == [[], []]
