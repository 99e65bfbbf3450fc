"""Runs the example several times, each time in processes forked from this one.

So torch is imported once. The results, checkpoints, go into the folder that is the argument.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

# Every optimizer imports it; here, once for all.
import torch._dynamo  # noqa: F401

from examples import imagenet_style
from tests.frameworks.support import free_port

#: After how many steps a checkpoint is saved, and at which of them the training is killed: in the
#: first epoch, and in the second.
KILLED = ((5, 3), (7, 5))

_fork = multiprocessing.get_context("fork")


def _rank(rank: int, ranks: int, port: int, options: list[str]) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    sys.argv = ["imagenet_style", *options]
    imagenet_style.main()


def run(ranks: int, *options: str) -> None:
    port = free_port()
    processes = [
        _fork.Process(target=_rank, args=(rank, ranks, port, list(options)))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(f"{ranks} ranks, {options}: {[process.exitcode for process in processes]}")


def killed(at: int, *options: str) -> None:
    """Ends as if it was killed when it is about to save for the `at`-th time."""

    def rank() -> None:
        save, saves = imagenet_style.save, 0

        def save_or_die(state: Any, path: Path) -> None:
            nonlocal saves
            saves += 1
            if saves == at:
                os.kill(os.getpid(), signal.SIGKILL)
            save(state, path)

        imagenet_style.save = save_or_die
        _rank(0, 1, free_port(), list(options))

    process = _fork.Process(target=rank)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def main(folder: Path) -> None:
    first = folder / "torch-first.pt"
    run(1, "--loader", "torch", "--epochs", "1", "--checkpoint", str(first))
    for loader in ("torch", "minato"):
        common = ("--loader", loader, "--epochs", "2", "--checkpoint")
        for ranks in (1, 2):
            run(ranks, *common, str(folder / f"{loader}-{ranks}.pt"))
        run(1, *common, str(folder / f"{loader}-resumed.pt"), "--resume", str(first))
    for steps, at in KILLED:
        path = str(folder / f"killed-{steps}.pt")
        common = ("--epochs", "2", "--checkpoint", path, "--checkpoint-steps", str(steps))
        killed(at, *common)
        shutil.copy(path, folder / f"left-{steps}.pt")
        run(1, *common, "--resume", path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
