"""Samples that make every worker run at once before any goes on, to see what workers cost."""

from __future__ import annotations

import multiprocessing
import os
import threading

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

PATIENCE = 60.0
"""Seconds after which a worker that waits alone fails, instead of hanging."""


class Crowd(Dataset[tuple[Tensor, int, int]]):
    """The first sample of every worker waits until ``workers`` of them are in it together.

    Per worker, not per index: a loader may hand one worker several indices at once. Each sample
    then does a little of everything (Python objects, numpy, torch), so that each worker has its own
    allocator state, and returns (16 floats, index, worker's identity): so little that what waits
    in the loader's window does not count.
    """

    def __init__(self, workers: int, length: int, *, processes: bool) -> None:
        self.length = length
        self.processes = processes
        self.barrier = multiprocessing.Barrier(workers) if processes else threading.Barrier(workers)
        # Kept across the fork: each child sees its own copy, as each thread its own attribute.
        self.local = threading.local()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        if not getattr(self.local, "met", False):
            self.barrier.wait(PATIENCE)
            self.local.met = True
        words = {str(number): [number] * 4 for number in range(50)}
        pixels = numpy.full((3, 32, 32), index % 7, dtype=numpy.float32) * 0.5 + len(words)
        image = torch.from_numpy(pixels).mul(2.0).add_(1.0)
        identity = os.getpid() if self.processes else threading.get_ident()
        return image.flatten()[:16].clone(), index, identity
