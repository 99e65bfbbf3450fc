"""DataPipes, which torch has deprecated: its graph settings, applied as its own loader does.

All of it happens in the consumer's thread: torch walks the graph of pipes with the help of hooks
that belong to the whole process.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterDataPipe, graph_settings
from torch.utils.data import dataloader as torch_dataloader

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class PipeSettings:
    """What one iterator tells the pipes of its loader: their shard and their random seed."""

    def __init__(self) -> None:
        self._group: ProcessGroup | None = None
        if dist.is_available() and dist.is_initialized():
            self._group = dist.new_group(backend="gloo")

    def draw_seed(self, loader: DataLoader[Any]) -> int:
        """The seed with which all shards of all ranks shuffle alike, as torch draws it."""
        seed: int = torch_dataloader._share_dist_seed(loader.generator, self._group)  # type: ignore[no-untyped-call]
        return seed

    def seed(self, pipe: Any, seed: int) -> None:
        generator = torch.Generator()
        generator.manual_seed(seed)
        graph_settings.apply_random_seed(pipe, generator)

    def shard(self, pipe: Any, number: int, count: int) -> None:
        """`pipe` is to yield what belongs to shard `number` of this rank's `count`."""
        ranks, rank = torch_dataloader._get_distributed_settings()  # type: ignore[no-untyped-call]
        graph_settings.apply_sharding(pipe, count * ranks, number * ranks + rank)


def settings_for(loader: DataLoader[Any]) -> PipeSettings | None:
    return PipeSettings() if isinstance(loader.dataset, IterDataPipe) else None


def copy_pipe(wrapped: Any) -> Any:
    """A copy of the whole graph, as a worker process would have. `wrapped` is what torch's loader
    makes of a pipe, so that it can be pickled; here it need not be."""
    return type(wrapped)(copy.deepcopy(wrapped._datapipe))
