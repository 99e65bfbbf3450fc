"""Recent costs of the steps of a pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from minato_async.stats import StepCosts

#: Costs remembered for each step.
_REMEMBERED = 1000


class RecentCosts:
    """What each step has cost lately. The caller holds the engine's lock."""

    def __init__(self) -> None:
        self._steps: list[deque[float]] = []

    def observe(self, costs: Sequence[float], tickets: int) -> None:
        """`tickets` samples together spent `costs` seconds in the steps, one after the other."""
        while len(self._steps) < len(costs):
            self._steps.append(deque(maxlen=_REMEMBERED))
        for step, seconds in zip(self._steps, costs, strict=False):
            step.append(seconds / max(1, tickets))

    def copy(self) -> list[list[float]]:
        """The costs of each step, as they are now."""
        return [list(step) for step in self._steps]


def summary(steps: Sequence[list[float]], name: Callable[[int], str]) -> tuple[StepCosts, ...]:
    """Percentiles of each step; `name` gives a step's name."""
    summaries = []
    for number, step in enumerate(steps):
        costs = sorted(step)
        last = len(costs) - 1
        p50, p75, p90, p99 = (costs[round(last * p)] for p in (0.5, 0.75, 0.9, 0.99))
        summaries.append(StepCosts(name(number), len(costs), p50, p75, p90, p99, costs[-1]))
    return tuple(summaries)
