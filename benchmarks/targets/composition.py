"""composition: slow samples in the batches of an epoch, in any order, against a plain shuffle.

A loader that lets ready samples go first could fill its first batches with fast ones and its last
with slow ones. The paper prints the mean share of slow samples in a batch (0.15 and 0.17, 0.23 and
0.24 for its two workloads); here are the mean and the spread over the middle of the epoch, and the
share in its first and last batches apart: until the first slow samples are finished batches hold
none, and what is slow in the end comes last. A plain shuffle is drawn from the same samples.

The statistic: the number of slow samples in a part of a plain shuffle is hypergeometric. In the
middle of an epoch the mean share must be that of the epoch, within 5 % of it or three standard
deviations of a plain shuffle's, whichever is more; and the spread from batch to batch may be less
than a plain shuffle's (slow samples that come one after the other are spread by the time they take)
but not more than 1.25 times as much.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import at_most
from benchmarks.measure.checks import check_receipt
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.guard import ConcurrencyGuard
from benchmarks.workloads.halves import Halves
from benchmarks.workloads.paper import WORKLOADS, scaled
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import Receipt, consume, read_costed
from minato_async.cli.measure.table import Table

WORKERS = 8
BATCH_SIZE = 24
BATCHES, QUICK_BATCHES = 480, 24
MEAN = 0.004
"""Seconds a sample; the tails are those of the paper, whatever the mean."""
END = 0.1
"""Part of an epoch at its beginning, and at its end, that is reported apart."""
CASES = {"speech-3s": 0.2, "speech-10s": 0.2, "detection": 0.1, "rare": 0.01}
"""The part of the samples that counts as slow: the slowest."""
LEAST, SIGMAS = 0.05, 3.0
GOAL_SPREAD = 1.25


@dataclass(frozen=True)
class Shares:
    """Shares of slow samples, batch by batch."""

    batches: Sequence[float]

    @property
    def _cut(self) -> int:
        return round(END * len(self.batches))

    @property
    def middle(self) -> Sequence[float]:
        return self.batches[self._cut : -self._cut]

    @property
    def first(self) -> float:
        return statistics.mean(self.batches[: self._cut])

    @property
    def last(self) -> float:
        return statistics.mean(self.batches[-self._cut :])


def _shares(slow: Sequence[bool], order: Sequence[int]) -> Shares:
    return Shares(
        [
            statistics.mean(slow[index] for index in order[start : start + BATCH_SIZE])
            for start in range(0, len(order), BATCH_SIZE)
        ]
    )


def _loaded(costs: Sequence[float], split: bool) -> Receipt:
    from minato_async import MinatoLoader

    guard = ConcurrencyGuard(processes=False)
    halves = Sleeping([cost / 2 for cost in costs], guard)
    dataset: Any = Halves(halves, halves) if split else Sleeping(costs, guard)
    loader: Any = MinatoLoader(
        dataset,
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=WORKERS,
        in_order=False,
        scheduler="fixed",
        transforms=[dataset.rest] if split else None,
    )
    epoch = consume(loader, read_costed)
    check_receipt(epoch.receipt, len(costs))
    return epoch.receipt


def _measure(name: str, part: float, options: Options, report: Report) -> tuple[float, float]:
    """The worst, over both ways of loading, of the mean's deviation, as a part of what it may be,
    and of the spread."""
    length = BATCH_SIZE * (QUICK_BATCHES if options.quick else BATCHES)
    costs = scaled(WORKLOADS[name](length), MEAN)
    limit = sorted(costs)[-round(part * length)]
    slow = [cost >= limit for cost in costs]
    share = statistics.mean(slow)
    plain = list(range(length))
    random.Random(1).shuffle(plain)
    rows = {
        "plain shuffle": _shares(slow, plain),
        "MinatoLoader": _shares(slow, _loaded(costs, False).indices),
        "MinatoLoader, diverting": _shares(slow, _loaded(costs, True).indices),
    }
    inner = (1 - 2 * END) * length
    allowed = max(LEAST, SIGMAS * ((1 - share) / share / inner * 2 * END) ** 0.5)
    expected = (share * (1 - share) / BATCH_SIZE) ** 0.5
    table = Table(
        f"{name}: share of slow samples in {length // BATCH_SIZE} batches of {BATCH_SIZE}; "
        f"{share:.3f} in the epoch, spread {expected:.3f} expected",
        ("loader", "middle: mean", "spread", "of the expected", "first tenth", "last tenth"),
    )
    worst_mean = worst_spread = 0.0
    for row, shares in rows.items():
        mean, spread = statistics.mean(shares.middle), statistics.pstdev(shares.middle)
        table.rows.append(
            (
                row,
                f"{mean:.3f}",
                f"{spread:.3f}",
                f"{spread / expected:.2f}",
                f"{shares.first:.3f}",
                f"{shares.last:.3f}",
            )
        )
        if row != "plain shuffle":
            worst_mean = max(worst_mean, abs(mean / share - 1.0) / allowed)
            worst_spread = max(worst_spread, spread / expected)
    report.table(table)
    report.raw[name] = {row: list(shares.batches) for row, shares in rows.items()}
    return worst_mean, worst_spread


def run(options: Options, report: Report) -> None:
    """Measure the cases one after the other."""
    for name, part in CASES.items():
        mean, spread = _measure(name, part, options, report)
        report.figures.append(at_most(f"{name}-mean", mean, 1.0))
        report.figures.append(at_most(f"{name}-spread", spread, GOAL_SPREAD))


TARGET = Target(
    "composition",
    "slow samples in the batches of an epoch, in any order",
    "in its middle the mean share is a plain shuffle's (1: 5 % or 3 sigma off) and the "
    "spread no more than 1.25 of it",
    run,
)
