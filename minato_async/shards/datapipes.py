"""DataPipes, which torch has deprecated: its graph settings, applied as its own loader does.

Nothing of it happens on threads of ours: torch walks the graph of pipes with the help of hooks that
belong to the whole process. For threads it is done by the consumer's, for processes by each for
its own shard.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterDataPipe, graph_settings
from torch.utils.data import dataloader as torch_dataloader

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class PipeSharding:
    """How pipes are shared out among the shards of all ranks."""

    ranks: int
    rank: int
    #: Shards of each rank.
    shards: int

    def shard_of(self, wrapped: Any, number: int, seed: int) -> Any:
        """Shard `number` of this rank, whose random seed in its first epoch is `seed`: a copy of
        the whole graph, as a worker process of torch's has. `wrapped` is what torch's loader makes
        of a pipe, so that it can be pickled; here it need not be."""
        pipe = type(wrapped)(copy.deepcopy(wrapped._datapipe))
        seed_pipe(pipe, seed)
        self.shard(pipe, number)
        return pipe

    def shard(self, pipe: Any, number: int) -> None:
        """`pipe` is to yield what belongs to shard `number` of this rank."""
        instances, instance = self.shards * self.ranks, number * self.ranks + self.rank
        graph_settings.apply_sharding(pipe, instances, instance)


def seed_pipe(pipe: Any, seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed)
    graph_settings.apply_random_seed(pipe, generator)


class PipeSettings:
    """What one iterator tells the pipes of its loader: their shard and their random seed."""

    def __init__(self, shards: int) -> None:
        self._group: ProcessGroup | Any = None
        if dist.is_available() and dist.is_initialized():
            self._group = dist.new_group(backend="gloo")
        ranks, rank = torch_dataloader._get_distributed_settings()  # type: ignore[no-untyped-call]
        self.sharding = PipeSharding(ranks, rank, shards)

    def draw_seed(self, loader: DataLoader[Any]) -> int:
        """The seed with which all shards of all ranks shuffle alike, as torch draws it."""
        seed: int = torch_dataloader._share_dist_seed(loader.generator, self._group)  # type: ignore[no-untyped-call]
        return seed


def settings_for(loader: DataLoader[Any], shards: int) -> PipeSettings | None:
    return PipeSettings(shards) if isinstance(loader.dataset, IterDataPipe) else None
