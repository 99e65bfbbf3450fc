"""The figures a target reports, and the one line they are printed as.

The last line of ``python -m benchmarks NAME`` always has this form::

    trivial num_workers=0 1.120 (>= 1.000) images 5.100 (>= 4.000): reached

a name, then one or more ``label value (operator goal)``, then ``reached`` or ``missed``. A figure
that could not be measured has the value ``nan`` and is missed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Direction = Literal[">=", "<="]

_NUMBER = r"(?:-?\d+\.\d{3}|nan|inf)"
_FIGURE = re.compile(rf"(\S+) ({_NUMBER}) \((>=|<=) ({_NUMBER})\)")
_LINE = re.compile(
    rf"(?P<name>\S+)(?P<figures>(?: \S+ {_NUMBER} \((?:>=|<=) {_NUMBER}\))+): "
    r"(?P<verdict>reached|missed)"
)


@dataclass(frozen=True)
class Figure:
    """One number against its goal; the label says what it is and, if not a ratio, its unit."""

    label: str
    value: float
    direction: Direction
    goal: float

    @property
    def reached(self) -> bool:
        """Whether the goal is met; never for a value that is not a number."""
        return self.value >= self.goal if self.direction == ">=" else self.value <= self.goal

    def __str__(self) -> str:
        return f"{self.label} {self.value:.3f} ({self.direction} {self.goal:.3f})"


def at_least(label: str, value: float, goal: float) -> Figure:
    """A figure that must not be below ``goal``."""
    return Figure(label, value, ">=", goal)


def at_most(label: str, value: float, goal: float) -> Figure:
    """A figure that must not be above ``goal``."""
    return Figure(label, value, "<=", goal)


def all_reached(figures: Sequence[Figure]) -> bool:
    """Whether there are figures and each meets its goal."""
    return bool(figures) and all(figure.reached for figure in figures)


def format_line(name: str, figures: Sequence[Figure]) -> str:
    """The fixed line for one target."""
    verdict = "reached" if all_reached(figures) else "missed"
    return f"{name} {' '.join(map(str, figures))}: {verdict}"


@dataclass(frozen=True)
class Line:
    """What :func:`parse_line` read."""

    name: str
    figures: tuple[Figure, ...]
    reached: bool


def parse_line(line: str) -> Line:
    """Read what :func:`format_line` wrote; ``ValueError`` for anything else."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"not a line of figures: {line!r}")
    figures = tuple(
        Figure(label, float(value), ">=" if direction == ">=" else "<=", float(goal))
        for label, value, direction, goal in _FIGURE.findall(match["figures"])
    )
    return Line(match["name"], figures, match["verdict"] == "reached")
