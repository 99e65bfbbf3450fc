"""The arguments of ``minato-async run``, and what it does with them."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from minato_async.options import EXECUTORS, SCHEDULERS
from minato_async.patching import patch

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_OPTIONS = (
    "in_order",
    "seed",
    "executor",
    "scheduler",
    "max_workers",
    "max_queue_size",
    "max_displacement",
    "sample_timeout",
    "on_error",
)

_DESCRIPTION = """\
Run a training script as "python SCRIPT ARGS" would, with MinatoLoader wherever it asks for
torch's DataLoader, and say at the end how long it waited for data. The options are MinatoLoader's,
for loaders that are not given them. On free-threaded Python start it with PYTHON_GIL=0."""


def add_run_parser(commands: "Commands") -> None:
    """Add the subcommand ``run``."""
    parser = commands.add_parser(
        "run",
        help="run a training script with MinatoLoader in the place of torch's DataLoader",
        description=_DESCRIPTION,
        usage="minato-async run [OPTIONS] (SCRIPT | -m MODULE) [ARGS ...]",
    )
    parser.add_argument(
        "--in-order", type=_truth, metavar="true|false", help="true: batches as torch makes them"
    )
    parser.add_argument("--seed", type=int, help="base seed of each sample's random state")
    parser.add_argument("--executor", choices=EXECUTORS)
    parser.add_argument("--scheduler", choices=SCHEDULERS)
    parser.add_argument("--max-workers", type=int)
    parser.add_argument("--max-queue-size", type=int, metavar="SAMPLES")
    parser.add_argument("--max-displacement", type=int, metavar="BATCHES")
    parser.add_argument("--sample-timeout", type=float, metavar="SECONDS")
    parser.add_argument("--on-error", choices=("raise", "skip"))
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module, as with python -m; what follows are its arguments",
    )
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="what follows are its arguments"
    )
    parser.set_defaults(run=run, parser=parser)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true or false, not {text!r}")
    return text.lower() == "true"


def run(arguments: argparse.Namespace) -> int:
    """Run what the arguments name. What it raises comes out, `SystemExit` too.

    Returns:
        The exit status: 0 it came to its end, 1 or 2 it could not be started.
    """
    # Not before: only this command needs them.
    from minato_async.cli.run.data_wait import DataWait
    from minato_async.cli.run.script import CannotStart, Script

    command = arguments.module if arguments.module is not None else arguments.script
    if not command:
        arguments.parser.error("it takes a script, or -m and a module")
    defaults: dict[str, Any] = {
        name: value for name in _OPTIONS if (value := getattr(arguments, name)) is not None
    }
    try:
        patch(**defaults)
    except (TypeError, ValueError, NotImplementedError) as error:
        arguments.parser.error(str(error))
    script = Script(command, is_module=arguments.module is not None)
    wait = DataWait()
    wait.count()
    try:
        script.run()
    except CannotStart as error:
        print(f"minato-async run: {error}", file=sys.stderr)
        return error.status
    except BaseException:
        wait.report()
        raise
    # Nothing is taken back: threads and exit handlers of the script may still load.
    wait.report()
    return 0
