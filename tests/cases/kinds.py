"""The loaders that the cases are tried on: torch's own, to prove a test right, and ours.

Ours come in every way that runs samples: the consumer's own thread, and each executor.
"""

from __future__ import annotations

from minato_async import MinatoLoader
from tests.loaders import SERIAL, TORCH, TORCH_WORKERS, LoaderKind

#: Every case runs on each. What a test counts or waits for is shared between processes.
EXECUTORS = ("thread", "process")


def _workers(executor: str) -> LoaderKind:
    return LoaderKind(f"minato-3-{executor}", MinatoLoader, 3, executor=executor)


#: Ours with workers.
WORKERS = tuple(map(_workers, EXECUTORS))
#: Ours in every way.
OURS = (SERIAL, *WORKERS)
#: torch's worker processes and our workers.
PARALLEL = (TORCH_WORKERS, *WORKERS)
#: All, with torch's loader in the consumer's thread, which costs no start of a process.
ALL = (TORCH, *OURS)
EVERY = (TORCH, TORCH_WORKERS, *OURS)
