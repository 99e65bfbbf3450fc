"""What the user can set about the demo."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from minato_async.cli.machine import whole_cpus

LOADERS: dict[str, str] = {
    "torch": "torch in order",
    "torch-any-order": "torch in_order=False",
    "minato": "MinatoLoader",
}
"""The loaders that can be compared: the name on the command line, the name in the table."""

# More workers than this would hold a whole epoch of a few hundred samples in their prefetched
# batches, and nothing of the steady state would be seen.
_MOST_WORKERS = 8


@dataclass(frozen=True)
class DemoOptions:
    """One run of the demo.

    Attributes:
        workers: Workers of every loader.
        epochs: Epochs of each training.
        batch_size: Samples in a batch.
        samples: Samples in an epoch.
        rounds: How many times each loader is measured.
        loaders: Keys of `LOADERS`, in the order of the table.
        photos: Folder the photos are taken from; None: those that scikit-image ships.
        seed: Seed of the model, of the order of samples, and of every crop.
    """

    workers: int
    epochs: int
    batch_size: int
    samples: int
    rounds: int
    loaders: tuple[str, ...]
    photos: Path | None
    seed: int

    @property
    def batches(self) -> int:
        """Batches in an epoch, the last one perhaps smaller."""
        return -(-self.samples // self.batch_size)


@dataclass(frozen=True)
class _Sizes:
    """Defaults that depend on ``--quick``."""

    epochs: int
    batch_size: int
    samples: int
    rounds: int


_FULL = _Sizes(epochs=3, batch_size=16, samples=320, rounds=3)
_QUICK = _Sizes(epochs=1, batch_size=8, samples=40, rounds=1)


def add_demo_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the ``demo`` subcommand."""
    parser = commands.add_parser(
        "demo",
        help="train a small network on real photos under each loader and compare them",
        description=(
            "Trains a small convolutional network on real photos of very different sizes, fed "
            "by torch's DataLoader in order, by torch's with in_order=False, and by "
            "MinatoLoader with in_order=False, with equal workers, and prints one table. "
            "Takes a minute or two."
        ),
    )
    workers = min(whole_cpus(), _MOST_WORKERS)
    _count(parser, "workers", "workers of every loader", workers)
    # Absent unless given, for their defaults depend on --quick and an explicit value wins.
    for name, text, size in (
        ("epochs", "epochs of each training", _FULL.epochs),
        ("batch-size", "samples in a batch", _FULL.batch_size),
        ("samples", "samples in an epoch", _FULL.samples),
        ("rounds", "how many times each loader is measured, in turns", _FULL.rounds),
    ):
        _count(parser, name, text, size, absent=True)
    parser.add_argument(
        "--loaders",
        type=_loaders,
        default=tuple(LOADERS),
        metavar="A,B",
        help=f"which to compare (default: {','.join(LOADERS)})",
    )
    parser.add_argument(
        "--photos",
        type=Path,
        metavar="FOLDER",
        help="a folder of pictures to use (default: the photos that scikit-image ships)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="of the network, the order of samples and every crop (default: 1)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few seconds a loader: shows that everything works, not who is faster",
    )
    parser.set_defaults(run=_run)


def options_from(arguments: argparse.Namespace) -> DemoOptions:
    """Turn parsed arguments into options."""
    sizes = _QUICK if arguments.quick else _FULL
    return DemoOptions(
        workers=arguments.workers,
        epochs=getattr(arguments, "epochs", sizes.epochs),
        batch_size=getattr(arguments, "batch_size", sizes.batch_size),
        samples=getattr(arguments, "samples", sizes.samples),
        rounds=getattr(arguments, "rounds", sizes.rounds),
        loaders=arguments.loaders,
        photos=arguments.photos,
        seed=arguments.seed,
    )


def _run(arguments: argparse.Namespace) -> int:
    # Imported here, so that --help needs none of the demo's packages.
    from minato_async.cli.demo.command import run_demo

    return run_demo(options_from(arguments))


def _count(
    parser: argparse.ArgumentParser, name: str, text: str, default: int, absent: bool = False
) -> None:
    """Add an option that takes a number from 1; ``absent``: no attribute unless it is given."""
    parser.add_argument(
        f"--{name}",
        type=_positive,
        default=argparse.SUPPRESS if absent else default,
        metavar="N",
        help=f"{text} (default: {default})",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _loaders(text: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in chosen:
        if name not in LOADERS:
            known = ", ".join(LOADERS)
            raise argparse.ArgumentTypeError(f"no loader {name!r}; there are: {known}")
    return chosen
