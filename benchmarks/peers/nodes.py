"""torchdata.nodes: ParallelMapper on threads over samples, then Batcher, collation, Prefetcher.

The mapper takes samples, not batches: that is what makes it the strongest peer. ``max_concurrent``
is left at its default (twice the workers, in flight and buffered). Collation runs in the
Prefetcher's thread, which holds as many batches as torch's window.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.peers.base import PREFETCH_FACTOR, Peer, Plan

_MODULE = "torchdata.nodes"


class _Nodes:
    """Builds the chain anew in each ``iter()``; its threads end when the chain is dropped."""

    def __init__(self, plan: Plan, in_order: bool) -> None:
        self.plan = plan
        self.in_order = in_order

    def __iter__(self) -> Iterator[Any]:
        plan = self.plan
        nodes = importlib.import_module(_MODULE)
        samples = nodes.ParallelMapper(
            nodes.IterableWrapper(plan.order()),
            plan.dataset.__getitem__,
            num_workers=plan.workers,
            in_order=self.in_order,
            method="thread",
        )
        batches = nodes.Batcher(samples, batch_size=plan.batch_size, drop_last=False)
        collated = nodes.Mapper(batches, plan.collate)
        root = nodes.Prefetcher(collated, prefetch_factor=PREFETCH_FACTOR * plan.workers)
        yield from nodes.Loader(root)


def _unordered(plan: Plan) -> Iterable[Any]:
    return _Nodes(plan, in_order=False)


def _in_order(plan: Plan) -> Iterable[Any]:
    return _Nodes(plan, in_order=True)


NODES = Peer("torchdata.nodes unordered", "threads", False, _unordered, (_MODULE,))
"""``ParallelMapper(in_order=False, method="thread")``."""

NODES_IN_ORDER = Peer("torchdata.nodes in order", "threads", True, _in_order, (_MODULE,))
"""``ParallelMapper(in_order=True, method="thread")``."""
