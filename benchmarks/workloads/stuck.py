"""Costs with few samples that are stuck for long, at regular places: a network that does not answer
now and then."""

from __future__ import annotations


def one_in(every: int, length: int, fast: float, slow: float) -> list[float]:
    """Seconds of each sample: one in ``every``, in the middle of its group, is ``slow``."""
    return [slow if index % every == every // 2 else fast for index in range(length)]
