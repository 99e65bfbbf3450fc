"""Samples that are views of something large, or refer to it: what is collated of each is small."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

ROWS, SHAPE, SMALL = 256, (3, 64, 64), 16
"""The large tensor has so many rows of this shape, 13 MB; small views are of so many numbers."""


class Image(torch.Tensor):
    """A subclass, as torchvision's and MONAI's are."""


@dataclass
class Record:
    """Someone's own class of samples."""

    image: torch.Tensor
    index: int


class Reference:
    """A sample that refers back to its dataset's data."""

    def __init__(self, data: Any, index: int) -> None:
        self.data = data
        self.index = index


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The values, without what else the tensors are: torch's own collate refuses gradients."""
    return torch.stack([tensor.detach().as_subclass(torch.Tensor) for tensor in tensors])


def _stack_pairs(samples: list[Any]) -> Any:
    return _stack([image for image, _ in samples]), torch.tensor([index for _, index in samples])


def _stack_records(samples: list[Any]) -> Any:
    return _stack_pairs([(sample.image, sample.index) for sample in samples])


def _number(samples: list[Any]) -> Any:
    numbers = torch.tensor([sample.index for sample in samples])
    return numbers.float(), numbers


def _with_path(image: torch.Tensor, index: int) -> torch.Tensor:
    image.__dict__["path"] = f"{index}.png"
    return image


@dataclass(frozen=True)
class Kind:
    """How a sample is made of row ``index`` of ``data``, and how batches of (values, indices)."""

    name: str
    make: Callable[[torch.Tensor, int], Any]
    collate: Callable[[list[Any]], Any] = default_collate


KINDS = (
    Kind("plain", lambda data, i: (data[i % ROWS], i)),
    Kind("numpy", lambda data, i: (data.numpy()[i % ROWS], i)),
    Kind("subclass", lambda data, i: (data[i % ROWS].as_subclass(Image), i)),
    Kind("small", lambda data, i: (data[i % ROWS, 0, 0, :SMALL].as_subclass(Image), i)),
    Kind("attributes", lambda data, i: (_with_path(data[i % ROWS], i), i)),
    Kind("gradient", lambda data, i: (data[i % ROWS].detach().requires_grad_(), i), _stack_pairs),
    Kind("dataclass", lambda data, i: Record(data[i % ROWS].as_subclass(Image), i), _stack_records),
    Kind("reference", lambda data, i: Reference(data, i), _number),
)


class Views(Dataset[Any]):
    """Samples of one kind that take ``seconds`` each."""

    def __init__(self, kind: Kind, length: int, seconds: float) -> None:
        self.kind = kind
        self.length = length
        self.seconds = seconds
        self.data = torch.arange(ROWS, dtype=torch.float32).view(ROWS, 1, 1, 1).repeat(1, *SHAPE)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return self.kind.make(self.data, index)
