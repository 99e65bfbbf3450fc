"""Checkpoints between the parts of a composed transform, in a copy of it."""

from __future__ import annotations

import copy
from typing import Any

import torch

from minato_async.checkpoint import checkpoint

#: The attributes under which datasets keep their transforms, by custom.
TRANSFORM_ATTRIBUTES = ("transform", "transforms", "target_transform")


def with_checkpoints(transform: Any) -> Any:
    """A copy of a composed `transform` with a checkpoint between its parts; anything else as it
    is.

    Composed are: an `nn.Sequential`, a list, and whatever keeps a list in `transforms` and is
    called, as torchvision's and MONAI's `Compose` do. The checkpoints are parts of their own that
    return what they are given, so each part still meets the class that it knows.
    """
    if type(transform) is torch.nn.Sequential:
        modules = [part for pair in transform for part in (_CheckpointModule(), pair)]
        return torch.nn.Sequential(*modules[1:]).train(transform.training)
    if type(transform) is list and len(transform) > 1 and all(map(callable, transform)):
        return _interleaved(transform)
    parts = getattr(transform, "transforms", None)
    # MONAI's lazy pipelines merge neighbouring transforms: a part between them would prevent it.
    if type(parts) is list and len(parts) > 1 and not getattr(transform, "lazy", False):
        copied = copy.copy(transform)
        copied.transforms = _interleaved(parts)
        return copied
    return transform


def _interleaved(parts: list[Any]) -> list[Any]:
    return [part for pair in parts for part in (_pass_checkpoint, pair)][1:]


def _pass_checkpoint(*values: Any) -> Any:
    checkpoint()
    return values[0] if len(values) == 1 else values


class _CheckpointModule(torch.nn.Module):
    def forward(self, value: Any) -> Any:
        checkpoint()
        return value
