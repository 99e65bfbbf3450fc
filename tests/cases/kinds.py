"""The loaders that the cases are tried on: torch's own, to prove a test right, and ours.

Ours come in every way that runs samples: the consumer's own thread, and each executor.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from tests.loaders import SERIAL, TORCH, TORCH_WORKERS, LoaderKind

#: To run every case on processes too, add "process". What a test counts or waits for is then
#: shared between processes, as torch's workers need it already.
EXECUTORS = ("thread",)


@dataclass(frozen=True)
class WorkerKind(LoaderKind):
    """Our loader with workers of one executor."""

    executor: str = "thread"

    def __call__(self, dataset: Any, *args: Any, **options: Any) -> DataLoader[Any]:
        if "executor" in inspect.signature(MinatoLoader.__init__).parameters:
            options = {"executor": self.executor} | options
        return super().__call__(dataset, *args, **options)


def _workers(executor: str) -> WorkerKind:
    return WorkerKind(f"minato-3-{executor}", MinatoLoader, 3, executor=executor)


#: Ours with workers.
WORKERS = tuple(map(_workers, EXECUTORS))
#: Ours in every way.
OURS = (SERIAL, *WORKERS)
#: torch's worker processes and our workers.
PARALLEL = (TORCH_WORKERS, *WORKERS)
#: All, with torch's loader in the consumer's thread, which costs no start of a process.
ALL = (TORCH, *OURS)
EVERY = (TORCH, TORCH_WORKERS, *OURS)
