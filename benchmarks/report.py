"""What a target found: tables and notes to read, figures to check, all of it as JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.figures import Figure, all_reached, format_line
from minato_async.cli.measure.table import Table


@dataclass
class Report:
    """Collects what one target found, and prints it as it comes.

    ``raw`` keeps every round's own numbers for ``--json``, under names the target chooses;
    ``seconds``: how long the target ran.
    """

    name: str
    machine: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def table(self, table: Table) -> None:
        """Keep and print a finished table."""
        self.tables.append(table)
        print(f"{table}\n", flush=True)

    def note(self, text: str) -> None:
        """Keep and print a remark, once."""
        if text not in self.notes:
            self.notes.append(text)
            print(f"note: {text}", flush=True)

    def progress(self, text: str) -> None:
        """Say what is running now; on standard error, so that the output stays a report."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    @property
    def reached(self) -> bool:
        """Whether every figure meets its goal."""
        return all_reached(self.figures)

    @property
    def line(self) -> str:
        """The line of figures."""
        return format_line(self.name, self.figures)

    def as_json(self) -> dict[str, Any]:
        """Everything, ready for :mod:`json`."""
        return {
            "name": self.name,
            "reached": self.reached,
            "line": self.line,
            "figures": [asdict(figure) | {"reached": figure.reached} for figure in self.figures],
            "machine": self.machine,
            "seconds": self.seconds,
            "notes": self.notes,
            "tables": [asdict(table) for table in self.tables],
            "raw": self.raw,
        }
