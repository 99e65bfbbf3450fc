"""What the tests of every framework use: a dataset that tells who loaded it, and two ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

ROOT = Path(__file__).resolve().parents[2]


class Numbers(Dataset[torch.Tensor]):
    """Sample i is a vector of i's. Notes the names of the threads that have loaded."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.loaded_by: set[str] = set()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded_by.add(threading.current_thread().name)
        return torch.full((2,), float(index))

    @property
    def loaded_on_workers(self) -> bool:
        """Whether our worker threads have loaded all, and at least something."""
        assert self.loaded_by, "nothing was loaded"
        return threading.main_thread().name not in self.loaded_by


class Noisy(Numbers):
    """Adds noise, another to every sample in every epoch."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(2)


class FirstComesLast(Numbers):
    """The first sample that is asked for is not ready before all others have been asked for."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.asked: list[int] = []
        self.all_asked = threading.Event()

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        if len(self.asked) == self.length:
            self.all_asked.set()
        elif index == self.asked[0]:
            assert self.all_asked.wait(30), f"only asked for {self.asked}"
        return super().__getitem__(index)


class Stream(IterableDataset[torch.Tensor]):
    """The samples of `Numbers`, one after the other."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return (torch.full((2,), float(i)) for i in range(self.length))


def values(batches: Any) -> list[list[float]]:
    """Which numbers are in which batch."""
    return [batch[:, 0].tolist() for batch in batches]


def flat(batches: Any) -> list[float]:
    """The numbers of all batches."""
    return [number for batch in batches for number in batch]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run_ranks(command: list[str], ranks: int) -> list[str]:
    """Run a program once for each rank, as `torchrun` would: what each printed."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        ends = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, ends, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in ends]
