"""views: samples that are views of a large tensor, or refer to it, on worker processes.

torch's worker processes send batches alone. Ours may send samples, too, from the worker that made
one to the worker that collates it, and what is sent must not be all that a sample is a view of, or
refers to. Each kind is loaded once with samples that are ready, of which one worker makes a batch,
and once with samples of 2 ms, which are shared out.
"""

from __future__ import annotations

from typing import Any

from benchmarks.contest import present
from benchmarks.figures import Figure, at_most
from benchmarks.measure.checks import CheckFailed, check_receipt
from benchmarks.measure.rounds import Contender, Row, interleave
from benchmarks.peers.base import Peer, Plan
from benchmarks.peers.minato import MINATO_PROCESSES
from benchmarks.peers.torch_loader import TORCH
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.views import KINDS, ROWS, Kind, Views
from minato_async.cli.measure.epoch import Epoch, Receipt, consume, read_indexed
from minato_async.cli.measure.statistics import paired
from minato_async.cli.measure.table import Table

WORKERS = 2
BATCH_SIZE = 16
ROUNDS = 3
LENGTHS = {0.0: 2_400, 2e-3: 320}
"""Samples in an epoch, by the seconds that each takes."""
QUICK_LENGTH = 48
GOAL = 1.5


def _read(batch: Any, receipt: Receipt) -> None:
    values, indices = batch
    first = values.flatten(1)[:, 0] if values.ndim > 1 else values
    if not (first % ROWS == indices % ROWS).all():
        raise CheckFailed("a batch holds values of other samples")
    read_indexed(batch, receipt)


def _contender(peer: Peer, kind: Kind, length: int, seconds: float) -> Contender:
    def run() -> Epoch:
        plan = Plan(Views(kind, length, seconds), length, BATCH_SIZE, WORKERS, collate=kind.collate)
        epoch = consume(peer.load(plan), _read)
        check_receipt(epoch.receipt, length, ordered=peer.ordered)
        return epoch

    return Contender(peer.name, run)


def _measure(kind: Kind, seconds: float, options: Options, report: Report) -> tuple[Any, ...]:
    length = QUICK_LENGTH if options.quick else LENGTHS[seconds]
    rows = interleave(
        [
            _contender(peer, kind, length, seconds)
            for peer in present((MINATO_PROCESSES, TORCH), report)
        ],
        options.rounds_or(ROUNDS),
        report,
        f"{kind.name}, {seconds * 1000:.0f} ms",
    )
    own, torch = (rows.get(peer.name, Row(peer.name)) for peer in (MINATO_PROCESSES, TORCH))
    ratio = paired(own.values(_seconds), torch.values(_seconds))
    return ratio, own.spread(_seconds), torch.spread(_seconds)


def _seconds(epoch: Epoch) -> float:
    return epoch.seconds


def run(options: Options, report: Report) -> None:
    """Measure each kind, ready and of 2 ms, against torch's worker processes."""
    table = Table(
        f"{WORKERS} worker processes, batch {BATCH_SIZE}, epochs of "
        + " and ".join(f"{n} samples of {s * 1000:.0f} ms" for s, n in LENGTHS.items()),
        ("samples", "ms each", "MinatoLoader s", "torch s", "of torch's time"),
    )
    figures: list[Figure] = []
    for kind in KINDS:
        worst = 0.0
        for seconds in LENGTHS:
            ratio, own, torch = _measure(kind, seconds, options, report)
            each = f"{seconds * 1000:.0f}"
            table.rows.append((kind.name, each, own.text(3), torch.text(3), ratio.text(2)))
            # Not `max`, which may drop what is not a number.
            worst = worst if worst > ratio.median or worst != worst else ratio.median
        figures.append(at_most(kind.name, worst, GOAL))
    report.table(table)
    report.figures += figures


TARGET = Target(
    "views",
    "samples that are views of something large, on worker processes",
    "at most 1.5 x the time of DataLoader, ready and of 2 ms",
    run,
)
