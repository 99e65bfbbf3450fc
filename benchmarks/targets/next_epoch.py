"""next-epoch (P5): from the last batch of an epoch to the first of the next, persistent workers.

Beyond what the samples of that first batch cost an ideal pool, as for first-batch. Nothing of an
epoch is loaded before the user asks for it, so this is what every epoch begins with: ending one,
drawing anew, and waking workers that are there already.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.figures import at_most
from benchmarks.limits import list_schedule
from benchmarks.measure.rounds import Contender, Rows, interleave
from benchmarks.peers.base import Plan
from benchmarks.peers.minato import load
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.costs import uniform
from benchmarks.workloads.guard import ConcurrencyGuard
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import Epoch, Receipt, read_costed
from minato_async.cli.measure.table import Table

WORKERS = 12
BATCH_SIZE = 32
LENGTH = BATCH_SIZE * 6
ROUNDS = 5
EPOCHS, QUICK_EPOCHS = 3, 2
"""Passes over one loader in each round: the first only starts its workers."""
GOAL_MS = 5.0
WORKLOADS = {"trivial": 0.0, "50ms": 0.050}
"""Seconds a sample sleeps."""


def _torch(plan: Plan) -> Iterable[Any]:
    return DataLoader(
        plan.dataset, plan.batch_size, num_workers=plan.workers, persistent_workers=True
    )


def _threads(plan: Plan) -> Iterable[Any]:
    return load(plan, in_order=True, persistent_workers=True)


def _ready_first(plan: Plan) -> Iterable[Any]:
    return load(plan, in_order=False, persistent_workers=True)


def _processes(plan: Plan) -> Iterable[Any]:
    return load(plan, in_order=True, executor="process", persistent_workers=True)


OWN = {
    "MinatoLoader in order": _threads,
    "MinatoLoader any order": _ready_first,
    "MinatoLoader processes": _processes,
}
LOADERS = {**OWN, "torch in order": _torch}


def _gap(loader: Iterable[Any], epochs: int) -> Epoch:
    """The least of the times from the last batch of a pass to the first of the next: what else
    runs on the machine can only add to it."""
    gaps: list[tuple[float, Receipt]] = []
    cpu, ended = time.process_time(), 0.0
    for _ in range(epochs):
        first: Receipt | None = None
        for batch in loader:
            arrived = time.perf_counter()
            if first is None:
                first = Receipt()
                read_costed(batch, first)
                gaps.append((arrived - ended, first))
            del batch
            ended = time.perf_counter()
    gap, receipt = min(gaps[1:], key=lambda found: found[0])
    cpu = time.process_time() - cpu
    return Epoch((gap,), (receipt.samples,), gap, cpu, receipt)


def _contender(name: str, cost: float, epochs: int) -> Contender:
    def run() -> Epoch:
        processes = name not in ("MinatoLoader in order", "MinatoLoader any order")
        dataset = Sleeping(uniform(LENGTH, cost), ConcurrencyGuard(processes=processes))
        loader = LOADERS[name](Plan(dataset, LENGTH, BATCH_SIZE, WORKERS))
        return _gap(loader, epochs)

    return Contender(name, run)


def _beyond(epoch: Epoch) -> float:
    return (epoch.first - list_schedule(epoch.receipt.costs, WORKERS)) * 1000


def _measure(name: str, cost: float, options: Options, report: Report) -> Rows:
    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    rows = interleave(
        [_contender(loader, cost, epochs) for loader in LOADERS],
        options.rounds_or(ROUNDS),
        report,
        f"next epoch, {name}",
    )
    table = Table(
        f"from the last batch to the first of the next epoch, {BATCH_SIZE} samples that sleep "
        f"{cost * 1000:g} ms, {WORKERS} persistent workers, ms; the best of {epochs - 1} a round",
        ("loader", "to the batch", "beyond its samples' cost"),
    )
    for row in rows.values():
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(lambda epoch: epoch.first).text(1, 1000),
                row.spread(_beyond).text(1),
            )
        )
    report.table(table)
    return rows


def run(options: Options, report: Report) -> None:
    """Measure both workloads; the figure is the worst of our ways to load."""
    for name, cost in WORKLOADS.items():
        rows = _measure(name, cost, options, report)
        medians = [rows[own].spread(_beyond).median for own in OWN]
        complete = all(value == value for value in medians)
        report.figures.append(
            at_most(f"{name}_ms", max(medians) if complete else float("nan"), GOAL_MS)
        )
    report.note("each figure is the worst of threads in order, any order, and processes")


TARGET = Target(
    "next-epoch",
    "from the last batch of an epoch to the first of the next, persistent workers",
    "<= 5 ms beyond what the batch's samples cost, 12 workers",
    run,
    number="P5",
)
