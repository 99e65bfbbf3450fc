"""A training that a test kills: run by it, it forks a child for each life of the training.

python -m tests.resuming.training FOLDER EXECUTOR

The test writes a line for each life; the child's id comes back, and then a line for each step, as
it is taken. After each few steps the child saves its checkpoint: the step and the loader's state.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from minato_async import MinatoLoader

N = 210
BATCH = 5
#: Steps from one checkpoint to the next.
EVERY = 3


class Uneven:
    """Some samples fail, some take ten times as long as others."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        if fails(index):
            raise ValueError(f"sample {index} is broken")
        time.sleep(0.005 if index % 11 == 0 else 0.0005)
        return index


def fails(index: int) -> bool:
    return index % 13 == 5


def save(state: Any, path: Path) -> None:
    """Atomically: killed at whatever moment, there is the old one or the new one."""
    draft = path.with_suffix(".new")
    torch.save(state, draft)
    draft.replace(path)


def train(folder: Path, executor: str) -> None:
    """Until it is killed."""
    loader = MinatoLoader(
        Uneven(),
        BATCH,
        shuffle=True,
        num_workers=3,
        executor=executor,
        in_order=False,
        on_error="skip",
        collate_fn=list,
        prefetch_factor=4,
    )
    checkpoint, step = folder / "checkpoint", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        step = state["step"]
        loader.load_state_dict(state["loader"])
    while True:
        for batch in loader:
            step += 1
            tell({"step": step, "epoch": loader._epochs - 1, "batch": batch})
            if step % EVERY == 0:
                save({"step": step, "loader": loader.state_dict()}, checkpoint)


def tell(what: Any) -> None:
    # One call: a line is there as a whole, or not at all.
    os.write(1, f"{json.dumps(what)}\n".encode())


def main() -> None:
    folder, executor = Path(sys.argv[1]), sys.argv[2]
    tell("ready")
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            os.close(0)
            try:
                train(folder, executor)
            finally:
                os._exit(1)
        tell(child)
        os.waitpid(child, 0)
        tell("ended")


if __name__ == "__main__":
    main()
