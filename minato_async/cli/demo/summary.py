"""From the numbers of all rounds to medians, spreads, and one true sentence."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from minato_async.cli.demo.training import Training
from minato_async.cli.measure import rounds

Row = rounds.Row[Training]
"""All trainings of one loader, one per round."""

# Medians closer than this are called equal, even if every round agrees on who is ahead.
_SAME = 0.01


@dataclass(frozen=True)
class Metric:
    """One thing that is measured of every loader in every round.

    Attributes:
        title: What it is, for people.
        unit: In what; empty for a number without one.
        digits: Digits after the point.
        of: Takes it from a training.
        more_is_better: Whether the higher value is the better one.
    """

    title: str
    unit: str
    digits: int
    of: Callable[[Training], float]
    more_is_better: bool = False

    def text(self, value: float) -> str:
        """Return a value as the table writes it, without the unit; a dash for none."""
        return "–" if math.isnan(value) else f"{value:,.{self.digits}f}"


def _p99_gap(training: Training) -> float:
    return 1000 * float(np.percentile(training.gaps, 99)) if training.gaps else float("nan")


SPEED = Metric("samples/s", "", 1, lambda t: t.samples / t.seconds, more_is_better=True)
FIRST_BATCH = Metric("first batch", "s", 2, lambda t: statistics.median(t.first_batch))
WAITED = Metric("data wait", "%", 1, lambda t: 100 * t.waited / t.seconds)
GAP = Metric("p99 gap", "ms", 0, _p99_gap)
MEMORY = Metric("peak memory", "MiB", 0, lambda t: t.peak_memory / 2**20)
METRICS = (SPEED, FIRST_BATCH, WAITED, GAP, MEMORY)
"""The columns of the table in which loaders are compared, in order."""

LOSS = Metric("loss", "", 2, lambda t: t.loss)
RIGHT = Metric("right", "%", 0, lambda t: 100 * t.accuracy, more_is_better=True)
"""What became of the training, to be seen and not compared: no loader is to make a difference."""


def median(row: Row, metric: Metric) -> float:
    """Return the metric's median over the rounds."""
    return row.spread(metric.of).median


class Verdict(Enum):
    """How one loader compares with another in one metric."""

    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"


def compare(row: Row, other: Row, metric: Metric) -> Verdict:
    """Say whether ``row`` is better than ``other``.

    Only where the rounds leave no doubt: the worst round of the one is better than the best of
    the other, and the medians are not practically the same. From one round no spread is known,
    so nothing is decided.
    """
    if min(len(row.found), len(other.found)) < 2:
        return Verdict.UNDECIDED
    mine, theirs = row.values(metric.of), other.values(metric.of)
    if abs(median(row, metric) - median(other, metric)) <= _SAME * abs(median(other, metric)):
        return Verdict.UNDECIDED
    if not metric.more_is_better:
        mine, theirs = [-value for value in mine], [-value for value in theirs]
    if min(mine) > max(theirs):
        return Verdict.BETTER
    if max(mine) < min(theirs):
        return Verdict.WORSE
    return Verdict.UNDECIDED


def best_row(rows: Sequence[Row], metric: Metric) -> Row | None:
    """Return the loader that is better than each of the others, None if there is none."""
    for row in rows:
        others = [other for other in rows if other is not row]
        if others and all(compare(row, other, metric) is Verdict.BETTER for other in others):
            return row
    return None


def sentence(rows: Mapping[str, Row]) -> str:
    """Say in one sentence what the table shows, and no more than it shows.

    MinatoLoader is held against the faster of torch's loaders. Without MinatoLoader the
    faster of the loaders is held against the next.
    """
    by_speed = sorted(rows.values(), key=lambda row: median(row, SPEED), reverse=True)
    if not by_speed:
        return "No loader came to its end, so there is nothing to compare."
    if len(by_speed) == 1:
        (row,) = by_speed
        return (
            f"{row.name} fed the training {SPEED.text(median(row, SPEED))} samples a second; "
            "no other loader was measured, so nothing is compared."
        )
    if "minato" in rows:
        row = rows["minato"]
        rivals = [other for other in by_speed if other is not row]
    else:
        row, rivals = by_speed[0], by_speed[1:]
    return _compared(row, rivals[0], faster_of_several=len(rivals) > 1)


def _compared(row: Row, rival: Row, faster_of_several: bool) -> str:
    against = rival.name
    if faster_of_several:
        against += " (the faster of the other two)"
    ratio = median(row, SPEED) / median(rival, SPEED)
    others = METRICS[1:]
    if min(len(row.found), len(rival.found)) < 2:
        values = ", ".join(_pair(metric, row, rival) for metric in others)
        return (
            f"In this one round, which tells no spread and so proves nothing, {row.name} fed the "
            f"training {ratio:.2f} × the samples a second of {against}, with {values}."
        )
    verdict = compare(row, rival, SPEED)
    if verdict is Verdict.UNDECIDED:
        lead = (
            f"{row.name} and {against} fed the training equally fast within the spread between "
            f"rounds ({ratio:.2f} ×)"
        )
    elif verdict is Verdict.BETTER:
        lead = f"{row.name} fed the training {ratio:.2f} × as fast as {against}"
    else:
        lead = f"{row.name} was slower than {against}: {ratio:.2f} × its samples a second"
    parts = [lead]
    for wanted, words in (
        (Verdict.BETTER, "it was better in"),
        (Verdict.WORSE, "it was worse in"),
        (Verdict.UNDECIDED, "there is no difference beyond the spread in"),
    ):
        found = [metric for metric in others if compare(row, rival, metric) is wanted]
        if found:
            parts.append(f"{words} {_listed([_pair(metric, row, rival) for metric in found])}")
    return "; ".join(parts) + "."


def _pair(metric: Metric, row: Row, rival: Row) -> str:
    """Return ``first batch (0.20 against 0.50 s)``."""
    mine, theirs = metric.text(median(row, metric)), metric.text(median(rival, metric))
    unit = f" {metric.unit}" if metric.unit else ""
    return f"{metric.title} ({mine} against {theirs}{unit})"


def _listed(parts: Sequence[str]) -> str:
    """Join ``a, b and c``."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def complaints(rows: Mapping[str, Row], workers: int) -> list[str]:
    """Say what makes the comparison unequal: other pixels, or more samples made at once than
    `workers`."""
    found: list[str] = []
    trainings = [(row, seen) for row in rows.values() for seen in row.found]
    work = {(seen.samples, seen.batches, seen.checksum) for _, seen in trainings}
    if len(work) > 1:
        counts = "; ".join(
            f"{row.name}: {seen.samples} samples, {seen.batches} batches, pixels {seen.checksum:x}"
            for row, seen in trainings
        )
        found.append(f"the trainings did not see the same samples ({counts})")
    for row in rows.values():
        most = max(seen.most_at_once for seen in row.found)
        if most > workers:
            found.append(
                f"{row.name} made up to {most} samples at once, with {workers} workers agreed"
            )
    return found
