"""SPDL: a pipeline of a fetch stage, aggregation and a collate stage.

The fetch stage has an executor of its own with as many threads as workers, and collation the
pipeline's one thread: with one shared executor of N + 1 threads an input-ordered stage runs N + 1
samples at once, which is not equal work. The sink holds as many batches as torch's window (what
SPDL's own DataLoader shim sets); all else is default.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.peers.base import PREFETCH_FACTOR, Peer, Plan

_MODULE = "spdl.pipeline"


class _Pipeline:
    """Builds and starts a new pipeline in each ``iter()``; stops it when the iterator ends."""

    def __init__(self, plan: Plan, output_order: str) -> None:
        self.plan = plan
        self.output_order = output_order

    def __iter__(self) -> Iterator[Any]:
        plan = self.plan
        with ThreadPoolExecutor(plan.workers) as workers:
            pipeline = (
                importlib.import_module(_MODULE)
                .PipelineBuilder()
                .add_source(plan.order())
                .pipe(
                    plan.dataset.__getitem__,
                    concurrency=plan.workers,
                    executor=workers,
                    output_order=self.output_order,
                )
                .aggregate(plan.batch_size)
                .pipe(plan.collate)
                .add_sink(PREFETCH_FACTOR * plan.workers)
                .build(num_threads=1)
            )
            with pipeline.auto_stop():
                yield from pipeline


def _completion(plan: Plan) -> Iterable[Any]:
    return _Pipeline(plan, "completion")


def _input(plan: Plan) -> Iterable[Any]:
    return _Pipeline(plan, "input")


SPDL = Peer("SPDL completion", "threads", False, _completion, (_MODULE,))
"""Batches of whatever finished, SPDL's default."""

SPDL_INPUT = Peer("SPDL in order", "threads", True, _input, (_MODULE,))
"""``output_order="input"``."""
