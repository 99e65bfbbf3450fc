"""pipelines (P10b): what the isolation of random state costs on real pipelines.

Each pipeline runs whole epochs on two workers, interleaved: the loader as it comes, the loader with
``seed=False``, torch's DataLoader, and a bare thread pool, which shares out the same samples among
two threads and does nothing else. The loader runs on threads where the GIL is off, else on
processes, where no row is compared with bare threads. Torchvision and MONAI switch the GIL on when
they are imported: free-threaded Python is run with ``-X gil=0``.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.figures import at_least, at_most
from benchmarks.measure.checks import check_receipt
from benchmarks.measure.rounds import Contender, Row, Rows, interleave
from benchmarks.peers.bare_pool import BARE_POOL
from benchmarks.peers.base import Peer, Plan
from benchmarks.peers.minato import load
from benchmarks.peers.torch_loader import TORCH
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.pipelines import IMAGENET, PIPELINES, Applied, Pipeline
from minato_async.cli.measure.epoch import Epoch, Receipt, consume
from minato_async.cli.measure.statistics import Spread, paired
from minato_async.cli.measure.table import Table
from minato_async.lifecycle.gil_watch import gil_is_on

WORKERS = 2
ROUNDS = 5
QUICK_BATCHES = 2
CPU_ON_THREADS, CPU_ON_PROCESSES = 1.05, 1.02


def _load(plan: Plan, **options: Any) -> Iterable[Any]:
    executor = "process" if gil_is_on() else "thread"
    return load(plan, executor=executor, in_order=True, **options)


def _with(plan: Plan) -> Iterable[Any]:
    return _load(plan)


def _without(plan: Plan) -> Iterable[Any]:
    return _load(plan, seed=False)


OURS = Peer("MinatoLoader", "threads", True, _with)
UNSEEDED = Peer("MinatoLoader, seed=False", "threads", True, _without)


def _read(batch: Any, receipt: Receipt) -> None:
    receipt.samples += len(batch[1])
    receipt.indices.extend(batch[1].tolist())


def _contender(peer: Peer, pipeline: Pipeline, dataset: Applied) -> Contender:
    def run() -> Epoch:
        plan = Plan(dataset, dataset.length, pipeline.batch_size, WORKERS)
        epoch = consume(peer.load(plan), _read)
        check_receipt(epoch.receipt, dataset.length, ordered=peer.ordered)
        return epoch

    return Contender(peer.name, run)


def _rate(epoch: Epoch) -> float:
    return epoch.rate


def _cpu(epoch: Epoch) -> float:
    return epoch.cpu / epoch.receipt.samples


def _ratio(rows: Rows, other: Peer, of: Any = _rate) -> Spread:
    """Of the loader to `other`, round by round."""
    nothing = Row("")
    return paired(rows.get(OURS.name, nothing).values(of), rows.get(other.name, nothing).values(of))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Operators in this process run on one thread, as they do in all workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _left_out(pipeline: Pipeline) -> str | None:
    """Why the pipeline cannot be measured here."""
    if importlib.util.find_spec(pipeline.module) is None:
        return f"{pipeline.module} is not here"
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys._xoptions.get("gil") != "0":
        return f"{pipeline.module} switches the GIL on; run python -X gil=0"
    return None


def _measure(pipeline: Pipeline, options: Options, report: Report) -> Rows:
    length = pipeline.batch_size * QUICK_BATCHES if options.quick else pipeline.length
    dataset = pipeline.dataset(length)
    peers = [OURS, UNSEEDED, TORCH] if gil_is_on() else [OURS, UNSEEDED, TORCH, BARE_POOL]
    contenders = [_contender(peer, pipeline, dataset) for peer in peers]
    rows = interleave(contenders, options.rounds_or(ROUNDS), report, pipeline.name)
    table = Table(
        f"{pipeline.name}: {length} samples, batch {pipeline.batch_size}, {WORKERS} workers",
        ("loader", "samples/s, whole epoch", "MinatoLoader is", "CPU µs a sample", "CPU: is"),
    )
    for peer in peers:
        row = rows[peer.name]
        table.rows.append(
            (
                row.name,
                "failed" if row.error else row.spread(_rate).text(0),
                _ratio(rows, peer).text(2),
                row.spread(_cpu).text(0, 1e6),
                _ratio(rows, peer, _cpu).text(3),
            )
        )
    report.table(table)
    return rows


def _worst(spreads: Iterable[Spread], largest: bool = False) -> float:
    """The worst median; nan if there is none, or one that could not be formed."""
    medians = [spread.median for spread in spreads]
    if not medians or any(median != median for median in medians):
        return float("nan")
    return max(medians) if largest else min(medians)


def run(options: Options, report: Report) -> None:
    """Measure the pipelines, or those that `options.parts` names."""
    measured: dict[str, Rows] = {}
    # Of libraries that are not ours, about themselves.
    with _one_thread_each(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for pipeline in PIPELINES:
            if options.parts and pipeline.name not in options.parts:
                continue
            reason = _left_out(pipeline)
            if reason is not None:
                report.note(f"{pipeline.name} is left out: {reason}")
                continue
            measured[pipeline.name] = _measure(pipeline, options, report)
    report.note("each figure is the worst row's median of ratios within a round")
    rows = measured.values()
    goal = CPU_ON_PROCESSES if gil_is_on() else CPU_ON_THREADS
    report.figures += [
        at_most("cpu/seed=False", _worst((_ratio(r, UNSEEDED, _cpu) for r in rows), True), goal),
        at_least("epochs/torch", _worst(_ratio(r, TORCH) for r in rows), 1.0),
    ]
    if gil_is_on():
        return
    photos = [measured[p.name] for p in IMAGENET if p.name in measured]
    if photos:
        worst = _worst(_ratio(r, TORCH) for r in photos)
        report.figures.append(at_least("imagenet/torch", worst, 1.25))
    worst = _worst(_ratio(r, BARE_POOL) for r in rows)
    report.figures.append(at_least("epochs/bare", worst, 0.95))


TARGET = Target(
    "pipelines",
    "what that isolation costs torchvision's and MONAI's pipelines",
    "CPU a sample <= 1.05 x seed=False on threads, 1.02 on processes; whole epochs >= 1.0 x"
    " DataLoader, ImageNet 1.25 on threads; >= 0.95 x bare threads; 2 workers",
    run,
    number="P10b",
    parts=tuple(pipeline.name for pipeline in PIPELINES),
)
