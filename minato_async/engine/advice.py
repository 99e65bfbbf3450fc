"""Advice that a person can act on, given once a loader, through the logger "minato_async"."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

logger = logging.getLogger("minato_async")

#: Seconds over which something must have been so before it is worth a word.
_PERIOD = 5.0
#: Share of the time that order must cost before it is worth a word.
_HELD_UP = 0.05


@dataclass(frozen=True)
class Observation:
    """The state of an epoch at one moment."""

    #: `time.monotonic()`.
    now: float
    #: Seconds that the consumer has waited for batches, in all.
    data_wait: float
    #: Batches that the consumer has taken, in all.
    delivered: int
    #: Workers wanted, and how many there may be.
    workers: int
    most: int
    #: Workers inside steps.
    active: float
    temp_queue: int
    in_flight: int
    threshold: float
    #: Seconds that the consumer has waited, in all, for the batch that was due while later ones
    #: were ready. 0 where it is not for its user to let those go first.
    held_up: float = 0.0


class Adviser:
    """Watches an epoch for what its user could change. The caller holds the engine's lock.

    `given` has what earlier ones have told the same user.
    """

    def __init__(self, given: set[str]) -> None:
        self._seen: deque[Observation] = deque()
        self._given = given
        self._new: list[str] = []

    def observe(self, observation: Observation) -> Sequence[str]:
        """What is to be told now."""
        seen = self._seen
        if seen and observation.delivered < seen[-1].delivered:
            seen.clear()  # another epoch
        seen.append(observation)
        while observation.now - seen[0].now > _PERIOD:
            seen.popleft()
            self._look(seen[0], observation)
        new, self._new = self._new, []
        return new

    def _look(self, first: Observation, last: Observation) -> None:
        seconds = last.now - first.now
        waited = (last.data_wait - first.data_wait) / max(seconds, 1e-9)
        if seconds < 0.8 * _PERIOD:
            return
        held_up = (last.held_up - first.held_up) / max(seconds, 1e-9)
        if held_up > _HELD_UP:
            self._give(
                "order",
                f"the consumer waits for a slow batch {held_up:.0%} of the time while later ones "
                "are ready. Their order is kept because reproducibility was asked for "
                "(torch.manual_seed, seed, generator or deterministic algorithms): "
                "in_order=False saves up to that much, and no two runs have the same batches",
            )
        if last.delivered == first.delivered:
            return
        if waited > 0.2 and last.workers >= last.most:
            self._give(
                "loader",
                f"the consumer waits for data {waited:.0%} of the time, and all {last.most} "
                "workers that there may be are at work: raise num_workers or max_workers, or make "
                "samples cheaper (loader.stats.steps tells what they cost)",
            )
        if waited < 0.01 and last.active < 0.5 * last.workers:
            self._give(
                "consumer",
                "batches are ready before they are asked for, and most workers are idle: the "
                "consumer is the slower one, and more workers would not make it faster",
            )
        backlogs = [seen.temp_queue / max(1, seen.in_flight) for seen in self._seen]
        if backlogs[-1] > 0.5 and backlogs[-1] >= backlogs[0]:
            self._give(
                "slow queue",
                f"{last.temp_queue} slow samples wait to be finished, half of what may be in "
                "flight: raise num_workers or max_queue_size, or timeout_threshold if they are "
                "not that slow",
            )
        values = [seen.threshold for seen in self._seen]
        changes = sum(a != b for a, b in itertools.pairwise(values))
        if changes > 5 and float("inf") not in values:
            self._give(
                "threshold",
                f"the threshold has changed {changes} times within {seconds:.0f} s, between "
                f"{min(values):.3g} and {max(values):.3g} s: the costs of samples drift; set "
                "timeout_threshold to have a fixed one",
            )

    def _give(self, topic: str, advice: str) -> None:
        if topic not in self._given:
            self._given.add(topic)
            self._new.append(advice)
