"""The table, and what a reader must know to judge it."""

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime

from minato_async.cli.demo.options import LOADERS, DemoOptions
from minato_async.cli.demo.photos import Photo
from minato_async.cli.demo.summary import (
    LOSS,
    METRICS,
    RIGHT,
    SPEED,
    Row,
    best_row,
    median,
)
from minato_async.cli.machine import (
    Machine,
    gil_setting,
    gil_state,
    interpreter_name,
    package_version,
    whole_cpus,
)
from minato_async.cli.measure import memory
from minato_async.cli.measure.table import Table
from minato_async.options import can_fork

WIDTH = 100
"""Columns that everything fits in."""

# For a guess at the time that all takes: the training step's share of the CPUs, and the seconds in
# which a child imports torch.
_TRAINING_TOO = 1.2
_CHILD_STARTS = 6.0

_GIL_WORDS = {
    "off": "GIL off",
    "on": "GIL ON",
    "always": "with the GIL",
}


def say(text: str, indent: int = 0) -> None:
    """Print a paragraph, with spaces before all lines but the first."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    print(textwrap.fill(text, min(width, WIDTH), subsequent_indent=" " * indent), flush=True)


def print_gil_note() -> None:
    """Say whether a free-threaded Python is in use; it is the first thing to know."""
    under_the_gil = "MinatoLoader's workers are processes then, as torch's are."
    if not can_fork():
        under_the_gil = (
            "MinatoLoader's workers are threads all the same, of which only those that release it "
            "(Pillow's decoding does, Python code does not) run in parallel."
        )
    if gil_state() == "always":
        note = f"{interpreter_name()} has the GIL: no free-threaded Python is in use."
        note = f"{note} {under_the_gil}"
    elif gil_setting() == "1":
        note = f"The GIL of this {interpreter_name()} is on, as you set it. {under_the_gil}"
    else:
        note = (
            f"{interpreter_name()}, every loader with -X gil=0: torch's optimizers import triton, "
            "which would turn the GIL back on. Start your own training scripts in the same way."
        )
    say(note)
    print()


def print_plan(options: DemoOptions, photos: Sequence[Photo], costs: Sequence[float]) -> None:
    """Say what will be done; `costs` are the CPU seconds that some samples took."""
    sizes = sorted(photo.megapixels for photo in photos)
    ordered = sorted(1000 * cost for cost in costs)
    middle, most = ordered[len(ordered) // 2], ordered[-1]
    p90 = ordered[int(0.9 * (len(ordered) - 1))]
    say(
        f"Training a small convolutional network to tell {len(photos)} photos "
        f"({sizes[0]:.2f}–{sizes[-1]:.1f} megapixels) apart by random crops, decoded from their "
        f"files. One sample costs {ordered[0]:.1f}–{most:.0f} ms of CPU "
        f"(median {middle:.0f}, P90 {p90:.0f}).",
    )
    say(
        f"{_many(options.rounds, 'round')} of {_many(len(options.loaders), 'loader')}, each with "
        f"{_many(options.workers, 'worker')} in a fresh process: "
        f"{_many(options.epochs, 'epoch')} of {options.samples} samples in "
        f"{_many(options.batches, 'batch', 'batches')}. It takes {_about(options, costs)}.",
    )
    print()


def _about(options: DemoOptions, costs: Sequence[float]) -> str:
    """Return, for people, how long all trainings take together."""
    samples = options.epochs * options.samples * sum(costs) / len(costs)
    seconds = samples / min(options.workers, whole_cpus()) * _TRAINING_TOO + _CHILD_STARTS
    seconds *= options.rounds * len(options.loaders)
    return "less than a minute" if seconds < 60 else f"about {_many(round(seconds / 60), 'minute')}"


def print_report(
    options: DemoOptions,
    rows: Mapping[str, Row],
    machine: Machine,
    began: datetime,
) -> None:
    """Print the table and under it where, when and how it was measured."""
    print(f"\n{_table(options, rows)}\n")
    for label, text in _footer(options, rows, machine, began):
        say(f"{label:<9}{text}", indent=9)


def _table(options: DemoOptions, rows: Mapping[str, Row]) -> Table:
    titles = [f"{m.title} ({m.unit})" if m.unit else m.title for m in (*METRICS, LOSS, RIGHT)]
    # A word a line, so that the names are no wider than the numbers.
    table = Table("", ("loader", *(title.replace(" ", "\n") for title in titles)))
    for loader in options.loaders:
        if loader in rows:
            table.rows.append(_cells(rows[loader], list(rows.values())))
        else:
            table.rows.append((LOADERS[loader], *("–" for _ in titles)))
    return table


def _cells(row: Row, rows: Sequence[Row]) -> Sequence[str]:
    cells = [row.name]
    for metric in METRICS:
        best = "*" if best_row(rows, metric) is row else " "
        spread = row.spread(metric.of)
        text = metric.text(spread.median)
        if metric is SPEED and len(row.found) > 1:
            text += f" ±{metric.text((spread.high - spread.low) / 2)}"
        cells.append(text + best)
    return [*cells, *(metric.text(median(row, metric)) for metric in (LOSS, RIGHT))]


def _footer(
    options: DemoOptions,
    rows: Mapping[str, Row],
    machine: Machine,
    began: datetime,
) -> list[tuple[str, str]]:
    trainings = [training for row in rows.values() for training in row.found]
    gil = " / ".join(sorted({_GIL_WORDS[training.gil] for training in trainings})) or "–"
    versions = ", ".join(
        f"{name} {package_version(distribution, module)}"
        for name, distribution, module in (
            ("torch", "torch", "torch"),
            ("minato_async", "minato-async", "minato_async"),
            ("numpy", "numpy", "numpy"),
            ("pillow", "pillow", "PIL"),
        )
    )
    devices = ", ".join(sorted({training.device for training in trainings})) or "–"
    threads = max((training.threads for training in trainings), default=1)
    load = "" if machine.load is None else f", load before the start {machine.load:.1f}"
    return [
        ("python", f"{interpreter_name()}, {gil}"),
        ("versions", versions),
        (
            "machine",
            f"{machine.cpu}, {machine.cpus_usable} of {machine.cpus_present} CPUs usable, "
            f"{machine.system}{load}",
        ),
        (
            "training",
            f"on {devices}, {_many(threads, 'thread')}; batches of {options.batch_size}, "
            f"{_many(options.workers, 'worker')}; {began:%Y-%m-%d %H:%M %Z}",
        ),
        (
            "columns",
            f"medians of {_many(options.rounds, 'round')}, the loaders in turns (± half of "
            "highest minus lowest); first batch: time from iter(); data wait: share of the time "
            "spent inside next(); gap: from batch to batch, training step included; loss and "
            f"share told right in the last epoch; memory: {memory.method()}; "
            "*: better than every other loader in all rounds",
        ),
    ]


def _many(number: int, thing: str, things: str | None = None) -> str:
    return f"{number} {thing if number == 1 else things or thing + 's'}"
