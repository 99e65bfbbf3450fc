"""neighbours (P11): beside other programs.

Photos are decoded by two workers on two cores, while 0, 2 and 4 other processes do nothing but
compute on the same cores. Whatever a loader does between two samples that gives its core away costs
a time slice there. In order, on what ``executor="auto"`` chooses: threads where Python is
free-threaded, processes where it has the GIL. The pool's threads are threads everywhere.

Every round runs all loaders one after the other, the first one in turn; figures are medians of the
ratios within a round. What else runs on the machine is one more neighbour: on one that is shared,
the figures of a single run are rough.
"""

from __future__ import annotations

import sysconfig

from benchmarks.contest import costed, present
from benchmarks.figures import Figure, at_least
from benchmarks.measure.rounds import interleave
from benchmarks.peers.bare_pool import BARE_POOL
from benchmarks.peers.base import Peer
from benchmarks.peers.minato import MINATO_PROCESSES, MINATO_STRICT
from benchmarks.peers.torch_loader import TORCH
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.neighbours import busy_neighbours, on_cores
from benchmarks.workloads.photos import Photos, encode
from minato_async.cli.measure.epoch import Epoch
from minato_async.cli.measure.statistics import paired
from minato_async.cli.measure.table import Table

CORES = 2
WORKERS = 2
BATCH_SIZE = 16
LENGTH = 1280
QUICK_LENGTH = 64
ROUNDS = 5
NEIGHBOURS = (0, 2, 4)
GOAL_TORCH = 1.0
GOAL_POOL = 0.9
PARTS = {f"beside{count}": count for count in NEIGHBOURS}


def _own() -> Peer:
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return MINATO_STRICT if free_threaded else MINATO_PROCESSES


def _rate(epoch: Epoch) -> float:
    return epoch.rate


def _measure(neighbours: int, options: Options, report: Report) -> list[Figure]:
    own, photos = _own(), encode()
    length = QUICK_LENGTH if options.quick else LENGTH
    with on_cores(CORES) as cores, busy_neighbours(neighbours):
        rows = interleave(
            [
                costed(
                    peer,
                    lambda guard: Photos(photos, length, guard),
                    length=length,
                    batch_size=BATCH_SIZE,
                    workers=WORKERS,
                )
                for peer in present((own, TORCH, BARE_POOL), report)
            ],
            options.rounds_or(ROUNDS),
            report,
            f"beside {neighbours}",
        )
    table = Table(
        f"{length} photos in batches of {BATCH_SIZE}, {WORKERS} workers on {cores} cores, beside "
        f"{neighbours} busy processes",
        ("loader", "samples/s", f"{own.name}, of it", "epoch s"),
    )
    ours = rows[own.name]
    against = {name: paired(ours.values(_rate), row.values(_rate)) for name, row in rows.items()}
    for row in rows.values():
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(_rate).text(1),
                "" if row is ours else against[row.name].text(3),
                row.spread(lambda epoch: epoch.seconds).text(2),
            )
        )
    report.table(table)
    return [
        at_least(f"torch/{neighbours}", against[TORCH.name].median, GOAL_TORCH),
        at_least(f"pool/{neighbours}", against[BARE_POOL.name].median, GOAL_POOL),
    ]


def run(options: Options, report: Report) -> None:
    """Measure beside each number of neighbours, or beside those asked for."""
    for part in options.parts or (tuple(PARTS)[:2] if options.quick else PARTS):
        report.figures += _measure(PARTS[part], options, report)


TARGET = Target(
    "neighbours",
    "photos beside 0, 2 and 4 busy processes on two cores",
    ">= 1.0 x torch's DataLoader, >= 0.9 x a bare thread pool at equal workers",
    run,
    number="P11",
    parts=tuple(PARTS),
)
