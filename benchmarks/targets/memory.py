"""memory (P6): memory of one more thread worker.

A fresh process for every measurement: resident memory with few and with many workers, all of which
have run samples at the same time and several of them, divided by the difference. The samples return
plain numbers, so that what waits in the larger window does not count; the same with small tensors
is shown beside it, and so are torch's worker processes.
"""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import Any

from benchmarks.contest import present
from benchmarks.figures import at_most
from benchmarks.measure.checks import CheckFailed
from benchmarks.peers.base import PREFETCH_FACTOR, Peer, Plan
from benchmarks.peers.minato import MINATO
from benchmarks.peers.nodes import NODES_IN_ORDER
from benchmarks.peers.spdl_pipeline import SPDL_INPUT
from benchmarks.peers.torch_loader import TORCH
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.crowd import Crowd
from minato_async.cli.measure.child import call_in_child
from minato_async.cli.measure.memory import MB, of_tree
from minato_async.cli.measure.statistics import spread
from minato_async.cli.measure.table import Table

BATCH_SIZE = 32
FEW = 2
MANY = 34
MANY_PROCESSES = 10
"""Fewer than threads: each costs many megabytes, so the difference shows all the same."""
QUICK = 4
"""Instead of both, to try the code."""
ROUNDS = 3
GOAL_MB = 1.0
PEERS = {peer.name: peer for peer in (MINATO, SPDL_INPUT, NODES_IN_ORDER, TORCH)}


def measure(peer: str, workers: int, tensors: bool) -> dict[str, int]:
    """In a fresh process: bytes while the epoch runs, after every worker has run samples.

    The first batches are consumed until all workers were seen in them, and then as many again as
    the window holds; memory is read with the iterator open and its workers alive.
    """
    import torch

    chosen = PEERS[peer]
    before = of_tree()
    window = PREFETCH_FACTOR * workers
    # Beyond what is consumed the window must still be full when memory is read.
    length = BATCH_SIZE * window * 5
    dataset = Crowd(workers, length, processes=chosen.home == "processes", tensors=tensors)
    iterator = iter(chosen.load(Plan(dataset, length, BATCH_SIZE, workers)))
    seen: set[int] = set()
    for _ in range(window * 3):
        batch = next(iterator)
        seen.update(batch[2].tolist())
        del batch
    if len(seen) != workers:
        raise CheckFailed(f"{len(seen)} workers ran samples, not {workers}")
    gc.collect()
    memory = of_tree()
    del iterator
    return {**asdict(memory), "rss_before": before.rss, "torch_threads": torch.get_num_threads()}


def _difference(peer: Peer, tensors: bool, many: int, rounds: int, report: Report) -> list[float]:
    """Megabytes of one more worker, by round.

    Threads by resident memory, which no other process changes; processes by proportional memory,
    for the resident memory of each counts the pages they share.
    """
    key = "pss" if peer.home == "processes" else "rss"
    found: list[float] = []
    raw: list[dict[str, Any]] = []
    for number in range(rounds):
        few, more = (
            call_in_child(f"{__name__}:measure", peer=peer.name, workers=workers, tensors=tensors)
            for workers in (FEW, many)
        )
        raw.append({"few": few, "many": more})
        found.append((more[key] - few[key]) / (many - FEW) / MB)
        report.progress(f"round {number + 1}/{rounds}: {peer.name} {found[-1]:.3f} MB")
    report.raw[f"memory, {peer.name}, {_RESULTS[tensors]}"] = raw
    return found


_RESULTS = {False: "numbers", True: "small tensors"}


def run(options: Options, report: Report) -> None:
    """Measure every peer; the figure is the loader's resident memory per worker."""
    threads, processes = (QUICK, QUICK) if options.quick else (MANY, MANY_PROCESSES)
    table = Table(
        f"one more worker, MB (10^6 bytes): ({threads} − {FEW} threads, "
        f"{processes} − {FEW} processes), every run in a fresh process",
        ("loader", "samples return", "MB", "measured as"),
    )
    figure = float("nan")
    for peer in present((MINATO,) if options.quick else PEERS.values(), report):
        forks = peer.home == "processes"
        many = processes if forks else threads
        for tensors in (False,) if forks or options.quick else (False, True):
            name = (peer.name, _RESULTS[tensors])
            try:
                found = _difference(peer, tensors, many, options.rounds_or(ROUNDS), report)
            except (RuntimeError, OSError) as error:
                report.note(f"{peer.name} failed: {error}")
                table.rows.append((*name, "failed", ""))
                continue
            kind = "proportional (PSS)" if forks else "resident (RSS)"
            table.rows.append((*name, spread(found).text(3), kind))
            if peer is MINATO and not tensors:
                figure = spread(found).median
    report.table(table)
    report.figures.append(at_most("thread_MB", figure, GOAL_MB))


TARGET = Target(
    "memory",
    "resident memory of one more thread worker",
    "<= 1 MB",
    run,
    number="P6",
)
