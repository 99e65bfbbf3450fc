"""claimed-alone (P12): what the engine costs a sample that a worker claims by itself.

Samples that are ready are claimed many at a time, and what a claim costs is shared among them.
Samples of a few milliseconds are claimed singly, and each pays for its own claim: as CPU time, and
as time in which a worker does not yet run the next one. Two distributions of the paper's, scaled to
3.1 ms in batches of 48 and 4.7 ms in batches of 3, sleep on 12 threads and two cores, in any order,
against a pool of the standard library that is nothing but threads and a queue.

The share of the limit is taken of the costs that were asked for, not of those that the samples
measured: a worker that wakes late because the loader holds the cores is late by the loader's fault.
CPU time is that of the whole process, consumer and collation included, which all of them have.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contest import costed, present
from benchmarks.figures import Figure, at_most
from benchmarks.limits import share, sleeping_limit
from benchmarks.measure.rounds import Row, interleave
from benchmarks.peers.executor_pool import EXECUTOR_POOL
from benchmarks.peers.minato import MINATO_READY
from benchmarks.peers.nodes import NODES
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.neighbours import on_cores
from benchmarks.workloads.paper import WORKLOADS, scaled
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import Epoch
from minato_async.cli.measure.statistics import differences
from minato_async.cli.measure.table import Table

CORES = 2
WORKERS = 12
ROUNDS = 9
GOAL_SHARE = 0.01
GOAL_US = 40.0
PEERS = (EXECUTOR_POOL, NODES, MINATO_READY)


@dataclass(frozen=True)
class Work:
    """Samples of a distribution of :mod:`benchmarks.workloads.paper`, ``mean`` seconds each."""

    distribution: str
    mean: float
    batch_size: int
    length: int

    def costs(self, length: int) -> list[float]:
        return scaled(WORKLOADS[self.distribution](length), self.mean)


WORKS = {
    "3.1ms": Work("detection", 0.0031, 48, 4800),
    "4.7ms": Work("segmentation", 0.0047, 3, 3000),
}
QUICK_PART = 20
"""An epoch is so many times shorter."""


def _cpu(epoch: Epoch) -> float:
    """Microseconds a sample."""
    return epoch.cpu / epoch.receipt.samples * 1e6


def _measure(name: str, options: Options, report: Report) -> list[Figure]:
    work = WORKS[name]
    length = work.length // QUICK_PART if options.quick else work.length
    costs = work.costs(length)
    limit = sleeping_limit(costs, WORKERS)

    def of_limit(epoch: Epoch) -> float:
        return share(limit, epoch.seconds)

    with on_cores(CORES) as cores:
        rows = interleave(
            [
                costed(
                    peer,
                    lambda guard: Sleeping(costs, guard),
                    length=length,
                    batch_size=work.batch_size,
                    workers=WORKERS,
                )
                for peer in present(PEERS, report)
            ],
            options.rounds_or(ROUNDS),
            report,
            name,
        )
    pool = rows[EXECUTOR_POOL.name]
    table = Table(
        f"{name}: {length} samples that sleep, like {work.distribution}, batch {work.batch_size}, "
        f"{WORKERS} workers, {cores} cores: {limit:.2f} s at the limit",
        ("loader", "of the limit", "below the pool", "CPU µs a sample", "above the pool"),
    )
    for row in rows.values():
        below = differences(pool.values(of_limit), row.values(of_limit))
        above = differences(row.values(_cpu), pool.values(_cpu))
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(of_limit).text(3),
                "" if row is pool else below.text(3),
                row.spread(_cpu).text(0),
                "" if row is pool else above.text(0),
            )
        )
    report.table(table)
    own = rows.get(MINATO_READY.name, Row(MINATO_READY.name))
    below = differences(pool.values(of_limit), own.values(of_limit))
    above = differences(own.values(_cpu), pool.values(_cpu))
    return [
        at_most(f"{name}-below", below.median, GOAL_SHARE),
        at_most(f"{name}-cpu_us", above.median, GOAL_US),
    ]


def run(options: Options, report: Report) -> None:
    """Measure both distributions, or those asked for."""
    for name in options.parts or WORKS:
        report.figures += _measure(name, options, report)
    report.note("each figure is the median of the differences within a round")


TARGET = Target(
    "claimed-alone",
    "what the engine costs a sample of a few milliseconds, claimed by itself",
    "within 0.01 of a bare thread pool's share of the limit, at most 40 us of CPU a sample more; "
    "12 threads, any order",
    run,
    number="P12",
    parts=tuple(WORKS),
)
