"""The training that each loader feeds in turn, and what it sees of its loader."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minato_async.cli.demo.dataset import PhotoCrops
from minato_async.cli.demo.loaders import make_loader
from minato_async.cli.demo.model import SmallConvNet
from minato_async.cli.machine import gil_state
from minato_async.cli.measure.child import tell
from minato_async.cli.measure.epoch import Epoch, Receipt, consume

# The workers have the other cores. Set for every loader alike.
_TRAINING_THREADS = 1

# Seconds between two messages: often enough for a bar, too seldom to disturb what is measured.
_MESSAGE_EVERY = 0.2


@dataclass(frozen=True)
class Task:
    """One training.

    Attributes:
        loader: Key of `options.LOADERS`.
        paths: The photos' files.
        workers: Workers of the loader.
        epochs: Epochs to train.
        batch_size: Samples in a batch.
        samples: Samples in an epoch.
        seed: Seed of everything random.
    """

    loader: str
    paths: tuple[str, ...]
    workers: int
    epochs: int
    batch_size: int
    samples: int
    seed: int


@dataclass(frozen=True)
class Training:
    """What one training saw; times in seconds.

    Attributes:
        samples: Samples trained on.
        batches: Batches trained on.
        seconds: Length of all epochs: from before ``iter()`` until ``next()`` said it is over.
        waited: Part of it spent inside ``next()``.
        first_batch: Per epoch, from before ``iter()`` until the first batch was there.
        gaps: Between the arrivals of successive batches of an epoch, training step included.
        most_at_once: Most samples that were being made at one moment.
        checksum: Sum over the bits of all pixels of all samples, independent of their order.
        loss: Mean loss of the last epoch's samples.
        accuracy: Share of the last epoch's samples told right, 0 to 1. Every crop is new, so
            this is not a matter of having seen it before.
        gil: State of the GIL after the training, as `machine.gil_state` gives it.
        device: Where the network was trained.
        threads: Threads that torch used for one operation of the training.
        peak_memory: Bytes, of all its processes, as `memory.method` says.
    """

    samples: int
    batches: int
    seconds: float
    waited: float
    first_batch: list[float]
    gaps: list[float]
    most_at_once: int
    checksum: int
    loss: float
    accuracy: float
    gil: str
    device: str
    threads: int
    peak_memory: int = 0


def measure(**task: Any) -> dict[str, Any]:
    """Train from one loader and return what was seen, as JSON can carry it.

    In a fresh process, so that nothing that one loader leaves behind (caches, memory, threads) is
    there for the next. Meanwhile it tells the number of batches so far. `task`: the fields of one.
    """
    return asdict(_train(Task(**{**task, "paths": tuple(task["paths"])})))


def _train(task: Task) -> Training:
    torch.set_num_threads(_TRAINING_THREADS)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = PhotoCrops([Path(path) for path in task.paths], task.samples, task.seed)
    torch.manual_seed(task.seed)
    model = SmallConvNet(len(task.paths)).to(device)
    loader = make_loader(task.loader, dataset, task.batch_size, task.workers)
    _warm_up(dataset, model, device)

    trainer = _Trainer(model, device)
    epochs: list[Epoch] = []
    for number in range(task.epochs):
        dataset.set_epoch(number)
        trainer.begin_epoch()
        # What decides the order of samples, whichever loader draws it.
        torch.manual_seed(task.seed + 1 + number)
        epochs.append(consume(loader, trainer.read))
    last = epochs[-1].receipt.samples
    return Training(
        samples=sum(epoch.receipt.samples for epoch in epochs),
        batches=trainer.batches,
        seconds=sum(epoch.seconds for epoch in epochs),
        waited=sum(epoch.waited for epoch in epochs),
        first_batch=[epoch.first for epoch in epochs],
        gaps=[gap for epoch in epochs for gap in epoch.gaps],
        most_at_once=most_at_once(trainer.spans),
        checksum=trainer.checksum,
        loss=trainer.losses / last,
        accuracy=trainer.right / last,
        gil=gil_state(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        threads=torch.get_num_threads(),
    )


class _Trainer:
    """Does a step with every batch that it reads, and adds up what the batches were."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        self.batches = 0
        self.checksum = 0
        self.spans: list[tuple[float, float]] = []
        self._told = time.monotonic()

    def begin_epoch(self) -> None:
        self.losses, self.right = 0.0, 0

    def read(self, batch: Any, receipt: Receipt) -> None:
        pixels, record = batch
        labels = record[:, 0].long().to(self.device)
        loss, right = _step(self.model, self.optimizer, pixels.to(self.device), labels)
        self.losses += loss * len(pixels)
        self.right += right
        receipt.samples += len(pixels)
        self.batches += 1
        # Integers, for their sum is exact and so the same in any order.
        self.checksum += int(pixels.view(torch.int32).sum(dtype=torch.int64))
        self.spans.extend((begin, end) for begin, end in record[:, 1:].tolist())
        if (now := time.monotonic()) - self._told >= _MESSAGE_EVERY:
            self._told = now
            tell(self.batches)


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pixels: torch.Tensor,
    labels: torch.Tensor,
) -> tuple[float, int]:
    """Do one training step; return its mean loss and how many samples were told right."""
    optimizer.zero_grad(set_to_none=True)
    scores = model(pixels)
    loss = nn.functional.cross_entropy(scores, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    # Reading the numbers waits for the device, so a GPU's work is not taken for waiting for data.
    return loss.item(), int((scores.argmax(dim=1) == labels).sum())


def _warm_up(dataset: PhotoCrops, model: nn.Module, device: torch.device) -> None:
    """Pay before the clock starts what is paid once per process, whatever the loader.

    Pillow's readers, torch's kernels and the device's context are set up by one sample and one
    training step of a copy of the model.
    """
    pixels, record = dataset[0]
    twin = copy.deepcopy(model)
    optimizer = torch.optim.Adam(twin.parameters())
    both = torch.stack((pixels, pixels)).to(device)  # Batch norm needs two.
    label = record[:1].long().to(device)
    _step(twin, optimizer, both, torch.cat((label, label)))


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """Return how many spans of time overlap at most.

    Each is its begin and its end, on one clock. One that ends as another begins does not overlap.
    """
    edges = sorted(edge for begin, end in spans for edge in ((begin, 1), (end, -1)))
    running = most = 0
    for _, change in edges:
        running += change
        most = max(most, running)
    return most
