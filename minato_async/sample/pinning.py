"""Pinned memory: from where an accelerator copies while the program goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory


def pins_memory(loader: DataLoader[Any], elsewhere: bool = False) -> bool:
    """Whether batches are to lie in pinned memory, because `loader` was asked for that or will copy
    them to an accelerator, as they are in any case if they go `elsewhere`: nothing else has a use
    for it, and torch cannot do it for MPS."""
    given: Any = loader
    device = None if given.device is None else torch.device(given.device)
    wanted = elsewhere or loader.pin_memory or (device is not None and device.type != "cpu")
    if not wanted or not torch.accelerator.is_available():
        return False
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is None or accelerator.type != "mps"


def empty_pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """As `torch.empty`, in pinned memory if there is any to be had."""
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    except RuntimeError:  # as much is pinned as the system allows
        return torch.empty(shape, dtype=dtype)


def pin(batch: Any) -> Any:
    """`batch` with its tensors in pinned memory; what has a `pin_memory` says itself how."""
    accelerator = torch.accelerator.current_accelerator()
    return pin_memory(batch, accelerator and accelerator.type)  # type: ignore[no-untyped-call]
