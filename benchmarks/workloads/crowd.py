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


class Crowd(Dataset[tuple[Tensor | float, int, int]]):
    """The first sample of every worker waits until ``workers`` of them are in it together.

    Per worker, not per index: a loader may hand one worker several indices at once. Each sample
    then does a little of everything (Python objects, numpy, torch: 12 KB arrays), so that each
    worker has its own allocator state, and returns (result, index, worker's identity).

    ``tensors``: whether the result is a tensor of 16 floats or a plain number. So small a result is
    no memory in itself, but a tensor that waits in the loader's window between the freed arrays of
    other samples keeps the C library from using their space as a whole.
    """

    def __init__(self, workers: int, length: int, *, processes: bool, tensors: bool) -> None:
        self.length = length
        self.processes = processes
        self.tensors = tensors
        self.barrier = multiprocessing.Barrier(workers) if processes else threading.Barrier(workers)
        # Kept across the fork: each child sees its own copy, as each thread its own attribute.
        self.local = threading.local()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor | float, int, int]:
        if not getattr(self.local, "met", False):
            self.barrier.wait(PATIENCE)
            self.local.met = True
        words = {str(number): [number] * 4 for number in range(50)}
        pixels = numpy.full((3, 32, 32), index % 7, dtype=numpy.float32) * 0.5 + len(words)
        image = torch.from_numpy(pixels).mul(2.0).add_(1.0)
        identity = os.getpid() if self.processes else threading.get_ident()
        result = image.flatten()[:16].clone() if self.tensors else float(image[0, 0, 0])
        return result, index, identity
