"""Batches on an accelerator: whether they arrive as they are, and what copying them costs.

``python -m benchmarks.gpu`` in less than four minutes, on Python 3.12 with the GIL and without a
network, with worker processes; ``--executor thread`` for threads. ``--device cpu`` tries the code
where there is none: its figures mean nothing. It has not run on a GPU yet, nor has a free-threaded
interpreter been seen beside one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from minato_async import MinatoLoader

#: Seconds of a training step.
STEPS = (0.005, 0.010, 0.020)


class Images(Dataset[Any]):
    """Images of the numbers of their indices, ready in memory."""

    def __init__(self, count: int, side: int) -> None:
        self._count = count
        self._base = torch.rand(3, side, side)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._base + index, index


class Sizes(Dataset[torch.Tensor]):
    """Tensors of many sizes: what the allocator gives is never what was freed just now."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 + index * 7919 % 500_000,), float(index))


class Step:
    """Keeps the device busy for about as long as it is told, without the program waiting."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._device, self._rounds = device, 1
        side = 2048 if device.type != "cpu" else 256
        self._matrix = torch.rand(side, side, device=device)
        self()
        while (taken := self._time()) < seconds:
            self._rounds = max(self._rounds + 1, int(self._rounds * min(4, seconds / taken)))

    def _time(self) -> float:
        synchronize(self._device)
        began = time.perf_counter()
        self()
        synchronize(self._device)
        return time.perf_counter() - began

    def __call__(self) -> None:
        for _ in range(self._rounds):
            torch.mm(self._matrix, self._matrix)


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def check_equal(device: torch.device, executor: str, side: int) -> None:
    """Bit by bit what a plain `.to()` gives."""
    data = Images(64, side)
    ours = MinatoLoader(data, 16, num_workers=2, device=device, executor=executor, in_order=True)
    for batch, (images, labels) in enumerate(ours):
        expected = torch.stack([data[16 * batch + row][0] for row in range(16)]).to(device)
        assert images.device.type == device.type, images.device
        assert torch.equal(images, expected), f"batch {batch} is not what was loaded"
        assert labels.tolist() == list(range(16 * batch, 16 * batch + 16))
    print("equal: each batch is bit by bit what .to() gives")


def check_reuse(device: torch.device, executor: str) -> None:
    """Each batch is dropped as soon as the device was told to sum it, late, behind other work."""
    options: dict[str, Any] = {"num_workers": 2, "executor": executor, "in_order": True}
    loader = MinatoLoader(Sizes(), None, device=device, **options)
    busy, sums = Step(device, 0.002), []
    pressure: list[torch.Tensor] = []
    for index, batch in enumerate(loader):
        busy()
        # Of all, with the smallest and the largest: whatever is overwritten shows.
        sums.append(torch.stack((batch.min(), batch.max())))
        del batch
        pressure = [*pressure[-3:], torch.empty(1 + index * 104_729 % 700_000, device=device)]
    synchronize(device)
    for index, found in enumerate(sums):
        assert found.tolist() == [float(index)] * 2, f"batch {index} was overwritten: {found}"
    print(f"reuse: {len(sums)} batches of as many sizes were whole when they were read")


def plain(loader: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """As one does with torch's loader: pinned, non_blocking."""
    for images, labels in loader:
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def measure(batches: Iterable[Any], step: Callable[[], None], device: torch.device) -> list[float]:
    """Seconds from one step to the next, after the third, each with all that it has to wait for."""
    times, iterator, began = [], iter(batches), time.perf_counter()
    for images, _ in iterator:
        images.mean()
        step()
        synchronize(device)
        now = time.perf_counter()
        times.append(now - began)
        began = now
        del images
    return times[3:]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default=None, help="default: the accelerator")
    parser.add_argument("--executor", default="process", choices=("process", "thread"))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--workers", type=int, default=8)
    chosen = parser.parse_args(arguments)
    found = torch.accelerator.current_accelerator(check_available=True)
    if chosen.device is not None:
        device = torch.device(chosen.device)
    elif found is not None:
        device = found
    else:
        print("torch finds no accelerator here; --device cpu tries the code")
        return 2
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(
        f"Python {sys.version.split()[0]}, GIL {'on' if gil else 'off'}, "
        f"torch {torch.__version__}, {device}, executor {chosen.executor}"
    )
    check_equal(device, chosen.executor, chosen.side)
    check_reuse(device, chosen.executor)
    data = Images(chosen.batch * chosen.batches, chosen.side)
    options: dict[str, Any] = {"batch_size": chosen.batch, "num_workers": chosen.workers}
    print(f"\n3x{chosen.side}x{chosen.side}x{chosen.batch} float32, {chosen.workers} workers, ms")
    print(
        f"{'step':>6} {'step alone':>11} {'torch':>8} {'ours':>8} {'copies hidden':>14} {'GB/s':>6}"
    )
    pins = device.type != "cpu"
    for seconds in STEPS:
        step = Step(device, seconds)
        alone = statistics.median(step._time() for _ in range(5))
        theirs = plain(DataLoader(data, pin_memory=pins, **options), device)
        torch_times = measure(theirs, step, device)
        ours = MinatoLoader(data, device=device, executor=chosen.executor, in_order=True, **options)
        our_times = measure(ours, step, device)
        stats = ours.stats
        print(
            f"{seconds * 1e3:6.0f} {alone * 1e3:11.2f} {statistics.median(torch_times) * 1e3:8.2f} "
            f"{statistics.median(our_times) * 1e3:8.2f} {stats.copy_hidden:14.2f} "
            f"{stats.copy_rate / 1e9:6.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
