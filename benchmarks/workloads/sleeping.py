"""Samples that wait, as for a disk or a network: the sleep is the work."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.workloads.guard import ConcurrencyGuard

PAYLOAD = (3, 16, 16)
"""Shape of the float tensor each sample returns: small enough that a batch of 32 is stacked without
torch's own threads, so that the rows compare loaders and not thread settings."""


class Sleeping(Dataset[tuple[Tensor, int, float]]):
    """Sample ``index`` sleeps ``costs[index]`` seconds and returns (tensor, index, cost).

    The cost it returns is measured: wall seconds (monotonic) inside the sample.
    """

    def __init__(self, costs: Sequence[float], guard: ConcurrencyGuard) -> None:
        self.costs = costs
        self.guard = guard
        self.payload = torch.zeros(PAYLOAD)

    def __len__(self) -> int:
        return len(self.costs)

    def __getitem__(self, index: int) -> tuple[Tensor, int, float]:
        with self.guard:
            begin = time.perf_counter()
            time.sleep(self.costs[index])
            return self.payload, index, time.perf_counter() - begin
