"""Advice that a person can act on, given once a loader, through the logger "minato_async"."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

logger = logging.getLogger("minato_async")

#: Seconds over which something must have been so before it is worth a word.
_PERIOD = 5.0
#: Share of the time that order must cost before it is worth a word.
_HELD_UP = 0.05

#: By what it is about: taken by the first to give such advice in this process, and never released.
_TOPICS = ("loader", "order", "consumer", "slow queue", "threshold")
_given = {topic: threading.Lock() for topic in _TOPICS}


class Advice(NamedTuple):
    topic: str
    text: str

    def give(self) -> None:
        """Log it, unless such advice was given in this process. Handlers are code of the user's:
        to be called by the consumer, and with no lock held."""
        if _given[self.topic].acquire(blocking=False):
            logger.warning("%s", self.text)


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
    #: CPUs that have nothing to do; None: not measured.
    idle_cores: float | None = None
    #: Seconds that the consumer has waited, in all, for the batch that was due while later ones
    #: were ready. 0 where it is not for its user to let those go first.
    held_up: float = 0.0


class Adviser:
    """Watches an epoch for what its user could change. On the event loop alone."""

    def __init__(self) -> None:
        self._seen: deque[Observation] = deque()
        #: What is to be said depends on whether CPUs are idle.
        self.minds_cores = False

    def begin(self) -> None:
        """Another epoch."""
        self._seen.clear()
        self.minds_cores = False

    def observe(self, observation: Observation) -> Sequence[Advice]:
        seen = self._seen
        if seen:
            waits = _waited(seen[-1], observation) > 0.2
            self.minds_cores = waits and not _given["loader"].locked()
        seen.append(observation)
        found: list[Advice] = []
        while observation.now - seen[0].now > _PERIOD:
            found += self._look(seen.popleft(), observation)
        return found

    def _look(self, first: Observation, last: Observation) -> list[Advice]:
        found: list[Advice] = []
        seconds, waited = last.now - first.now, _waited(first, last)
        held_up = (last.held_up - first.held_up) / seconds
        if held_up > _HELD_UP:
            found.append(
                Advice(
                    "order",
                    f"the consumer waits for a slow batch {held_up:.0%} of the time while later "
                    "ones are ready. Their order is kept because reproducibility was asked for "
                    "(torch.manual_seed, seed, generator or deterministic algorithms): "
                    "in_order=False saves up to that much, and no two runs have the same batches",
                )
            )
        if last.delivered == first.delivered:
            return found
        if waited > 0.2 and last.workers >= last.most:
            found.append(
                Advice(
                    "loader",
                    f"the consumer waits for data {waited:.0%} of the time, and all {last.most} "
                    f"workers that there may be are at work: {_remedy(last.idle_cores)}",
                )
            )
        if waited < 0.01 and last.active < 0.5 * last.workers:
            found.append(
                Advice(
                    "consumer",
                    "batches are ready before they are asked for, and most workers are idle: the "
                    "consumer is the slower one, and more workers would not make it faster",
                )
            )
        backlogs = [seen.temp_queue / max(1, seen.in_flight) for seen in (first, *self._seen)]
        if backlogs[-1] > 0.5 and backlogs[-1] >= backlogs[0]:
            found.append(
                Advice(
                    "slow queue",
                    f"{last.temp_queue} slow samples wait to be finished, "
                    f"{backlogs[-1]:.0%} of what is in flight: raise num_workers or "
                    "max_queue_size, or timeout_threshold if they are not that slow",
                )
            )
        values = [seen.threshold for seen in (first, *self._seen)]
        changes = sum(a != b for a, b in itertools.pairwise(values))
        if changes > 5 and float("inf") not in values:
            found.append(
                Advice(
                    "threshold",
                    f"the threshold has changed {changes} times within {seconds:.0f} s, between "
                    f"{min(values):.3g} and {max(values):.3g} s: the costs of samples drift; set "
                    "timeout_threshold to have a fixed one",
                )
            )
        return found


def _waited(first: Observation, last: Observation) -> float:
    """The part of the time in between that the consumer has waited; where there are several, that
    one of them has."""
    seconds = last.now - first.now
    return min(1.0, (last.data_wait - first.data_wait) / seconds) if seconds > 0.0 else 0.0


def _remedy(idle_cores: float | None) -> str:
    cheaper = "make samples cheaper (loader.stats.steps tells what they cost)"
    if idle_cores is None:
        return (
            f"raise num_workers or max_workers, or {cheaper}. How many CPUs are idle could not be "
            "measured"
        )
    if idle_cores < 0.5:
        return (
            f"{cheaper}. No CPU is idle: to raise num_workers or max_workers would only help "
            "samples that wait, for a disk say"
        )
    return f"{idle_cores:.1f} CPUs are idle: raise num_workers or max_workers, or {cheaper}"
