"""in-order (P3order): no cost book, where 1 % of the samples is 250 times slower.

3,000 samples of 2 ms and 500 ms that sleep, batch 32, 12 workers, torch's prefetch window. A slow
sample holds up its batch, in order; how much is lost depends on what the workers do meanwhile.
"""

from __future__ import annotations

from benchmarks.contest import costed, present
from benchmarks.figures import at_least
from benchmarks.limits import list_schedule, share, sleeping_limit
from benchmarks.measure.rounds import Row, interleave
from benchmarks.peers.minato import MINATO_STRICT
from benchmarks.peers.nodes import NODES, NODES_IN_ORDER
from benchmarks.peers.spdl_pipeline import SPDL, SPDL_INPUT
from benchmarks.peers.torch_loader import TORCH, TORCH_READY
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.costs import rare_slow
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import Epoch
from minato_async.cli.measure.statistics import paired
from minato_async.cli.measure.table import Table

WORKERS = 12
BATCH_SIZE = 32
LENGTH = 3000
QUICK_LENGTH = 130
ROUNDS = 3
PEERS = (MINATO_STRICT, TORCH, TORCH_READY, SPDL_INPUT, SPDL, NODES_IN_ORDER, NODES)
QUICK_PEERS = (MINATO_STRICT, TORCH)


def _rate(epoch: Epoch) -> float:
    return epoch.rate


def _of_limit(epoch: Epoch) -> float:
    return share(sleeping_limit(epoch.receipt.costs, WORKERS), epoch.seconds)


def _after_first(epoch: Epoch) -> float:
    """Samples a second from the first batch to the last: without starting the workers."""
    elapsed = epoch.arrivals[-1] - epoch.arrivals[0]
    return (epoch.counts[-1] - epoch.counts[0]) / elapsed


def run(options: Options, report: Report) -> None:
    """Measure all peers, in order and not; the figure compares the two strict ones."""
    length = QUICK_LENGTH if options.quick else LENGTH
    costs = rare_slow(length)
    rows = interleave(
        [
            costed(
                peer,
                lambda guard: Sleeping(costs, guard),
                length=length,
                batch_size=BATCH_SIZE,
                workers=WORKERS,
            )
            for peer in present(QUICK_PEERS if options.quick else PEERS, report)
        ],
        options.rounds_or(ROUNDS),
        report,
        "1 % slow",
    )
    limit = sleeping_limit(costs, WORKERS)
    base = rows[TORCH.name]
    ideal = share(limit, list_schedule(costs, WORKERS))
    table = Table(
        f"sleeping, 1 % 500 ms, else 2 ms, {length} samples, batch {BATCH_SIZE}, {WORKERS} "
        f"workers: {limit:.2f} s at the nominal limit, {ideal:.3f} of it for an ideal pool",
        (
            "loader",
            "samples/s",
            "of the limit, measured costs",
            "of torch in order",
            "first batch ms",
            "after it: of torch in order",
            "epoch s",
        ),
    )
    for row in rows.values():
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(_rate).text(1),
                row.spread(_of_limit).text(3),
                paired(row.values(_rate), base.values(_rate)).text(2),
                row.spread(lambda epoch: epoch.first).text(0, 1000),
                paired(row.values(_after_first), base.values(_after_first)).text(2),
                row.spread(lambda epoch: epoch.seconds).text(2),
            )
        )
    report.table(table)
    own = rows.get(MINATO_STRICT.name, Row(MINATO_STRICT.name))
    ratio = paired(own.values(_rate), base.values(_rate)).median
    report.figures.append(at_least("of-torch", ratio, 1.3))


TARGET = Target(
    "in-order",
    "strict order without a cost book, 1 % of the samples 250 x slower",
    ">= 1.3 x torch in order, 12 workers",
    run,
    number="P3order",
)
