"""processes (P7): worker processes, where the GIL keeps threads from running Python side by side.

Uniform samples against torch's worker processes in either order, at equal workers and prefetch:
ready 3×32×32 tensors in batches of 128, ready 3×224×224 float images in batches of 32, and ready
volumes of 10 MB in batches of 2. Heavy-tailed samples that sleep against the limit computed from
the costs they measured. The time to the first batch, and the memory of all processes together,
each in a fresh process.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from benchmarks.contest import costed, present
from benchmarks.figures import Figure, at_least
from benchmarks.limits import share, sleeping_limit
from benchmarks.measure.checks import check_receipt
from benchmarks.measure.rounds import Contender, Row, Rows, interleave
from benchmarks.peers.base import PREFETCH_FACTOR, Peer, Plan
from benchmarks.peers.minato import MINATO_PROCESSES, MINATO_PROCESSES_READY
from benchmarks.peers.torch_loader import TORCH, TORCH_READY
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.targets.trivial import IMAGES, Work
from benchmarks.workloads.costs import bimodal
from benchmarks.workloads.guard import ConcurrencyGuard
from benchmarks.workloads.ready import CheckedTensors, ReadyTensors
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.child import call_in_child
from minato_async.cli.measure.epoch import Epoch, consume, count_tensor, read_indexed
from minato_async.cli.measure.memory import MB, of_tree
from minato_async.cli.measure.statistics import paired, spread
from minato_async.cli.measure.table import Table

WORKERS = 2
ROUNDS = 5
SLEEPERS = 8
SLEEP_BATCH = 32
SLEEP_SECONDS = 8.0
SLEEP_ROUNDS = 3
FRESH_ROUNDS = 3
FILLING = 1.0
"""Seconds in which workers load all that they may, before memory is read."""
HEAVY_GOAL = 0.95
OWN = (MINATO_PROCESSES, MINATO_PROCESSES_READY)
PEERS = {peer.name: peer for peer in (*OWN, TORCH, TORCH_READY)}

WORKS = (
    Work("trivial", (3, 32, 32), 128, 256_000, 6_400, 1024),
    Work(IMAGES.name, IMAGES.shape, IMAGES.batch_size, 6_400, 128, 64),
    Work("volumes", (10, 512, 512), 2, 400, 16, 8),
)


def _rate(epoch: Epoch) -> float:
    return epoch.rate


def _check(peer: Peer, work: Work, tensors: ReadyTensors) -> None:
    """One short epoch, not timed, whose samples carry index and guard."""
    guard = ConcurrencyGuard(processes=True)
    length = work.batch_size * 8 + 1
    plan = Plan(CheckedTensors(tensors, length, guard), length, work.batch_size, WORKERS)
    epoch = consume(peer.load(plan), read_indexed)
    check_receipt(epoch.receipt, length, ordered=peer.ordered)
    guard.check(WORKERS)


def _contender(peer: Peer, work: Work, tensors: ReadyTensors) -> Contender:
    checked: list[bool] = []

    def run() -> Epoch:
        if not checked:
            _check(peer, work, tensors)
            checked.append(True)
        plan = Plan(tensors, tensors.length, work.batch_size, WORKERS)
        epoch = consume(peer.load(plan), count_tensor)
        check_receipt(epoch.receipt, tensors.length)
        return epoch

    return Contender(peer.name, run)


def _against(rows: Rows, own: Peer, of: Callable[[Epoch], float]) -> float:
    """Median ratio of `own` to the better of torch's two orders."""
    mine = rows.get(own.name, Row(own.name)).values(of)
    ratios = [paired(mine, rows[peer.name].values(of)).median for peer in (TORCH, TORCH_READY)]
    return min(ratios, key=lambda ratio: (ratio == ratio, ratio))  # nan first


def _uniform(work: Work, options: Options, report: Report) -> Figure:
    length = work.quick_length if options.quick else work.length
    tensors = ReadyTensors(work.shape, length, work.pool)
    contenders = [_contender(peer, work, tensors) for peer in present(PEERS.values(), report)]
    rows = interleave(contenders, options.rounds_or(ROUNDS), report, work.name)
    shape = "×".join(map(str, work.shape))
    own = rows[MINATO_PROCESSES.name]
    table = Table(
        f"{work.name}: {length} ready {shape} float samples, batch {work.batch_size}, {WORKERS} "
        "workers, not persistent",
        ("loader", "samples/s", "MinatoLoader in order is", "first batch ms", "CPU µs a sample"),
    )
    for row in rows.values():
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(_rate).text(0),
                paired(own.values(_rate), row.values(_rate)).text(2),
                row.spread(lambda epoch: epoch.first).text(1, 1000),
                row.spread(lambda epoch: epoch.cpu / epoch.receipt.samples).text(1, 1e6),
            )
        )
    report.table(table)
    return at_least(work.name, min(_against(rows, peer, _rate) for peer in OWN), 1.0)


