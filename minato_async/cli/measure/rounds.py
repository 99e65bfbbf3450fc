"""Rounds in which everything that is compared takes its turn, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from minato_async.cli.measure.statistics import Spread, spread

Found = TypeVar("Found")
Entry = TypeVar("Entry")


@dataclass
class Row(Generic[Found]):
    """What was found in each round of one contender; ``error`` says why it failed, if it did."""

    name: str
    found: list[Found] = field(default_factory=list)
    error: str | None = None

    def values(self, of: Callable[[Found], float]) -> list[float]:
        """One number of every round; none when the row failed, so that no figure uses it."""
        return [] if self.error else [of(found) for found in self.found]

    def spread(self, of: Callable[[Found], float]) -> Spread:
        """Median and spread of one number over the rounds."""
        return spread(self.values(of))


def turns(entries: Sequence[Entry], rounds: int) -> Iterator[tuple[int, Entry]]:
    """Number of the round and entry, one after the other.

    In each round every entry is there once, so that what changes on the machine over minutes meets
    all alike; the one that starts moves on by one, so that none always follows the same other.
    """
    for number in range(rounds):
        first = number % len(entries)
        for entry in (*entries[first:], *entries[:first]):
            yield number, entry
