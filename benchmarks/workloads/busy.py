"""Samples that compute: pure Python, or numpy, on one thread, a fixed number of iterations.

A cost in seconds is turned into iterations once, by calibration, so that every loader does the
same work in every round, however fast the machine happens to be then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.workloads.guard import ConcurrencyGuard
from benchmarks.workloads.sleeping import PAYLOAD

Work = Callable[[int], float]
"""Does so many iterations and returns a number that depends on all of them."""


def python_work(iterations: int) -> float:
    """Pure Python: integer arithmetic and a list, as in parsing or augmentation code."""
    state = 1
    recent: list[int] = [0] * 16
    for step in range(iterations):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        recent[step & 15] = state >> 7
    return float(sum(recent))


def numpy_work(iterations: int) -> float:
    """numpy on 64 KiB of floats: element-wise operators that allocate their results."""
    values = numpy.linspace(0.0, 1.0, 16_384, dtype=numpy.float32)
    for _ in range(iterations):
        values = numpy.sqrt(values * numpy.float32(0.5) + numpy.float32(0.25))
    return float(values[0])


WORKS: dict[str, Work] = {"python": python_work, "numpy": numpy_work}
"""The kinds of work by name."""


def calibrate(work: Work, *, seconds: float = 0.02, tries: int = 7) -> float:
    """Iterations a second on this machine: the best of ``tries`` runs of about ``seconds``.

    The best, because whatever else runs on the machine can only make it slower.
    """
    count = 1
    while _cpu_seconds(work, count) < seconds:
        count *= 2
    return count / min(_cpu_seconds(work, count) for _ in range(tries))


def _cpu_seconds(work: Work, count: int) -> float:
    begin = time.thread_time()
    work(count)
    return time.thread_time() - begin


class Busy(Dataset[tuple[Tensor, int, float]]):
    """Sample ``index`` does ``counts[index]`` iterations and returns (tensor, index, cost).

    The cost it returns is measured: CPU seconds of the thread that ran it.
    """

    def __init__(self, counts: Sequence[int], work: Work, guard: ConcurrencyGuard) -> None:
        self.counts = counts
        self.work = work
        self.guard = guard
        self.payload = torch.zeros(PAYLOAD)

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: int) -> tuple[Tensor, int, float]:
        with self.guard:
            begin = time.thread_time()
            self.work(self.counts[index])
            return self.payload, index, time.thread_time() - begin
