"""Samples in two steps of equal cost, so that a slow one can be diverted between them."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset


class Halves(Dataset[Any]):
    """Samples of (tensor, index, cost) whose first half is a sample of ``first``, and whose second
    half is one of ``second``: that is the transform ``rest``, and costs are added up."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> Any:
        return self.first[index]

    def rest(self, sample: Any) -> Any:
        """The second step."""
        _, index, cost = sample
        tensor, index, more = self.second[index]
        return tensor, index, cost + more
