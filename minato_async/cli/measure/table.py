"""Tables of plain text, for a terminal and for a file alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Table:
    """Rows of text under a title, if there is one; the first column is left-aligned, the others
    right. A column's name may have several lines."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def __str__(self) -> str:
        names = [name.split("\n") for name in self.columns]
        height = max(map(len, names))
        head = zip(*([""] * (height - len(name)) + name for name in names), strict=True)
        lines = [*head, *(tuple(row) for row in self.rows)]
        widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
        text = [self.title] if self.title else []
        for line in lines:
            first, *rest = (
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            text.append("  " + "  ".join([first, *rest]).rstrip())
        return "\n".join(text)
