"""tails (P2): heavy-tailed samples in any order, by equal workers.

Samples that sleep, 90 % 4 ms and 10 % 100 ms, on 8 and on 16 workers, against the limit computed
from the costs they measured; and the same mix as real computation on 2 workers, pure Python and
numpy, against a bare thread pool that is interleaved in the same run. The same samples cut into two
steps, so that slow ones are diverted between them, must lose nothing by it.

The other loaders decide no figure: they run in one round, unless more are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.contest import costed, present
from benchmarks.figures import Figure, at_least
from benchmarks.limits import cpu_limit, list_schedule, share, sleeping_limit
from benchmarks.measure.rounds import Row, Rows, interleave
from benchmarks.peers.bare_pool import BARE_POOL
from benchmarks.peers.base import Peer
from benchmarks.peers.minato import MINATO_DIVERTS, MINATO_READY
from benchmarks.peers.nodes import NODES
from benchmarks.peers.spdl_pipeline import SPDL
from benchmarks.peers.torch_loader import TORCH, TORCH_READY
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.busy import WORKS, Busy, calibrate
from benchmarks.workloads.costs import bimodal
from benchmarks.workloads.halves import Halves
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import Epoch
from minato_async.cli.measure.statistics import paired
from minato_async.cli.measure.table import Table
from minato_async.scheduling.cpus import cpu_quota

BATCH_SIZE = 32
SLEEPERS = (8, 16)
CPU_WORKERS = 2
SLEEP_SECONDS = 7.0
"""Length of a sleeping epoch at the limit: its end, when workers run out of samples and the last
slow ones finish, must not decide the figure."""
CPU_SECONDS = 4.0
QUICK_SECONDS = 0.1
SLEEP_ROUNDS = 2
CPU_ROUNDS = 3
GOAL = 0.97
PEER_ROUNDS = 1
PEERS = (TORCH, TORCH_READY, SPDL, NODES)
QUICK_PEERS = (NODES,)
"""No processes: sixteen take seconds to start."""

Share = Callable[[Epoch], float]


def _length(seconds: float, workers: int) -> int:
    """Samples that keep ``workers`` busy for about ``seconds``, in whole batches."""
    mean = sum(bimodal(1000)) / 1000
    return max(1, round(seconds * workers / mean / BATCH_SIZE)) * BATCH_SIZE


def _table(
    title: str, rows: Rows, columns: Sequence[tuple[str, Share]], against: Row | None
) -> Table:
    names = [name for name, _ in columns]
    if against is not None:
        names.append(f"of {against.name}")
    table = Table(title, ("loader", "samples/s", *names, "first batch ms", "epoch s"))
    for row in rows.values():
        cells = [row.spread(share_of).text(3) for _, share_of in columns]
        if against is not None:
            cells.append(paired(row.values(_rate), against.values(_rate)).text(3))
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(_rate).text(1),
                *cells,
                row.spread(lambda epoch: epoch.first).text(0, 1000),
                row.spread(lambda epoch: epoch.seconds).text(2),
            )
        )
    return table


def _peers(options: Options) -> tuple[Peer, ...]:
    return (MINATO_READY, *(QUICK_PEERS if options.quick else PEERS))


def _halves(half: Sleeping | Busy) -> Halves:
    return Halves(half, half)


def _rate(epoch: Epoch) -> float:
    return epoch.rate


def _sleeping(workers: int, options: Options, report: Report) -> list[Figure]:
    seconds = QUICK_SECONDS if options.quick else SLEEP_SECONDS
    length = _length(seconds, workers)
    costs = bimodal(length)
    rows = interleave(
        [
            costed(
                peer,
                lambda guard: Sleeping(costs, guard),
                length=length,
                batch_size=BATCH_SIZE,
                workers=workers,
                rounds=None if peer is MINATO_READY else options.rounds_or(PEER_ROUNDS),
            )
            for peer in present(_peers(options), report)
        ]
        + [
            costed(
                MINATO_DIVERTS,
                lambda guard: _halves(Sleeping([cost / 2 for cost in costs], guard)),
                length=length,
                batch_size=BATCH_SIZE,
                workers=workers,
            )
        ],
        options.rounds_or(SLEEP_ROUNDS),
        report,
        f"sleeping, {workers} workers",
    )

    def of_measured(epoch: Epoch) -> float:
        return share(sleeping_limit(epoch.receipt.costs, workers), epoch.seconds)

    def of_nominal(epoch: Epoch) -> float:
        return share(sleeping_limit(costs, workers), epoch.seconds)

    limit = sleeping_limit(costs, workers)
    report.table(
        _table(
            f"sleeping 90 % 4 ms / 10 % 100 ms, {length} samples, batch {BATCH_SIZE}, {workers} "
            f"workers: {limit:.2f} s at the nominal limit, of which even an ideal pool reaches "
            f"{share(limit, list_schedule(costs, workers)):.3f} (the end of the epoch)",
            rows,
            [("of the limit, measured costs", of_measured), ("nominal costs", of_nominal)],
            None,
        )
    )
    return [
        at_least(f"{label}{workers}", rows[peer.name].spread(of_measured).median, GOAL)
        for label, peer in (("sleep", MINATO_READY), ("diverting", MINATO_DIVERTS))
        if peer.name in rows
    ]


def _busy(kind: str, options: Options, report: Report) -> list[Figure]:
    seconds = QUICK_SECONDS if options.quick else CPU_SECONDS
    length = _length(seconds, CPU_WORKERS)
    work = WORKS[kind]
    speed = calibrate(work)
    counts = [round(cost * speed) for cost in bimodal(length)]
    report.progress(f"{kind}: {speed:.0f} iterations a second")
    rows = interleave(
        [
            costed(
                peer,
                lambda guard: Busy(counts, work, guard),
                length=length,
                batch_size=BATCH_SIZE,
                workers=CPU_WORKERS,
                rounds=None
                if peer in (BARE_POOL, MINATO_READY)
                else options.rounds_or(PEER_ROUNDS),
            )
            for peer in present((BARE_POOL, *_peers(options)), report)
        ]
        + [
            costed(
                MINATO_DIVERTS,
                lambda guard: _halves(Busy([count // 2 for count in counts], work, guard)),
                length=length,
                batch_size=BATCH_SIZE,
                workers=CPU_WORKERS,
            )
        ],
        options.rounds_or(CPU_ROUNDS),
        report,
        f"cpu/{kind}",
    )
    cores = cpu_quota()

    def of_limit(epoch: Epoch) -> float:
        return share(cpu_limit(epoch.receipt.costs, CPU_WORKERS, cores), epoch.seconds)

    def in_samples(epoch: Epoch) -> float:
        return sum(epoch.receipt.costs) / epoch.cpu

    pool = rows[BARE_POOL.name]
    report.table(
        _table(
            f"computing in {kind}, 90 % 4 ms / 10 % 100 ms as iterations, {length} samples, batch "
            f"{BATCH_SIZE}, {CPU_WORKERS} workers on {cores:g} cores",
            rows,
            [("of the limit, CPU seconds", of_limit), ("CPU in samples / all", in_samples)],
            pool,
        )
    )
    return [
        at_least(label, paired(rows[peer.name].values(_rate), pool.values(_rate)).median, GOAL)
        for label, peer in ((f"cpu/{kind}", MINATO_READY), (f"diverting/{kind}", MINATO_DIVERTS))
        if peer.name in rows
    ]


PARTS: dict[str, Callable[[Options, Report], list[Figure]]] = {
    **{f"sleep{workers}": partial(_sleeping, workers) for workers in SLEEPERS},
    **{f"cpu/{kind}": partial(_busy, kind) for kind in WORKS},
}


def run(options: Options, report: Report) -> None:
    """Measure the sleeping rows, then the computing ones, or those asked for."""
    for part in options.parts or PARTS:
        report.figures += PARTS[part](options, report)


TARGET = Target(
    "tails",
    "heavy-tailed samples in any order, that sleep and that compute",
    "8 and 16 workers sleeping >= 0.97 of the limit, 2 workers computing >= 0.97 of a bare "
    "thread pool, and the same where slow ones are diverted",
    run,
    number="P2",
    parts=tuple(PARTS),
)
