"""The loader under test: as it comes, in strict order, and ready samples first; on threads, and on
processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.peers.base import Peer, Plan

_MODULE = "minato_async"

MAX_WORKERS = 32
"""Threads that the loader may choose to have, where a row does not compare equal workers."""


def load(plan: Plan, **options: Any) -> Iterable[Any]:
    """The loader for `plan`, on a fixed number of threads unless `options` say otherwise."""
    # Imported here: a target that cannot import the loader still lists and explains itself.
    from minato_async import MinatoLoader

    return MinatoLoader(
        plan.dataset,
        batch_size=plan.batch_size,
        shuffle=plan.shuffle,
        num_workers=plan.workers,
        collate_fn=plan.collate,
        **({"scheduler": "fixed", "executor": "thread"} | options),
    )


def _default(plan: Plan) -> Iterable[Any]:
    return load(plan)


def _diverts(plan: Plan) -> Iterable[Any]:
    dataset: Any = plan.dataset
    return load(plan, in_order=False, transforms=[dataset.rest])


def _adapts(plan: Plan) -> Iterable[Any]:
    return load(plan, in_order=False, scheduler="throughput", max_workers=MAX_WORKERS)


def _strict(plan: Plan) -> Iterable[Any]:
    return load(plan, in_order=True)


def _ready_first(plan: Plan) -> Iterable[Any]:
    return load(plan, in_order=False)


MINATO = Peer("MinatoLoader", "threads", False, _default, (_MODULE,))
"""All options default, but a fixed number of workers: rows compare equal workers."""

MINATO_STRICT = Peer("MinatoLoader in order", "threads", True, _strict, (_MODULE,))
"""``in_order=True``."""

MINATO_READY = Peer("MinatoLoader any order", "threads", False, _ready_first, (_MODULE,))
"""``in_order=False``."""

MINATO_ADAPTS = Peer("MinatoLoader throughput", "threads", False, _adapts, (_MODULE,))
"""``in_order=False``, and the number of workers chosen by the loader from the plan's on."""

MINATO_DIVERTS = Peer("MinatoLoader diverting", "threads", False, _diverts, (_MODULE,))
"""``in_order=False``, over a dataset of :class:`~benchmarks.workloads.halves.Halves`, whose second
step is a transform: slow samples are diverted between the two."""


def _processes(plan: Plan) -> Iterable[Any]:
    return load(plan, executor="process", in_order=True)


def _processes_ready(plan: Plan) -> Iterable[Any]:
    return load(plan, executor="process", in_order=False)


MINATO_PROCESSES = Peer(
    "MinatoLoader processes in order", "processes", True, _processes, (_MODULE,)
)
"""``executor="process", in_order=True``."""

MINATO_PROCESSES_READY = Peer(
    "MinatoLoader processes any order", "processes", False, _processes_ready, (_MODULE,)
)
"""``executor="process", in_order=False``."""
