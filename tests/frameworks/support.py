"""What the tests of every framework use: a dataset that tells who loaded it, and two ranks."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from tests.threads import wait_for_new_threads

ROOT = Path(__file__).resolve().parents[2]

#: Seconds after which a wait that should have ended long ago fails its test.
PATIENCE = 60.0
#: Seconds for programs that import a framework, on a machine that may be busy.
TIMEOUT = 270.0

_fork = multiprocessing.get_context("fork")


class Loads:
    """How often each of some samples was loaded, and whether by workers: threads, or processes
    that are forked, which share this memory."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._counts = mmap.mmap(-1, length + 1)

    def __reduce__(self) -> Any:
        return Loads, (self._length,)

    def add(self, index: int) -> None:
        self._counts[index] += 1
        if get_worker_info() is None:
            self._counts[self._length] = 1

    @property
    def count(self) -> int:
        return sum(self._counts[: self._length])

    @property
    def on_workers(self) -> bool:
        """Whether workers have loaded all, and at least something."""
        assert self.count, "nothing was loaded"
        return not self._counts[self._length]


class Numbers(Dataset[torch.Tensor]):
    """Sample i is a vector of i's. Notes who has loaded."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.loads = Loads(length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loads.add(index % self.length)
        return torch.full((2,), float(index))


class Noisy(Numbers):
    """Adds noise, another to every sample in every epoch."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(2)


class FirstComesLast(Numbers):
    """The first sample that is asked for is not ready before all others have been asked for."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._first = _fork.Value("i", -1)
        self._others = _fork.Semaphore(0)

    def __getitem__(self, index: int) -> torch.Tensor:
        with self._first.get_lock():
            if self._first.value < 0:
                self._first.value = index
        if index != self.first:
            self._others.release()
        else:
            for number in range(self.length - 1):
                assert self._others.acquire(timeout=PATIENCE), f"only asked for {number} others"
        return super().__getitem__(index)

    @property
    def first(self) -> int:
        first: int = self._first.value
        return first


class BothAtWork(Numbers):
    """Of two workers, none has loaded anything before the other has begun."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._began = [_fork.Event(), _fork.Event()]

    def __getitem__(self, index: int) -> torch.Tensor:
        me = get_worker_info().id
        self._began[me].set()
        assert self._began[1 - me].wait(PATIENCE), "the other did not begin"
        return super().__getitem__(index)


class Stream(IterableDataset[torch.Tensor]):
    """The samples of `Numbers`, one after the other."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return (torch.full((2,), float(i)) for i in range(self.length))


@contextlib.contextmanager
def made_on(base: Any, *classes: Any) -> Iterator[None]:
    """Within this, `classes` that a framework has made on torch's loader are made on `base`: as if
    torch's name had stood for it when the framework was imported."""
    before = [made.__bases__ for made in classes]
    for made in classes:
        made.__bases__ = tuple(base if cls is DataLoader else cls for cls in made.__bases__)
    try:
        yield
    finally:
        for made, bases in zip(classes, before, strict=True):
            made.__bases__ = bases


def our_workers() -> set[int]:
    """What tells the workers that are alive apart: threads, and the processes that the one forks
    which we have forked."""
    threads = {t.native_id for t in threading.enumerate() if t.name.startswith("minato-worker")}
    fork_servers = psutil.Process().children()
    return threads | {
        worker.pid for fork_server in fork_servers for worker in fork_server.children()
    }


def all_threads_end() -> None:
    """All but the main one."""
    assert wait_for_new_threads({threading.main_thread()}, PATIENCE) == []


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
        ends = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, ends, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in ends]
