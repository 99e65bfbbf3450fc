"""Showing how far the demo is."""

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Display:
    """A line for each finished training and, on a terminal, a bar under them.

    Where the output is a file or a pipe there is no bar: only lines, without control characters.
    """

    def __init__(self, console: Console, trainings: int, batches: int) -> None:
        """Prepare the display; it appears on entering it.

        Args:
            console: Where to show it.
            trainings: How many there will be.
            batches: Batches of each.
        """
        self._console = console
        self._batches = batches
        self._before = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("batches"),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=console,
            # Drawing takes CPU time from what is measured: seldom is often enough.
            refresh_per_second=2,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=trainings * batches)

    def __enter__(self) -> "Display":
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the bar away; the lines stay."""
        self._progress.stop()

    def start(self, title: str) -> None:
        """Show that a training begins.

        Args:
            title: What it is called.
        """
        self._progress.update(self._bar, description=escape(title))

    def on_batch(self, batches: int) -> None:
        """Show how far the present training is.

        Args:
            batches: Its batches so far.
        """
        self._progress.update(self._bar, completed=self._before + batches)

    def finish(self, line: str) -> None:
        """Show that the present training is over.

        Args:
            line: What came of it.
        """
        self._before += self._batches
        self._progress.update(self._bar, completed=self._before)
        self._console.print(escape(line), style="dim", highlight=False)
