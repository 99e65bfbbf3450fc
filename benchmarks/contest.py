"""Puts a peer and a workload together into a contender that builds, consumes and checks an epoch.

Building is left out of the times: they start at ``iter()``, where every peer starts its workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.utils.data import Dataset

from benchmarks.measure.checks import check_receipt
from benchmarks.measure.rounds import Contender
from benchmarks.peers.base import Peer, Plan
from benchmarks.report import Report
from benchmarks.workloads.guard import ConcurrencyGuard
from minato_async.cli.measure.epoch import Epoch, consume, read_costed

MakeDataset = Callable[[ConcurrencyGuard], Dataset[Any]]
"""Builds a dataset of (tensor, index, cost) samples that enters the guard for each."""


def present(peers: Iterable[Peer], report: Report) -> list[Peer]:
    """The peers that can run here; the others are noted by name."""
    found: list[Peer] = []
    for peer in peers:
        missing = peer.missing()
        if missing is None:
            found.append(peer)
        else:
            report.note(f"{peer.name} left out: cannot import {missing}")
    return found


def costed(
    peer: Peer,
    make_dataset: MakeDataset,
    *,
    length: int,
    batch_size: int,
    workers: int,
    at_once: int | None = None,
    batches: int | None = None,
    step: float = 0.0,
    rounds: int | None = None,
) -> Contender:
    """A contender whose samples tell index and cost, so that each run is checked in full.

    Checked: exactly once, in order where the peer promises it, never more than ``workers`` samples
    at once, or ``at_once`` where the loader chooses their number. ``step``: seconds that the
    consumer takes for a batch. ``batches`` cuts the epoch short; then only the number of samples at
    once is checked, and the order. ``rounds``: as in
    :class:`~benchmarks.measure.rounds.Contender`.
    """

    def run() -> Epoch:
        guard = ConcurrencyGuard(processes=peer.home == "processes")
        plan = Plan(make_dataset(guard), length, batch_size, workers)
        epoch = consume(peer.load(plan), read_costed, batches=batches, step=step)
        due = length if batches is None else min(length, batches * batch_size)
        if batches is None or peer.ordered:
            check_receipt(epoch.receipt, due, ordered=peer.ordered)
        guard.check(workers if at_once is None else at_once)
        return epoch

    return Contender(peer.name, run, rounds)
