"""The process in which one loader is measured once: ``python -m minato_async.cli.demo.child``.

It reads a `Task` from its standard input and writes its progress and its `Result` to its
standard output, one JSON object a line. A process of its own, so that nothing that one loader
leaves behind (caches, memory, threads) is there for the next.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import torch

from minato_async.cli.demo.dataset import PhotoCrops
from minato_async.cli.demo.loaders import make_loader, pick_device
from minato_async.cli.demo.messages import Result, Task
from minato_async.cli.demo.model import SmallConvNet
from minato_async.cli.demo.training import train
from minato_async.cli.machine import gil_state

# The workers have the other cores. Set for every loader alike.
_TRAINING_THREADS = 1

# Seconds between two messages: often enough for a bar, too seldom to disturb what is measured.
_MESSAGE_EVERY = 0.2


def measure(task: Task, out: TextIO) -> Result:
    """Build the task's loader, train from it, and tell of the progress.

    Args:
        task: What to do.
        out: Where the messages about progress go.
    """
    torch.set_num_threads(_TRAINING_THREADS)
    device = pick_device()
    dataset = PhotoCrops([Path(path) for path in task.paths], task.samples, task.seed)
    torch.manual_seed(task.seed)
    model = SmallConvNet(len(task.paths)).to(device)
    loader = make_loader(task.loader, dataset, task.batch_size, task.workers)
    said = time.monotonic()

    def on_batch(batches: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= _MESSAGE_EVERY:
            said = now
            _say(out, {"batches": batches})

    seen = train(loader, dataset, model, device, task.epochs, on_batch)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Result(seen=seen, gil=gil_state(), device=name, threads=torch.get_num_threads())


def main() -> None:
    """Do the one task that standard input holds."""
    # What a library prints must not end up between the messages.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    fields = json.loads(sys.stdin.read())
    task = Task(**{**fields, "paths": tuple(fields["paths"])})
    _say(out, {"result": measure(task, out).as_json()})
    out.close()


def _say(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


# Workers that are not forked import this file again: they must not measure.
if __name__ == "__main__":
    main()