def _heavy(options: Options, report: Report) -> Figure:
    seconds = 0.1 if options.quick else SLEEP_SECONDS
    mean = sum(bimodal(1000)) / 1000
    length = max(1, round(seconds * SLEEPERS / mean / SLEEP_BATCH)) * SLEEP_BATCH
    costs = bimodal(length)
    peers = OWN if options.quick else PEERS.values()
    rows = interleave(
        [
            costed(
                peer,
                lambda guard: Sleeping(costs, guard),
                length=length,
                batch_size=SLEEP_BATCH,
                workers=SLEEPERS,
                rounds=None if peer is MINATO_PROCESSES_READY else options.rounds_or(1),
            )
            for peer in present(peers, report)
        ],
        options.rounds_or(SLEEP_ROUNDS),
        report,
        "heavy-tailed",
    )

    def of_limit(epoch: Epoch) -> float:
        return share(sleeping_limit(epoch.receipt.costs, SLEEPERS), epoch.seconds)

    table = Table(
        f"sleeping 90 % 4 ms / 10 % 100 ms, {length} samples, batch {SLEEP_BATCH}, {SLEEPERS} "
        "worker processes",
        ("loader", "of the limit", "first batch ms"),
    )
    for row in rows.values():
        first = row.spread(lambda epoch: epoch.first).text(1, 1000)
        table.rows.append((row.name, row.spread(of_limit).text(3), first))
    report.table(table)
    ready = rows.get(MINATO_PROCESSES_READY.name, Row(MINATO_PROCESSES_READY.name))
    return at_least("heavy", ready.spread(of_limit).median, HEAVY_GOAL)


def measure(peer: str, workers: int) -> dict[str, float]:
    """In a fresh process: seconds from `iter()` to the first batch of ready images, and bytes of
    all processes together with the epoch half consumed and all that may be loaded ahead loaded.

    Shared memory is what the whole machine has more of than before: a batch that torch has sent and
    nobody has received yet is mapped by no process.
    """
    shared_before = _shared_memory()
    batch, batches = IMAGES.batch_size, 8 * PREFETCH_FACTOR * workers
    tensors = ReadyTensors(IMAGES.shape, batch * batches, IMAGES.pool)
    loader: Iterable[Any] = PEERS[peer].load(Plan(tensors, tensors.length, batch, workers))
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first = time.perf_counter() - began
    for _ in range(batches // 2):
        held = next(iterator)
    gc.collect()
    time.sleep(FILLING)
    memory = of_tree().unshared + _shared_memory() - shared_before
    del held, iterator
    return {"first": first, "memory": memory}


def _shared_memory() -> int:
    """Bytes in shared memory and in tmpfs, on this machine."""
    shared: int = psutil.virtual_memory().shared
    return shared


def _fresh(options: Options, report: Report) -> list[Figure]:
    workers = WORKERS if options.quick else 4
    peers = (MINATO_PROCESSES, TORCH) if options.quick else tuple(PEERS.values())
    found: dict[str, list[dict[str, float]]] = {peer.name: [] for peer in peers}
    for number in range(options.rounds_or(FRESH_ROUNDS)):
        for name in found:
            found[name].append(call_in_child(f"{__name__}:measure", peer=name, workers=workers))
            report.progress(f"fresh, round {number + 1}: {name} {found[name][-1]}")
    report.raw["fresh"] = found
    table = Table(
        f"ready images, {workers} workers, each run in a fresh process",
        ("loader", "first batch ms", "memory of all processes, MB (10^6 bytes)"),
    )
    for name, runs in found.items():
        first = spread([run["first"] for run in runs]).text(1, 1000)
        memory = spread([run["memory"] for run in runs]).text(1, 1 / MB)
        table.rows.append((name, first, memory))
    report.table(table)

    def of_torch(key: str) -> float:
        """How many times as much torch takes, the better of its orders."""
        torch = min(
            spread([run[key] for run in found[peer.name]]).median
            for peer in peers
            if peer not in OWN
        )
        return torch / spread([run[key] for run in found[MINATO_PROCESSES.name]]).median

    return [at_least("first", of_torch("first"), 1.0), at_least("memory", of_torch("memory"), 1.0)]


def run(options: Options, report: Report) -> None:
    """Measure all, against torch's worker processes."""
    report.figures += [_uniform(work, options, report) for work in WORKS]
    report.figures.append(_heavy(options, report))
    report.figures += _fresh(options, report)
    report.note("ratios are medians, to the better of torch's two orders; above 1: ahead of it")


TARGET = Target(
    "processes",
    "worker processes: uniform and heavy-tailed samples, first batch, memory",
    "uniform samples >= 1.0 x the better of DataLoader's two orders at equal workers, "
    "heavy-tailed ones >= 0.95 of the limit; first batch and memory no more than torch's",
    run,
    number="P7",
)
