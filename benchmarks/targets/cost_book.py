"""cost-book (P3): what remembered costs are worth, where 1 % of the samples is 250 times slower.

3,000 samples of 2 ms and 500 ms that sleep, batch 32, 12 workers on threads, 8 where they are
processes: what the second epoch of a loader reaches of the limit, in order, with torch's prefetch
window and with one of 128 samples, and in any order. And what books do that are not so good: costs
known to a factor of two only and one in ten unknown, and a book that is wrong, its costs in another
order. The latter is compared with having none.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contest import costed
from benchmarks.figures import Figure, at_least
from benchmarks.limits import list_schedule, share, sleeping_limit
from benchmarks.measure.rounds import Rows, interleave
from benchmarks.peers.base import Home, Peer, Plan
from benchmarks.peers.minato import load
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.costs import SEED, rare_slow
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import Epoch
from minato_async.cli.measure.statistics import paired
from minato_async.cli.measure.table import Table
from minato_async.lifecycle.gil_watch import gil_is_on
from minato_async.scheduling.cost_book import CostBook, CostFile

WORKERS, PROCESSES = 12, 8
BATCH_SIZE = 32
LENGTH, QUICK_LENGTH = 3000, 200
WINDOW = 128
ROUNDS = 3
WRONG_ROUNDS = 5

Costs = Sequence[float]


def second_epoch(name: str, home: Home, in_order: bool, **options: Any) -> Peer:
    """A loader that has loaded one epoch already, and knows what it cost."""
    options |= {"executor": "process" if home == "processes" else "thread", "in_order": in_order}

    def loader(plan: Plan) -> Iterable[Any]:
        made = load(plan, **options)
        for _ in made:
            pass
        return made

    return Peer(name, home, in_order, loader)


def with_book(name: str, costs: Costs | None, folder: str, **options: Any) -> Peer:
    """A loader that finds a book of these `costs` in a file; None: it has no book."""

    def loader(plan: Plan) -> Iterable[Any]:
        path = None if costs is None else Path(folder, f"{name}.npz")
        if path is not None and costs is not None:
            path.unlink(missing_ok=True)
            write(path, costs, type(plan.dataset).__qualname__)
        return load(plan, in_order=True, costs=path, **options)

    return Peer(name, "threads", True, loader)


def write(path: os.PathLike[str], costs: Costs, dataset: str) -> None:
    """Write a book that knows these `costs`; 0 is unknown."""
    book = CostBook(len(costs))
    known = [cost for cost in costs if cost]
    contents = {"costs": np.array(costs, np.float32), "totals": (sum(known), len(known))}
    book.restore(contents)
    CostFile(path, book, dataset).save()


def blurred(costs: Costs) -> list[float]:
    """Known to a factor of two, and one in ten not at all."""
    drawn = random.Random(SEED)
    return [
        0.0 if drawn.random() < 0.1 else cost * 2.0 ** drawn.uniform(-1.0, 1.0) for cost in costs
    ]


def permuted(costs: Costs) -> list[float]:
    """Wrong: each is that of some other sample."""
    wrong = list(costs)
    random.Random(SEED + 1).shuffle(wrong)
    return wrong


def _of_limit(workers: int) -> Callable[[Epoch], float]:
    return lambda epoch: share(sleeping_limit(epoch.receipt.costs, workers), epoch.seconds)


def _measure(
    peers: Sequence[Peer], costs: Costs, workers: int, rounds: int, report: Report, what: str
) -> Rows:
    rows = interleave(
        [
            costed(
                peer,
                lambda guard: Sleeping(costs, guard),
                length=len(costs),
                batch_size=BATCH_SIZE,
                workers=workers,
            )
            for peer in peers
        ],
        rounds,
        report,
        what,
    )
    limit = sleeping_limit(costs, workers)
    best = share(limit, list_schedule(sorted(costs, reverse=True), workers))
    table = Table(
        f"{what}: {len(costs)} samples that sleep, 1 % 500 ms, else 2 ms, batch {BATCH_SIZE}, "
        f"{workers} workers: {limit:.2f} s at the nominal limit, {best:.3f} of it for an ideal "
        "pool that begins with the slow ones",
        ("loader", "of the limit, measured costs", "first batch ms", "epoch s"),
    )
    for row in rows.values():
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(_of_limit(workers)).text(3),
                row.spread(lambda epoch: epoch.first).text(0, 1000),
                row.spread(lambda epoch: epoch.seconds).text(2),
            )
        )
    report.table(table)
    return rows


def _threads(costs: Costs, folder: str, options: Options, report: Report) -> list[Figure]:
    known = {
        "in-order": second_epoch("in order", "threads", True),
        "window-128": second_epoch("in order, 128", "threads", True, max_queue_size=WINDOW),
        "any-order": second_epoch("any order", "threads", False),
    }
    roughly = {
        "blurred": with_book("blurred", blurred(costs), folder),
        "blurred-128": with_book("blurred, 128", blurred(costs), folder, max_queue_size=WINDOW),
    }
    peers = [*known.values(), *roughly.values()]
    rounds = options.rounds_or(ROUNDS)
    rows = _measure(peers, costs, WORKERS, rounds, report, "cost book")
    figures = []
    # With so small a window what is unknown holds up others, whatever is known: no goal is set.
    for goal, some in ((0.97, known), (0.90, {"blurred": roughly["blurred"]})):
        for label, peer in some.items():
            reached = rows[peer.name].spread(_of_limit(WORKERS)).median
            figures.append(at_least(label, reached, goal))
    return figures


def _wrong(costs: Costs, folder: str, options: Options, report: Report) -> list[Figure]:
    figures = []
    for label, window in (("permuted", None), ("permuted-128", WINDOW)):
        none = with_book("no book", None, folder, max_queue_size=window)
        wrong = with_book("permuted book", permuted(costs), folder, max_queue_size=window)
        rounds = options.rounds_or(WRONG_ROUNDS)
        rows = _measure((none, wrong), costs, WORKERS, rounds, report, label)
        of_limit = _of_limit(WORKERS)
        ratio = paired(rows[wrong.name].values(of_limit), rows[none.name].values(of_limit))
        report.note(f"{label}: {ratio.text(3)} of having none")
        figures.append(at_least(label, ratio.median, 0.98))
    return figures


def _processes(costs: Costs, folder: str, options: Options, report: Report) -> list[Figure]:
    peer = second_epoch("processes in order", "processes", True)
    kept = second_epoch("persistent", "processes", True, persistent_workers=True)
    rows = _measure((peer, kept), costs, PROCESSES, options.rounds_or(ROUNDS), report, "processes")
    reached = rows[peer.name].spread(_of_limit(PROCESSES)).median
    return [at_least("processes", reached, 0.95)]


_PARTS = {"threads": _threads, "wrong": _wrong, "processes": _processes}


def run(options: Options, report: Report) -> None:
    """Measure the parts asked for; without any, those that are for this interpreter."""
    costs = rare_slow(QUICK_LENGTH if options.quick else LENGTH)
    parts = options.parts or (("processes",) if gil_is_on() else ("threads", "wrong"))
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            report.figures += _PARTS[part](costs, folder, options, report)


TARGET = Target(
    "cost-book",
    "strict order with a cost book, 1 % of the samples 250 x slower",
    ">= 0.97 of the limit in order and not, 0.90 known roughly, 0.95 on processes; wrong: no loss",
    run,
    number="P3",
    parts=tuple(_PARTS),
)
