"""replica: milliseconds to make what a worker thread has for itself.

A worker makes it before its first sample, so it is part of the time to the first batch.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, default_collate

from benchmarks.figures import at_most
from benchmarks.report import Report
from benchmarks.target import Options, Target
from minato_async.cli.measure.statistics import spread
from minato_async.cli.measure.table import Table
from minato_async.replicas.replica import Code, Replica

ROUNDS = 21
GOAL_MS = 5.0


class Records(Dataset[Any]):
    """``length`` records, a few settings, and a handle that is opened later."""

    def __init__(self, length: int) -> None:
        self.records = [(f"sample {number}", number) for number in range(length)]
        self.settings = {"size": 224, "crop": [0.08, 1.0]}
        self.handle: Any = None

    def __len__(self) -> int:
        return len(self.records)


class Grouped(Dataset[Any]):
    """A thousand records in each of a thousand classes."""

    def __init__(self) -> None:
        self.by_class = {n: [f"{n}/{k}" for k in range(1000)] for n in range(1000)}

    def __len__(self) -> int:
        return 1_000_000


def _concatenated() -> Any:
    return ConcatDataset([Records(2000) for _ in range(300)])


CASES: dict[str, Callable[[], Any]] = {
    "a million records": lambda: Records(1_000_000),
    "a thousand lists of a thousand": Grouped,
    "300 datasets in one": _concatenated,
}


def _times(dataset: Any, rounds: int) -> dict[str, list[float]]:
    code = Code(dataset, (), default_collate, None, "raise")
    found: dict[str, list[float]] = {"made": [], "brought up to date": []}
    for _ in range(rounds):
        gc.collect()
        began = time.perf_counter()
        replica = Replica(code, 0)
        made = time.perf_counter()
        replica.refresh()
        found["made"].append((made - began) * 1e3)
        found["brought up to date"].append((time.perf_counter() - made) * 1e3)
    return found


def run(options: Options, report: Report) -> None:
    """Measure each dataset; the figure is the median for a million records, in either form."""
    table = Table("milliseconds for one worker", ("dataset", "made", "brought up to date"))
    medians = {}
    for name, make in CASES.items():
        times = _times(make(), options.rounds_or(ROUNDS))
        report.raw[name] = times
        medians[name] = spread(times["made"]).median
        table.rows.append((name, *(spread(values).text(3) for values in times.values())))
    report.table(table)
    worst = max(medians["a million records"], medians["a thousand lists of a thousand"])
    report.figures.append(at_most("million_ms", worst, GOAL_MS))


TARGET = Target(
    "replica",
    "making what a worker thread has for itself, for a million records",
    "<= 5 ms",
    run,
)
