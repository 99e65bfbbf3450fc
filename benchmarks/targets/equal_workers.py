"""equal-workers (P9, its first half): the paper's distributions of costs, by equal workers.

The four workloads of the paper and one in which 1 % of the samples is 250 times slower. The samples
sleep, on 12 workers, in any order where a loader can; the costs are scaled so that an epoch lasts
some seconds, and keep their distribution. The share of the limit is taken of the costs that were
asked for, as for claimed-alone.

torch's loader starts twelve processes in each of its epochs, so its rows say little about the rest;
they decide no figure and run in one round, unless more are asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.contest import costed, present
from benchmarks.figures import Figure, at_most
from benchmarks.limits import list_schedule, share, sleeping_limit
from benchmarks.measure.rounds import Row, interleave
from benchmarks.peers.minato import MINATO_READY
from benchmarks.peers.nodes import NODES
from benchmarks.peers.spdl_pipeline import SPDL
from benchmarks.peers.torch_loader import TORCH, TORCH_READY
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.paper import WORKLOADS, scaled
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import Epoch
from minato_async.cli.measure.statistics import differences
from minato_async.cli.measure.table import Table

WORKERS = 12
ROUNDS = 3
TORCH_ROUNDS = 1
GOAL = 0.005
THREADS = (NODES, SPDL)
PROCESSES = (TORCH, TORCH_READY)
QUICK_PART = 20
"""An epoch is so many times shorter."""


@dataclass(frozen=True)
class Scale:
    """``mean`` seconds a sample, ``length`` samples an epoch."""

    mean: float
    batch_size: int
    length: int


SCALES = {
    "segmentation": Scale(0.025, 3, 2400),
    "detection": Scale(0.031, 48, 1920),
    "speech-3s": Scale(0.025, 24, 2400),
    "speech-10s": Scale(0.025, 24, 2400),
    "rare": Scale(0.007, 32, 8000),
}


def _measure(name: str, options: Options, report: Report) -> list[Figure]:
    scale = SCALES[name]
    length = scale.length // QUICK_PART if options.quick else scale.length
    costs = scaled(WORKLOADS[name](length), scale.mean)
    limit = sleeping_limit(costs, WORKERS)

    def of_limit(epoch: Epoch) -> float:
        return share(limit, epoch.seconds)

    peers = THREADS if options.quick else (*THREADS, *PROCESSES)
    rows = interleave(
        [
            costed(
                peer,
                lambda guard: Sleeping(costs, guard),
                length=length,
                batch_size=scale.batch_size,
                workers=WORKERS,
                rounds=options.rounds_or(TORCH_ROUNDS) if peer in PROCESSES else None,
            )
            for peer in present((MINATO_READY, *peers), report)
        ],
        options.rounds_or(ROUNDS),
        report,
        name,
    )
    own = rows.get(MINATO_READY.name, Row(MINATO_READY.name))
    ideal = share(limit, list_schedule(costs, WORKERS))
    table = Table(
        f"{name}: {length} samples that sleep {scale.mean * 1000:g} ms on average, batch "
        f"{scale.batch_size}, {WORKERS} workers: {limit:.2f} s at the limit, of which a pool "
        f"without any cost of its own reaches {ideal:.3f}",
        ("loader", "of the limit", "ahead of MinatoLoader", "epoch s"),
    )
    figures = []
    for row in rows.values():
        ahead = differences(row.values(of_limit), own.values(of_limit))
        if row.name in (peer.name for peer in THREADS):
            figures.append(ahead.median)
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(of_limit).text(3),
                "" if row is own else ahead.text(3),
                row.spread(lambda epoch: epoch.seconds).text(2),
            )
        )
    report.table(table)
    return [at_most(name, max(figures, default=math.nan), GOAL)]


def run(options: Options, report: Report) -> None:
    """Measure all distributions, or those asked for."""
    for name in options.parts or SCALES:
        report.figures += _measure(name, options, report)
    report.note("each figure: by how much the best peer on threads is ahead, in the median round")


TARGET = Target(
    "equal-workers",
    "the paper's distributions of costs, 12 workers each, in any order",
    "no peer on threads ahead by more than 0.005 of the limit in any of the five",
    run,
    number="P9",
    parts=tuple(SCALES),
)
