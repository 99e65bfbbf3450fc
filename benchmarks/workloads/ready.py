"""Trivial samples: tensors that are there already. What is left is the loader's own cost."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.workloads.guard import ConcurrencyGuard


class ReadyTensors(Dataset[Tensor]):
    """Returns one of ``pool`` ready float tensors; nothing is computed or copied.

    Several tensors, not one, so that collation reads memory as it would for a real dataset held in
    memory. The sample carries no index: that would cost more than the sample.
    """

    def __init__(self, shape: tuple[int, ...], length: int, pool: int) -> None:
        self.length = length
        self.pool = pool
        self.ready = [torch.full(shape, float(number)) for number in range(pool)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return self.ready[index % self.pool]


class CheckedTensors(Dataset[tuple[Tensor, int]]):
    """The same samples with index and guard, for an epoch that is checked and not timed."""

    def __init__(self, tensors: ReadyTensors, length: int, guard: ConcurrencyGuard) -> None:
        self.tensors = tensors
        self.length = length
        self.guard = guard

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.guard:
            return self.tensors[index], index
