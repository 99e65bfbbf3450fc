"""Distributions of sample costs, in seconds, drawn once from a fixed seed.

The position of every slow sample is therefore the same for all loaders and in all rounds.
"""

from __future__ import annotations

import random

SEED = 20261


def bimodal(
    length: int, *, fast: float = 0.004, slow: float = 0.100, share: float = 0.1, seed: int = SEED
) -> list[float]:
    """A share of the samples is slow, exactly, at random positions (default 90 % 4 ms, 10 %
    100 ms: mean 13.6 ms)."""
    count = round(length * share)
    costs = [slow] * count + [fast] * (length - count)
    random.Random(seed).shuffle(costs)
    return costs


def rare_slow(length: int, *, fast: float = 0.002, slow: float = 0.500) -> list[float]:
    """1 % of the samples is 250 times slower (2 ms and 500 ms), at random positions."""
    return bimodal(length, fast=fast, slow=slow, share=0.01)


def uniform(length: int, cost: float) -> list[float]:
    """Every sample costs the same."""
    return [cost] * length
