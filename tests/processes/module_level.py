"""Datasets that a process which is started afresh can be given: their classes have a name."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from minato_async import per_worker
from tests.processes.support import PATIENCE, Countdown, kill_me, pause

#: The process that has imported this module, or one of whom it is a fork.
IMPORTED_IN = os.getpid()


class Numbers:
    """`n` samples that draw, and tell where they are; the one of index 13 kills its process while
    there are `lives`."""

    def __init__(self, n: int, lives: Countdown | None = None) -> None:
        self.n = n
        self.lives = lives
        self.epoch = 0
        self.begun_at = -1
        self.base = torch.arange(5000.0)
        self.view = self.base[5:]
        self.array = np.arange(5000)
        self.shared = torch.zeros(n).share_memory_()
        self.same = self.shared[:]
        self.opened = per_worker(os.getpid)
        self.made_in = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= {**state, "made_in": os.getpid()}

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if index == 13 and self.lives is not None and self.lives.take():
            kill_me()
        info = get_worker_info()
        assert info.num_workers == 2
        # `set_up` has changed this worker's copy, and nobody else's.
        assert self.begun_at == info.id
        # What it had opened when it was unpickled, no other process would have.
        assert self.opened() == self.made_in == os.getpid()
        # It may have processes of its own.
        assert not multiprocessing.current_process().daemon
        self.view[0] = -1.0
        assert self.base[5] == -1.0
        self.array[0] += 1
        self.same[index] = 1 + self.epoch
        assert self.shared[index] == 1 + self.epoch
        drawn = random.random(), np.random.rand(), torch.rand(3), torch.is_grad_enabled()
        return index, self.epoch, drawn, (os.getpid(), os.getppid(), IMPORTED_IN)


def set_up(worker: int) -> None:
    get_worker_info().dataset.begun_at = worker


def plus_noise(sample: tuple[Any, ...]) -> tuple[Any, ...]:
    return *sample, torch.randn(2)


def plus_ten(sample: torch.Tensor) -> torch.Tensor:
    return sample + 10


def as_list(samples: list[Any]) -> list[Any]:
    return samples


class Stream(IterableDataset[torch.Tensor]):
    """`n` samples, shared out among the workers; each tells index, shard and process."""

    def __init__(
        self, n: int, lives: Countdown | None = None, end: Callable[[], None] = kill_me
    ) -> None:
        self.n = n
        self.lives = lives
        self.end = end

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        for index in range(info.id, self.n, info.num_workers):
            if index == 13 and self.lives is not None and self.lives.take():
                self.end()
            yield torch.tensor([index, info.id, os.getpid()])


class Held:
    """Takes its time to be unpickled."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index

    def __reduce__(self) -> tuple[Any, ...]:
        return pause, (PATIENCE,)


class Closed:
    """Can be pickled; what was pickled cannot be made again."""

    def __init__(self, part: Any = None) -> None:
        self.part = part

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ("the archive has moved",)


def refuse(why: str) -> None:
    raise ValueError(why)
