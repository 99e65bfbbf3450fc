"""The training, and what it sees of its loader."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from minato_async.cli.demo.dataset import PhotoCrops


@dataclass
class Seen:
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
    """

    samples: int = 0
    batches: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    first_batch: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    most_at_once: int = 0
    checksum: int = 0
    loss: float = 0.0
    accuracy: float = 0.0


def train(
    loader: DataLoader[Any],
    dataset: PhotoCrops,
    model: nn.Module,
    device: torch.device,
    epochs: int,
    on_batch: Callable[[int], None],
) -> Seen:
    """Train a model for some epochs and measure what its loader delivers.

    Args:
        loader: Yields what `PhotoCrops` makes, in batches.
        dataset: The loader's dataset.
        model: To be trained, on ``device``.
        device: Where the batches are to go.
        epochs: How many.
        on_batch: Called after each training step with the number of batches so far.
    """
    _warm_up(dataset, model, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    seen = Seen()
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        # What decides the order of samples, whichever loader draws it.
        torch.manual_seed(dataset.seed + 1 + epoch)
        _train_epoch(loader, model, optimizer, device, seen, on_batch)
    return seen


def _train_epoch(
    loader: DataLoader[Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    seen: Seen,
    on_batch: Callable[[int], None],
) -> None:
    spans: list[tuple[float, float]] = []
    losses, right, samples = 0.0, 0, 0
    started = time.perf_counter()
    arrived = None
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        now = time.perf_counter()
        seen.waited += now - asked
        if batch is None:
            break
        if arrived is None:
            seen.first_batch.append(now - started)
        else:
            seen.gaps.append(now - arrived)
        arrived = now

        pixels, record = batch
        loss, hits = _step(model, optimizer, pixels.to(device), record[:, 0].long().to(device))
        losses += loss * len(pixels)
        right += hits
        samples += len(pixels)
        seen.batches += 1
        # Integers, for their sum is exact and so the same in any order.
        seen.checksum += int(pixels.view(torch.int32).sum(dtype=torch.int64))
        spans.extend((begin, end) for begin, end in record[:, 1:].tolist())
        on_batch(seen.batches)
    seen.seconds += now - started

    seen.samples += samples
    seen.loss = losses / samples
    seen.accuracy = right / samples
    seen.most_at_once = max(seen.most_at_once, most_at_once(spans))


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

    Args:
        spans: Begin and end of each, on one clock. One that ends as another begins does not
            overlap it.
    """
    edges = sorted(edge for begin, end in spans for edge in ((begin, 1), (end, -1)))
    running = most = 0
    for _, change in edges:
        running += change
        most = max(most, running)
    return most
