"""The table, and what a reader must know to judge it."""

import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from minato_async.cli.demo import memory
from minato_async.cli.demo.options import LOADERS, DemoOptions
from minato_async.cli.demo.photos import Photo
from minato_async.cli.demo.summary import LOSS, METRICS, RIGHT, SPEED, Metric, Row, best_row
from minato_async.cli.machine import (
    Machine,
    gil_setting,
    gil_state,
    interpreter_name,
    package_version,
)
from minato_async.options import can_fork

WIDTH = 100
"""Columns that everything fits in."""

_GIL_WORDS = {
    "off": "GIL off",
    "on": "GIL ON",
    "always": "with the GIL",
}


def make_console() -> Console:
    """Return the console the demo writes to; on no terminal it is plain text of `WIDTH`."""
    console = Console(highlight=False)
    if not console.is_terminal:
        return Console(highlight=False, width=WIDTH)
    return Console(highlight=False, width=min(console.width, WIDTH))


def say(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    """Print a paragraph.

    Args:
        console: Where to.
        text: Plain text; nothing in it is taken for markup.
        style: One of rich's, such as ``"bold"``.
        indent: Spaces before all lines but the first.
    """
    # Wrapped here, for rich leaves spaces at the ends of the lines it breaks.
    lines = textwrap.wrap(text, console.width, subsequent_indent=" " * indent)
    console.print(Text("\n".join(lines), style=style))


def print_gil_note(console: Console) -> None:
    """Say whether a free-threaded Python is in use; it is the first thing to know.

    Args:
        console: Where to.
    """
    style = "yellow"
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
        style = "dim"
        note = (
            f"{interpreter_name()}, every loader with -X gil=0: torch's optimizers import triton, "
            "which would turn the GIL back on. Start your own training scripts in the same way."
        )
    say(console, note, style=style)
    console.print()


def print_plan(
    console: Console, options: DemoOptions, photos: Sequence[Photo], costs: Sequence[float]
) -> None:
    """Say what will be done.

    Args:
        console: Where to.
        options: The run's options.
        photos: The photos.
        costs: CPU seconds that some samples took, not empty.
    """
    sizes = sorted(photo.megapixels for photo in photos)
    ordered = sorted(1000 * cost for cost in costs)
    middle, most = ordered[len(ordered) // 2], ordered[-1]
    p90 = ordered[int(0.9 * (len(ordered) - 1))]
    say(
        console,
        f"Training a small convolutional network to tell {len(photos)} photos "
        f"({sizes[0]:.2f}–{sizes[-1]:.1f} megapixels) apart by random crops, decoded from their "
        f"files. One sample costs {ordered[0]:.1f}–{most:.0f} ms of CPU "
        f"(median {middle:.0f}, P90 {p90:.0f}).",
    )
    say(
        console,
        f"{_many(options.rounds, 'round')} of {_many(len(options.loaders), 'loader')}, each with "
        f"{_many(options.workers, 'worker')} in a fresh process: "
        f"{_many(options.epochs, 'epoch')} of {options.samples} samples in "
        f"{_many(options.batches, 'batch', 'batches')}.",
    )
    console.print()


def print_report(
    console: Console,
    options: DemoOptions,
    rows: Mapping[str, Row],
    machine: Machine,
    began: datetime,
) -> None:
    """Print the table and under it where, when and how it was measured.

    Args:
        console: Where to.
        options: The run's options.
        rows: The measured loaders by their keys in `options.LOADERS`.
        machine: Where.
        began: When, with its time zone.
    """
    console.print()
    console.print(_table(options, rows))
    for label, text in _footer(options, rows, machine, began, console.is_terminal):
        say(console, f"{label:<9}{text}", indent=9)


def _table(options: DemoOptions, rows: Mapping[str, Row]) -> RenderableType:
    table = Table(box=box.ROUNDED, header_style="bold")
    # On a narrow terminal the names are broken between words, the numbers never.
    table.add_column("loader", min_width=max(len(w) for n in LOADERS.values() for w in n.split()))
    # A word a line, so that the headers are no wider than the numbers.
    titles = [f"{m.title} ({m.unit})" if m.unit else m.title for m in (*METRICS, LOSS, RIGHT)]
    for title in titles:
        table.add_column(title.replace(" ", "\n"), justify="right", no_wrap=True)
    for loader in options.loaders:
        if loader in rows:
            table.add_row(*_cells(rows[loader], list(rows.values())))
        else:
            table.add_row(LOADERS[loader], *["–" for _ in titles])
    return table


def _cells(row: Row, rows: Sequence[Row]) -> list[Text]:
    cells = [Text(row.title)]
    for metric in METRICS:
        style = "bold green" if best_row(rows, metric) is row else ""
        cells.append(Text(_value(row, metric), style=style))
    return [*cells, *(Text(metric.text(row.median(metric))) for metric in (LOSS, RIGHT))]


def _value(row: Row, metric: Metric) -> str:
    text = metric.text(row.median(metric))
    if metric is SPEED and len(row.rounds) > 1:
        text += f" ±{metric.text(row.spread(metric))}"
    return text


def _footer(
    options: DemoOptions,
    rows: Mapping[str, Row],
    machine: Machine,
    began: datetime,
    colours: bool,
) -> list[tuple[str, str]]:
    results = [measured.result for row in rows.values() for measured in row.rounds]
    gil = " / ".join(sorted({_GIL_WORDS[result.gil] for result in results})) or "–"
    versions = ", ".join(
        f"{name} {package_version(distribution, module)}"
        for name, distribution, module in (
            ("torch", "torch", "torch"),
            ("minato_async", "minato-async", "minato_async"),
            ("numpy", "numpy", "numpy"),
            ("pillow", "pillow", "PIL"),
        )
    )
    devices = ", ".join(sorted({result.device for result in results})) or "–"
    threads = max((result.threads for result in results), default=1)
    load = "" if machine.load is None else f", load before the start {machine.load:.1f}"
    green = "; green: better than every other loader in all rounds" if colours else ""
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
            f"share told right in the last epoch; memory: {memory.method()}{green}",
        ),
    ]


def _many(number: int, thing: str, things: str | None = None) -> str:
    return f"{number} {thing if number == 1 else things or thing + 's'}"
