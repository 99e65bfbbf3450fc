"""Samples whose kind of cost changes while time goes on: they compute, then wait, then compute."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.workloads.busy import python_work
from benchmarks.workloads.sleeping import PAYLOAD


@dataclass(frozen=True)
class Phase:
    """For ``seconds`` samples cost ``computes`` and ``waits`` seconds, on average."""

    seconds: float
    computes: float = 0.0
    waits: float = 0.0


class Changing(Dataset[tuple[Tensor, int]]):
    """Sample ``index`` waits and computes as the phase says in which it begins; endless enough.

    Each costs between half and one and a half of the mean, by its index. ``speed`` is iterations of
    :func:`~benchmarks.workloads.busy.python_work` a second; ``begin`` starts the first phase, and
    the last one does not end. ``used`` gets (moment, CPU seconds that it took) of each sample that
    is finished: how fast the CPUs are changes too.
    """

    LENGTH = 10_000_000

    def __init__(self, phases: Sequence[Phase], speed: float) -> None:
        self.ends = list(itertools.accumulate(phase.seconds for phase in phases))
        self.phases = phases
        self.speed = speed
        self.payload = torch.zeros(PAYLOAD)
        self.began = time.perf_counter()
        self.used: list[tuple[float, float]] = []

    def begin(self) -> None:
        """The first phase starts now."""
        self.began = time.perf_counter()

    def __len__(self) -> int:
        return self.LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        elapsed, before = time.perf_counter() - self.began, time.thread_time()
        number = sum(elapsed >= end for end in self.ends[:-1])
        phase, factor = self.phases[number], random.Random(index).uniform(0.5, 1.5)
        if phase.waits:
            time.sleep(phase.waits * factor)
        if phase.computes:
            python_work(round(phase.computes * factor * self.speed))
        self.used.append((time.perf_counter() - self.began, time.thread_time() - before))
        return self.payload, index
