"""What any loader is asked for, and what an adapter must say about itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.data import Dataset, default_collate

PREFETCH_FACTOR = 2
"""torch's default window, in batches per worker; peers with a buffer to size get the same."""

Home = Literal["caller", "threads", "processes"]
"""Where samples run: in the consumer's thread, in threads, or in forked processes."""


@dataclass(frozen=True)
class Plan:
    """The same request for every loader.

    ``dataset`` of ``length`` samples in batches of ``batch_size`` (the last may be short), by
    ``workers`` workers; ``shuffle``: a new random order each epoch; ``collate``: torch's default
    unless a workload needs another.
    """

    dataset: Dataset[Any]
    length: int
    batch_size: int
    workers: int
    shuffle: bool = False
    collate: Callable[[list[Any]], Any] = default_collate

    def order(self) -> Sequence[int]:
        """The epoch's indices, for loaders that bring no sampler of their own."""
        return torch.randperm(self.length).tolist() if self.shuffle else range(self.length)


@dataclass(frozen=True)
class Peer:
    """One loader in one mode.

    ``ordered``: batches come exactly in the sampler's order; ``modules`` must be importable.
    ``load`` builds an iterable of batches; everything that a user would wait for (threads,
    processes) starts no earlier than in its ``iter()``.
    """

    name: str
    home: Home
    ordered: bool
    load: Callable[[Plan], Iterable[Any]]
    modules: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """The first module that cannot be imported here, or ``None``."""
        for module in self.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                return f"{module} ({error})"
        return None
