"""The argument parser of ``minato-async`` and the way from a subcommand to its code."""

import argparse
import sys
from collections.abc import Sequence

from minato_async.cli.demo.options import add_demo_parser
from minato_async.cli.machine import package_version
from minato_async.cli.run.options import add_run_parser
from minato_async.cli.run.options import run as run_script


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with every subcommand in it; each sets ``run``, its own function."""
    parser = argparse.ArgumentParser(
        prog="minato-async",
        description="minato_async: a drop-in DataLoader for free-threaded Python.",
    )
    version = package_version("minato-async", "minato_async")
    parser.add_argument("--version", action="version", version=f"minato-async {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_demo_parser(commands)
    add_run_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: The arguments after the program's name; None means those of this process.

    Returns:
        The exit status: 0 all went well, 1 the command's work failed, 2 it could not start,
        130 the user stopped it. A script that ``run`` ran exits by itself, if it does.
    """
    arguments = build_parser().parse_args(argv)
    if arguments.run == run_script:
        return run_script(arguments)  # What it raises is the script's, and for Python to show.
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print("stopped.", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        package = (error.name or "minato_async").partition(".")[0]
        if package == "minato_async":
            raise  # A fault of ours, not something the user could install.
        print(
            f"minato-async: this needs {package!r}, which is not installed for "
            f"{sys.executable}; \"pip install 'minato-async[demo]'\" brings it.",
            file=sys.stderr,
        )
        return 2
