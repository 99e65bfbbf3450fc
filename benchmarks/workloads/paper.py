"""The distributions of costs in the MinatoLoader paper's workloads, fitted to its published table.

Seconds a sample. They can be scaled: the shape of a tail stays, and an epoch lasts seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from benchmarks.workloads.costs import SEED, rare_slow


def segmentation(length: int) -> list[float]:
    """KiTS19: lognormal, median 0.48 s."""
    chance = random.Random(SEED)
    return [min(2.230, chance.lognormvariate(6.172, 0.3575) / 1000) for _ in range(length)]


def detection(length: int) -> list[float]:
    """COCO: a narrow lognormal around 27 ms, and 3.5 % of 70 to 176 ms."""
    chance = random.Random(SEED)
    return [
        chance.uniform(0.070, 0.176)
        if chance.random() < 0.035
        else chance.lognormvariate(math.log(0.0274), 0.14)
        for _ in range(length)
    ]


def speech_3s(length: int) -> list[float]:
    """LibriSpeech: every fifth sample 3 s, the others 0.5 s."""
    return [3.008 if index % 5 == 4 else 0.508 for index in range(length)]


def speech_10s(length: int) -> list[float]:
    """The same with 10 s."""
    return [10.008 if index % 5 == 4 else 0.508 for index in range(length)]


WORKLOADS: dict[str, Callable[[int], list[float]]] = {
    "segmentation": segmentation,
    "detection": detection,
    "speech-3s": speech_3s,
    "speech-10s": speech_10s,
    "rare": rare_slow,
}
"""Costs by the name of the workload; "rare": 1 % of the samples is 250 times slower."""


def scaled(costs: Sequence[float], mean: float) -> list[float]:
    """The same costs with another mean."""
    factor = mean * len(costs) / sum(costs)
    return [cost * factor for cost in costs]
