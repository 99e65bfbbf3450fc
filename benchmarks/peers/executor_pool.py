"""The standard library's thread pool, as somebody would use it who needs no loader.

``ThreadPoolExecutor.map`` over the indices; the consumer's thread cuts the samples into batches and
collates them. All samples of the epoch are submitted at its beginning: there is no window.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.peers.base import Peer, Plan


class _ExecutorPool:
    """Starts the pool's threads in each ``iter()`` and joins them at the epoch's end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[Any]:
        plan = self.plan
        with ThreadPoolExecutor(plan.workers) as pool:
            samples = pool.map(plan.dataset.__getitem__, plan.order())
            while batch := list(itertools.islice(samples, plan.batch_size)):
                yield plan.collate(batch)


def _pool(plan: Plan) -> Iterable[Any]:
    return _ExecutorPool(plan)


EXECUTOR_POOL = Peer("ThreadPoolExecutor", "threads", True, _pool)
"""``workers`` threads of ``concurrent.futures``."""
