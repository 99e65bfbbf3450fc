"""The command line itself."""

import subprocess
import sys

import pytest

from minato_async.cli import main
from minato_async.cli.machine import Machine, whole_cpus


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for argument, word in (("--help", "demo"), ("--version", "minato-async ")):
        with pytest.raises(SystemExit) as ended:
            main([argument])
        assert ended.value.code == 0
        assert word in capsys.readouterr().out


def test_without_a_command_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_a_missing_package_is_named_and_so_is_the_cure() -> None:
    program = (
        "import sys; sys.modules['tqdm'] = None\n"
        "from minato_async.cli import main; sys.exit(main(['demo', '--quick']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "this needs 'tqdm'" in done.stderr
    assert "pip install 'minato-async[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_else_in_the_package_loads_the_command_line() -> None:
    program = (
        "import minato_async, sys; sys.exit(any('minato_async.cli' in m for m in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_machine_is_described() -> None:
    machine = Machine.here()

    assert machine.cpu
    assert 1 <= machine.cpus_usable == whole_cpus() <= machine.cpus_present
