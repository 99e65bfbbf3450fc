"""Checkpoints between the parts of the composed transforms of a worker's own dataset."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset

from minato_async.attributes import attributes_of
from minato_async.checkpoint import checkpoint

#: The attributes under which datasets keep their transforms, by custom.
TRANSFORM_ATTRIBUTES = ("transform", "transforms", "target_transform")


def add_checkpoints(dataset: Any, own: Container[int] | None = None) -> None:
    """Put a checkpoint between the parts of the composed transforms of `dataset`, and of what
    torch's containers of datasets hold.

    They are changed in place, so `dataset` must be the calling worker's own; `own` has the
    identities of what is its own behind that, None stands for everything.

    Composed are: an `nn.Sequential`, a list, and whatever keeps a list or tuple in `transforms` and
    is called, as torchvision's and MONAI's `Compose` do. The checkpoints are parts of their own
    that return what they are given, so each part still meets the class that it knows.
    """
    left = [dataset]
    while left:
        dataset = left.pop()
        left += _inside(dataset)
        attributes = attributes_of(dataset) or {}
        for name in TRANSFORM_ATTRIBUTES:
            transform = attributes.get(name)
            if own is None or id(transform) in own:
                _interleave(transform)


def _inside(dataset: Any) -> list[Any]:
    cls = type(dataset)
    if cls is Subset:
        return [dataset.dataset]
    if cls in (ConcatDataset, ChainDataset, StackDataset):
        parts = dataset.datasets
        return list(parts.values() if isinstance(parts, dict) else parts)
    return []


def _interleave(transform: Any) -> None:
    if type(transform) is torch.nn.Sequential:
        modules = list(transform)
        if len(modules) > 1 and not any(type(module) is _CheckpointModule for module in modules):
            transform._modules.clear()
            pairs = [part for module in modules for part in (_CheckpointModule(), module)][1:]
            transform._modules.update((str(n), part) for n, part in enumerate(pairs))
        return
    if type(transform) is list:
        if all(map(callable, transform)):
            transform[:] = _interleaved(transform)
        return
    attributes = attributes_of(transform) or {}
    parts = attributes.get("transforms")
    # MONAI's lazy pipelines merge neighbouring transforms: a part between them would prevent it.
    if type(parts) in (list, tuple) and not getattr(transform, "lazy", False):
        own = _interleaved(parts)
        attributes["transforms"] = own if type(parts) is list else tuple(own)


def _interleaved(parts: Any) -> list[Any]:
    if any(part is _pass_checkpoint for part in parts):
        return list(parts)
    return [part for pair in parts for part in (_pass_checkpoint, pair)][1:]


def _pass_checkpoint(*values: Any) -> Any:
    checkpoint()
    return values[0] if len(values) == 1 else values


class _CheckpointModule(torch.nn.Module):
    def forward(self, value: Any) -> Any:
        checkpoint()
        return value
