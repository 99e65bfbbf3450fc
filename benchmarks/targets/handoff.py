"""handoff: opaque samples that are stuck for two seconds, one in every hundred.

The others wait 5 ms; 4 workers, any order. No step of a stuck sample ends and none has a
checkpoint, so only a replacement for its worker keeps the rate: at eight stuck samples a second
there are always some sixteen of them. The loader's own number of workers is held at four here, so
that what is measured is the hand-off and not a growing pool; threads there may be 32.

Counted are the first 95 % of the samples that each loader delivers. After that more and more of
those that are left are stuck ones, and the gaps between batches are theirs, whoever loads.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.contest import present
from benchmarks.figures import at_least, at_most
from benchmarks.measure.checks import CheckFailed, check_receipt
from benchmarks.measure.pauses import PauseWatch
from benchmarks.measure.rounds import Contender, Row, interleave
from benchmarks.peers.base import Peer, Plan
from benchmarks.peers.minato import load
from benchmarks.peers.nodes import NODES
from benchmarks.peers.spdl_pipeline import SPDL
from benchmarks.peers.torch_loader import TORCH_READY
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.guard import ConcurrencyGuard
from benchmarks.workloads.sleeping import Sleeping
from benchmarks.workloads.stuck import one_in
from minato_async.cli.measure.epoch import Epoch, consume, read_costed
from minato_async.cli.measure.statistics import paired
from minato_async.cli.measure.table import Table

WORKERS, MOST = 4, 32
BATCH_SIZE = 32
FAST, STUCK, EVERY = 0.005, 2.0, 100
COUNTED = 0.95
LENGTH, PEER_LENGTH = 4000, 1000
"""The peers are as many times slower: they get fewer samples of the same mix."""
QUICK_LENGTH = 200
ROUNDS = 3
TRIES = 4


class _Hold:
    """A worker scheduler that keeps the number of workers, and leaves room for replacements."""

    interval = 1.0

    def start(self) -> int:
        return WORKERS

    def decide(self, reading: Any) -> int:
        return WORKERS


def _load(plan: Plan, **options: Any) -> Iterable[Any]:
    return load(plan, in_order=False, **options)


HANDS_OFF = Peer(
    "MinatoLoader", "threads", False, lambda plan: _load(plan, scheduler=_Hold(), max_workers=MOST)
)
FIXED = Peer("MinatoLoader fixed", "threads", False, lambda plan: _load(plan, scheduler="fixed"))
ADAPTS = Peer(
    "MinatoLoader throughput",
    "threads",
    False,
    lambda plan: _load(plan, scheduler="throughput", max_workers=MOST),
)
PEERS = (FIXED, ADAPTS, TORCH_READY, SPDL, NODES)


def _contender(peer: Peer, name: str, length: int, slow: float, bound: int) -> Contender:
    """``bound``: samples that may run at once, counted by the dataset itself."""

    def run() -> Epoch:
        for _ in range(TRIES):
            guard = ConcurrencyGuard(processes=peer.home == "processes")
            dataset = Sleeping(one_in(EVERY, length, FAST, slow), guard)
            with PauseWatch() as watch:
                epoch = consume(peer.load(Plan(dataset, length, BATCH_SIZE, WORKERS)), read_costed)
            check_receipt(epoch.receipt, length)
            if guard.peak > bound:
                raise CheckFailed(f"{guard.peak} samples ran at once, {bound} may")
            if not watch.paused:
                break
        return epoch

    return Contender(name, run)


def _counted(epoch: Epoch) -> int:
    """Batches until so many samples are delivered that the end begins."""
    return bisect.bisect_right(epoch.counts, COUNTED * epoch.receipt.samples)


def _fast_rate(epoch: Epoch) -> float:
    """Samples a second that were not stuck, from the first batch on."""
    batches = _counted(epoch)
    costs = epoch.receipt.costs[epoch.counts[0] : epoch.counts[batches - 1]]
    fast = sum(cost < STUCK / 2 for cost in costs)
    return fast / (epoch.arrivals[batches - 1] - epoch.arrivals[0])


def _gaps(epoch: Epoch) -> list[float]:
    return [b - a for a, b in itertools.pairwise(epoch.arrivals[: _counted(epoch)])]


def _worst_gap(epoch: Epoch) -> float:
    """The longest gap between two batches, in median gaps."""
    gaps = _gaps(epoch)
    return max(gaps) / statistics.median(gaps)


def run(options: Options, report: Report) -> None:
    """Measure with and without stuck samples, interleaved, then the others in turn."""
    length, peer_length = (QUICK_LENGTH,) * 2 if options.quick else (LENGTH, PEER_LENGTH)
    without = "MinatoLoader, none stuck"
    rows = interleave(
        [
            _contender(HANDS_OFF, without, length, FAST, MOST),
            _contender(HANDS_OFF, HANDS_OFF.name, length, STUCK, MOST),
        ],
        options.rounds_or(ROUNDS),
        report,
        "one in a hundred is stuck",
    )
    peers = (FIXED,) if options.quick else PEERS
    rows |= interleave(
        [
            _contender(peer, peer.name, peer_length, STUCK, MOST if peer is ADAPTS else WORKERS)
            for peer in present(peers, report)
        ],
        1,
        report,
        "the others",
    )
    base, own = rows[without], rows.get(HANDS_OFF.name, Row(HANDS_OFF.name))
    table = Table(
        f"{FAST * 1000:.0f} ms, one in {EVERY} {STUCK:.0f} s, batch {BATCH_SIZE}, {WORKERS} "
        f"workers; the first {COUNTED:.0%} of {length} samples ({peer_length} for the lower rows)",
        ("loader", "fast samples/s", "of those without", "median gap ms", "worst gap, medians"),
    )
    for row in rows.values():
        rate = row.spread(_fast_rate)
        table.rows.append(
            (
                row.name,
                "failed" if row.error else rate.text(0),
                f"{rate.median / base.spread(_fast_rate).median:.3f}",
                row.spread(lambda epoch: statistics.median(_gaps(epoch))).text(1, 1000),
                row.spread(_worst_gap).text(1),
            )
        )
    report.table(table)
    kept = paired(own.values(_fast_rate), base.values(_fast_rate)).median
    report.figures += [
        at_least("rate", kept, 0.9),
        at_most("gap", own.spread(_worst_gap).median, 3.0),
        # It ran to the end only if the dataset never counted more steps than workers at once.
        at_least("fixed-bound", float(rows[FIXED.name].error is None), 1.0),
    ]


TARGET = Target(
    "handoff",
    "one opaque sample in 100 is stuck for 2 s, 4 workers, 32 threads",
    'the others keep >= 0.9 of their rate, no gap > 3 x the median; "fixed" keeps to 4 '
    "running steps",
    run,
)
