"""What no loader can beat, computed from the costs of the samples.

All costs and results are in seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence


def sleeping_limit(costs: Iterable[float], workers: int) -> float:
    """Least time for samples that wait: the sum of their wall times over the workers.

    ``costs`` are wall times inside the samples, measured by the samples themselves.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    return sum(costs) / workers


def cpu_limit(costs: Iterable[float], workers: int, cores: float) -> float:
    """Least time for samples that compute: the sum of their CPU times over the cores.

    ``cores`` is what the process may use (see :func:`minato_async.scheduling.cpus.cpu_quota`);
    fewer workers than cores cannot use them all.
    """
    if workers < 1 or cores <= 0:
        raise ValueError(f"needs workers and cores, not {workers} and {cores}")
    return sum(costs) / min(workers, cores)


def list_schedule(costs: Sequence[float], workers: int) -> float:
    """Time an ideal pool needs when each free worker takes the next sample of the list.

    Unlike the two limits above this counts the end of the list, where workers run out of samples:
    what a loader with no cost of its own would show for samples started in this order.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    free = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


def share(limit: float, elapsed: float) -> float:
    """How much of the limit a run of ``elapsed`` seconds reached: 1 is the limit itself."""
    return limit / elapsed if elapsed > 0 else float("nan")
