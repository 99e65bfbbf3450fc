"""What a target is: a name, the goals in words, and a function that measures them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.report import Report


@dataclass(frozen=True)
class Options:
    """What the command line asks of every target.

    ``rounds``: interleaved rounds, ``None`` for the target's own number, with which it ends within
    five minutes on two cores; ``quick``: sizes so small that only the code is exercised (the
    figures mean nothing), for less than a minute; ``parts``: those of the target to run, none for
    all.
    """

    rounds: int | None = None
    quick: bool = False
    parts: Sequence[str] = ()

    def rounds_or(self, default: int) -> int:
        """The number of rounds, given the target's own."""
        if self.rounds is not None:
            return self.rounds
        return 1 if self.quick else default


@dataclass(frozen=True)
class Target:
    """A figure to reach.

    ``name``: one word for what is measured, as on the command line, where ``number``, the figure's
    number in the design, does as well; ``what``: the same in less than a line; ``goal``: what must
    be reached, in words; ``run`` measures, fills the report's tables and notes, and sets its
    figures; ``parts``: names of what it can run by itself, with ``--part``.
    """

    name: str
    what: str
    goal: str
    run: Callable[[Options, Report], None]
    number: str = ""
    parts: Sequence[str] = ()
