"""torch's DataLoader: in order, ``in_order=False``, and in the caller's process."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.peers.base import PREFETCH_FACTOR, Peer, Plan

# It warns of more workers than cores; for samples that wait that is on purpose.
warnings.filterwarnings("ignore", message="This DataLoader will create")


def _loader(plan: Plan, *, in_order: bool) -> Iterable[Any]:
    return DataLoader(
        plan.dataset,
        batch_size=plan.batch_size,
        shuffle=plan.shuffle,
        num_workers=plan.workers,
        collate_fn=plan.collate,
        prefetch_factor=PREFETCH_FACTOR if plan.workers else None,
        in_order=in_order,
    )


def _strict(plan: Plan) -> Iterable[Any]:
    return _loader(plan, in_order=True)


def _ready_first(plan: Plan) -> Iterable[Any]:
    return _loader(plan, in_order=False)


def _in_caller(plan: Plan) -> Iterable[Any]:
    return _loader(replace(plan, workers=0), in_order=True)


TORCH = Peer("torch in order", "processes", True, _strict)
"""``DataLoader(num_workers=N)``, all else default."""

TORCH_READY = Peer("torch in_order=False", "processes", False, _ready_first)
"""``DataLoader(num_workers=N, in_order=False)``."""

TORCH_CALLER = Peer("torch num_workers=0", "caller", True, _in_caller)
"""``DataLoader(num_workers=0)``: no workers at all, whatever the plan says."""
