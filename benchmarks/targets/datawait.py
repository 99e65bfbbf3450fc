"""datawait: how long the consumer waits where the loader is fast enough on average.

The consumer takes 10 ms for a batch and the loader is 1.2 times faster, by equal workers; the tails
are those of the paper's workloads, and 1 % of the samples 250 times slower, all scaled to that
mean. Any order, and nothing is known of a sample before it runs (no cost book). Counted is the
share of time spent in ``next()`` after the first batch, up to the last batches that the window
holds: a slow sample that is drawn there is waited for by any loader, and how long is chance. The
whole epoch is shown beside it, and so is our loader with a number of workers of its own choice.

How far a loader is ahead decides what it makes of the longest tail. With buffers of torch's size
torchdata.nodes is 144 samples ahead here, counted while nothing is taken, SPDL 194, torch and ours
128. So the figures are those of our loader with 144; its row with torch's window stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.contest import costed, present
from benchmarks.figures import Figure, at_most
from benchmarks.measure.rounds import interleave
from benchmarks.peers.base import PREFETCH_FACTOR, Peer, Plan
from benchmarks.peers.minato import MAX_WORKERS, MINATO_ADAPTS, MINATO_READY, load
from benchmarks.peers.nodes import NODES
from benchmarks.peers.spdl_pipeline import SPDL
from benchmarks.peers.torch_loader import TORCH, TORCH_READY
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.paper import WORKLOADS, scaled
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import Epoch
from minato_async.cli.measure.table import Table

WORKERS = 8
BATCH_SIZE = 8
STEP = 0.010
FASTER = 1.2
BATCHES, QUICK_BATCHES = 220, 24
AHEAD = PREFETCH_FACTOR * WORKERS * BATCH_SIZE + 2 * WORKERS
"""Samples that torchdata.nodes is ahead: twice the workers stand before its buffer."""
END = AHEAD // BATCH_SIZE
"""Batches in the window: what is in it when nothing is left to draw."""
ROUNDS = 2


def _as_far_ahead(plan: Plan) -> Iterable[Any]:
    return load(plan, in_order=False, max_queue_size=AHEAD)


MINATO_AHEAD = Peer(f"MinatoLoader {AHEAD} ahead", "threads", False, _as_far_ahead)
"""``in_order=False``, with as many samples ahead as torchdata.nodes."""

PEERS = (MINATO_AHEAD, MINATO_READY, TORCH, TORCH_READY, SPDL, NODES)
QUICK_PEERS = (MINATO_AHEAD, NODES)
NOTHING = 0.01
"""A share that no one would notice: less is not better than that."""


def _wait(epoch: Epoch) -> float:
    return epoch.wait_share(len(epoch.arrivals) - END)


def _measure(name: str, options: Options, report: Report) -> Figure:
    length = BATCH_SIZE * (QUICK_BATCHES if options.quick else BATCHES)
    # What a sample may cost, if the workers are to make a batch in the time of a step and 1.2
    # batches in 1.2 of it.
    mean = STEP / FASTER * WORKERS / BATCH_SIZE
    costs = scaled(WORKLOADS[name](length), mean)
    rows = interleave(
        [
            costed(
                peer,
                lambda guard: Sleeping(costs, guard),
                length=length,
                batch_size=BATCH_SIZE,
                workers=WORKERS,
                step=STEP,
            )
            for peer in present(QUICK_PEERS if options.quick else PEERS, report)
        ]
        + [
            costed(
                MINATO_ADAPTS,
                lambda guard: Sleeping(costs, guard),
                length=length,
                batch_size=BATCH_SIZE,
                workers=WORKERS,
                at_once=MAX_WORKERS,
                step=STEP,
            )
        ],
        options.rounds_or(ROUNDS),
        report,
        name,
    )
    table = Table(
        f"{name}: {length} samples of {mean * 1000:.1f} ms on average, up to "
        f"{max(costs) * 1000:.0f} ms, batch {BATCH_SIZE}, {WORKERS} workers, a step of "
        f"{STEP * 1000:.0f} ms",
        ("loader", "data wait %", "with the end %", "first batch ms", "epoch s"),
    )
    for row in rows.values():
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(_wait).text(1, 100),
                row.spread(lambda epoch: epoch.wait_share()).text(1, 100),
                row.spread(lambda epoch: epoch.first).text(0, 1000),
                row.spread(lambda epoch: epoch.seconds).text(2),
            )
        )
    report.table(table)
    waits = {
        row.name: max(NOTHING, row.spread(_wait).median) for row in rows.values() if not row.error
    }
    own = waits.pop(MINATO_AHEAD.name, float("nan"))
    for other in (MINATO_READY, MINATO_ADAPTS):
        waits.pop(other.name, None)
    return at_most(name, own / min(waits.values()), 1.0)


def run(options: Options, report: Report) -> None:
    """Measure the workloads, or those asked for, one after the other."""
    report.figures += [_measure(name, options, report) for name in options.parts or WORKLOADS]


TARGET = Target(
    "datawait",
    "data wait of a consumer with a 10 ms step, the loader 1.2 x faster",
    "no more than that of every peer (1 % counts as none), in any order, no cost book",
    run,
    parts=tuple(WORKLOADS),
)
