"""trivial (P1): samples that cost nothing, so that only the loader's own cost is left.

Two workloads, each without and with shuffling; the figure is the worse of the two. All loaders
start and end their workers in every epoch (``persistent_workers`` off), and the epoch's rate
includes that; the steady rate is shown beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.contest import present
from benchmarks.figures import at_least
from benchmarks.measure.checks import check_receipt
from benchmarks.measure.rounds import Contender, Row, Rows, interleave
from benchmarks.peers.base import Peer, Plan
from benchmarks.peers.minato import MINATO
from benchmarks.peers.torch_loader import TORCH, TORCH_CALLER
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.guard import ConcurrencyGuard
from benchmarks.workloads.ready import CheckedTensors, ReadyTensors
from minato_async.cli.measure.epoch import Epoch, consume, count_tensor, read_indexed
from minato_async.cli.measure.statistics import paired
from minato_async.cli.measure.table import Table

WORKERS = 2
ROUNDS = 5
PEERS = (MINATO, TORCH_CALLER, TORCH)


@dataclass(frozen=True)
class Work:
    """One kind of ready sample; ``length`` gives the fastest loader more than a second."""

    name: str
    shape: tuple[int, ...]
    batch_size: int
    length: int
    quick_length: int
    pool: int


TRIVIAL = Work("trivial", (3, 32, 32), 128, 512_000, 6_400, 1024)
IMAGES = Work("images", (3, 224, 224), 32, 6_400, 128, 64)


def _check(peer: Peer, work: Work, tensors: ReadyTensors, shuffle: bool) -> None:
    """One short epoch, not timed, whose samples carry index and guard (in the timed ones that
    would cost more than the samples)."""
    guard = ConcurrencyGuard(processes=peer.home == "processes")
    length = work.batch_size * 16 + 1
    dataset = CheckedTensors(tensors, length, guard)
    plan = Plan(dataset, length, work.batch_size, WORKERS, shuffle)
    epoch = consume(peer.load(plan), read_indexed)
    check_receipt(epoch.receipt, length, ordered=peer.ordered and not shuffle)
    guard.check(WORKERS)


def _contender(peer: Peer, work: Work, tensors: ReadyTensors, shuffle: bool) -> Contender:
    checked = False

    def run() -> Epoch:
        nonlocal checked
        if not checked:
            _check(peer, work, tensors, shuffle)
            checked = True
        plan = Plan(tensors, tensors.length, work.batch_size, WORKERS, shuffle)
        epoch = consume(peer.load(plan), count_tensor)
        check_receipt(epoch.receipt, tensors.length)
        return epoch

    return Contender(peer.name, run)


def _rate(epoch: Epoch) -> float:
    return epoch.rate


def _steady(epoch: Epoch) -> float:
    return epoch.steady_rate


def _table(title: str, rows: Iterable[Row], own: Row) -> Table:
    table = Table(
        title,
        (
            "loader",
            "samples/s, whole epoch",
            "MinatoLoader is",
            "steady samples/s",
            "steady: is",
            "first batch ms",
            "CPU µs a sample",
        ),
    )
    for row in rows:
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(_rate).text(0),
                paired(own.values(_rate), row.values(_rate)).text(2),
                row.spread(_steady).text(0),
                paired(own.values(_steady), row.values(_steady)).text(2),
                row.spread(lambda epoch: epoch.first).text(1, 1000),
                row.spread(lambda epoch: epoch.cpu / epoch.receipt.samples).text(1, 1e6),
            )
        )
    return table


def _measure(work: Work, shuffle: bool, options: Options, report: Report) -> Rows:
    length = work.quick_length if options.quick else work.length
    tensors = ReadyTensors(work.shape, length, work.pool)
    contenders = [_contender(peer, work, tensors, shuffle) for peer in present(PEERS, report)]
    label = f"{work.name}, shuffle={shuffle}"
    rows = interleave(contenders, options.rounds_or(ROUNDS), report, label)
    shape = "×".join(map(str, work.shape))
    report.table(
        _table(
            f"{label}: {length} ready {shape} float samples, batch {work.batch_size}, "
            f"{WORKERS} workers, not persistent",
            rows.values(),
            rows.get(MINATO.name, Row(MINATO.name)),
        )
    )
    return rows


def _worst(all_rows: Iterable[Rows], base: Peer) -> float:
    """The smallest of the median ratios of the loader to ``base``, whole epochs."""
    ratios: list[float] = []
    for rows in all_rows:
        own, other = rows.get(MINATO.name), rows.get(base.name)
        if own is None or other is None:
            return float("nan")
        ratios.append(paired(own.values(_rate), other.values(_rate)).median)
    return min(ratios, key=lambda ratio: (ratio == ratio, ratio))  # nan first


def run(options: Options, report: Report) -> None:
    """Measure both workloads, each without and with shuffling."""
    trivial = [_measure(TRIVIAL, shuffle, options, report) for shuffle in (False, True)]
    images = [_measure(IMAGES, shuffle, options, report) for shuffle in (False, True)]
    report.note("each figure is the worse of shuffle=False and shuffle=True, median of the rounds")
    report.figures += [
        at_least("num_workers=0", _worst(trivial, TORCH_CALLER), 1.0),
        at_least("num_workers=2", _worst(trivial, TORCH), 6.0),
        at_least("images", _worst(images, TORCH), 4.0),
    ]


TARGET = Target(
    "trivial",
    "samples that are ready: what is left is the loader's own cost",
    ">= 1.0 x DataLoader(num_workers=0) and >= 6 x DataLoader(num_workers=2), images >= 4 x"
    " it; 2 workers",
    run,
    number="P1",
)
