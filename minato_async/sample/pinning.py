"""Pinned memory: from where an accelerator copies while the program goes on."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory


def pins_memory(loader: DataLoader[Any], for_device: bool = False) -> bool:
    """Whether batches are copied to pinned memory, because `loader` was asked to or they are to be
    copied to a device which has a use for it: only an accelerator has, and torch cannot do it for
    MPS."""
    if not (loader.pin_memory or for_device) or not torch.accelerator.is_available():
        return False
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is None or accelerator.type != "mps"


def pin(batch: Any) -> Any:
    """`batch` with its tensors in pinned memory; what has a `pin_memory` says itself how."""
    accelerator = torch.accelerator.current_accelerator()
    return pin_memory(batch, accelerator and accelerator.type)  # type: ignore[no-untyped-call]
