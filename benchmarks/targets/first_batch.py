"""first-batch (P4): from ``iter()`` to the first batch, beyond what the batch's own samples cost.

What the samples cost is what an ideal pool of 12 workers needs for the first batch, by the costs
its samples measured: nothing for trivial ones, three times 50 ms for 32 samples of 50 ms. Workers
start inside ``iter()``, so that is counted.
"""

from __future__ import annotations

from benchmarks.contest import costed, present
from benchmarks.figures import at_most
from benchmarks.limits import list_schedule
from benchmarks.measure.rounds import Rows, interleave
from benchmarks.peers.minato import MINATO_READY, MINATO_STRICT
from benchmarks.peers.nodes import NODES, NODES_IN_ORDER
from benchmarks.peers.spdl_pipeline import SPDL, SPDL_INPUT
from benchmarks.peers.torch_loader import TORCH, TORCH_READY
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.costs import uniform
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import Epoch
from minato_async.cli.measure.table import Table

WORKERS = 12
BATCH_SIZE = 32
LENGTH = BATCH_SIZE * WORKERS * 4
"""More than the window of any peer, so that all its workers start at full load."""
ROUNDS = 11
GOAL_MS = 20.0
OWN = (MINATO_STRICT, MINATO_READY)
PEERS = (*OWN, TORCH, TORCH_READY, SPDL_INPUT, SPDL, NODES_IN_ORDER, NODES)
QUICK_PEERS = (*OWN, NODES)
"""No processes: twelve take seconds to start."""
WORKLOADS = {"trivial": 0.0, "50ms": 0.050}
"""Seconds a sample sleeps (a sleep of zero only yields)."""


def _beyond(epoch: Epoch) -> float:
    """Milliseconds to the first batch beyond what an ideal pool needs for its samples."""
    return (epoch.first - list_schedule(epoch.receipt.costs, WORKERS)) * 1000


def _measure(name: str, cost: float, options: Options, report: Report) -> Rows:
    costs = uniform(LENGTH, cost)
    rows = interleave(
        [
            costed(
                peer,
                lambda guard: Sleeping(costs, guard),
                length=LENGTH,
                batch_size=BATCH_SIZE,
                workers=WORKERS,
                batches=1,
            )
            for peer in present(QUICK_PEERS if options.quick else PEERS, report)
        ],
        options.rounds_or(ROUNDS),
        report,
        f"first batch, {name}",
    )
    table = Table(
        f"first batch of {BATCH_SIZE} samples that sleep {cost * 1000:g} ms, {WORKERS} workers, "
        "ms from iter()",
        ("loader", "to the batch", "beyond its samples' cost", "the process's first time"),
    )
    for row in rows.values():
        beyond = row.values(_beyond)
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(lambda epoch: epoch.first).text(1, 1000),
                row.spread(_beyond).text(1),
                f"{beyond[0]:.1f}" if beyond else "",
            )
        )
    report.table(table)
    return rows


def run(options: Options, report: Report) -> None:
    """Measure both workloads; the figure is the worse of strict order and any order."""
    for name, cost in WORKLOADS.items():
        rows = _measure(name, cost, options, report)
        medians = [rows[peer.name].spread(_beyond).median for peer in OWN if peer.name in rows]
        complete = len(medians) == len(OWN) and all(value == value for value in medians)
        report.figures.append(
            at_most(f"{name}_ms", max(medians) if complete else float("nan"), GOAL_MS)
        )
    report.note("each figure is the worse of in_order=True and in_order=False, in milliseconds")


TARGET = Target(
    "first-batch",
    "from iter() to the first batch, beyond what its samples cost",
    "<= 20 ms, 12 workers",
    run,
    number="P4",
)
