"""Medians and spread over rounds, and ratios paired by round."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some rounds; ``nan`` throughout when there was none."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        """As ``median [low–high]``, each times ``scale``."""
        middle, low, high = (
            f"{value * scale:.{digits}f}" for value in (self.median, self.low, self.high)
        )
        return f"{middle} [{low}–{high}]"


def spread(values: Iterable[float]) -> Spread:
    """Summarise the values of the rounds."""
    kept = list(values)
    if not kept:
        return Spread(float("nan"), float("nan"), float("nan"))
    return Spread(statistics.median(kept), min(kept), max(kept))


def paired(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Ratios round by round, which cancels what changed on the machine between rounds.

    One that ran fewer rounds ran the first ones; one that failed has no values, and no ratios.
    """
    return spread(a / b for a, b in zip(above, below, strict=False))


def differences(left: Sequence[float], right: Sequence[float]) -> Spread:
    """The same with ``left`` minus ``right``."""
    return spread(a - b for a, b in zip(left, right, strict=False))
