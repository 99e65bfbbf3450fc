"""What a target is: a name, the goals in words, and a function that measures them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.report import Report


@dataclass(frozen=True)
class Options:
    """What the command line asks of every target.

    ``rounds``: interleaved rounds, ``None`` for the target's own number; ``quick``: sizes so small
    that only the code is exercised (the figures mean nothing); ``parts``: those of the target to
    run, none for all.
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

    ``name`` as on the command line; ``title`` says in one line what is measured and the goal;
    ``run`` measures, fills the report's tables and notes, and sets its figures; ``parts`` are names
    of what it can run by itself, with ``--part``.
    """

    name: str
    title: str
    run: Callable[[Options, Report], None]
    parts: Sequence[str] = ()
