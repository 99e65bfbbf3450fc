"""A bare thread pool: the least that can deliver batches, and so the measure of our overhead.

Threads pull indices from an iterator behind a lock, run the sample, and put it into a shared
buffer; whoever fills a batch collates it and hands it over. No window, no order, no errors, no
early end: it is not a loader, and nothing it lacks costs it time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.peers.base import Peer, Plan


class _BarePool:
    """Starts new threads in each ``iter()`` and joins them when the indices are used up."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[Any]:
        plan = self.plan
        indices = iter(plan.order())
        claim, gather = threading.Lock(), threading.Lock()
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        gathered: list[Any] = []

        def work() -> None:
            try:
                while True:
                    with claim:
                        index = next(indices, None)
                    if index is None:
                        return
                    sample = plan.dataset[index]
                    full: list[Any] | None = None
                    with gather:
                        gathered.append(sample)
                        if len(gathered) == plan.batch_size:
                            full = gathered[:]
                            gathered.clear()
                    if full is not None:
                        done.put(plan.collate(full))
            except BaseException as error:
                done.put(error)
            finally:
                done.put(None)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(plan.workers)]
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            batch = done.get()
            if batch is None:
                running -= 1
            elif isinstance(batch, BaseException):
                raise batch
            else:
                yield batch
        for thread in threads:
            thread.join()
        if gathered:
            yield plan.collate(gathered)


def _pool(plan: Plan) -> Iterable[Any]:
    return _BarePool(plan)


BARE_POOL = Peer("bare thread pool", "threads", False, _pool)
"""``workers`` threads and nothing else."""
