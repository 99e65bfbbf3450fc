"""Samples that do what training on photos does: decode, resize, and some Python."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.workloads.guard import ConcurrencyGuard

SIDES = (128, 200, 256, 400, 512, 700)
"""Pixels on a side, of a cycle of photos."""
RESIZED = 160


def encode() -> list[bytes]:
    """A JPEG of each side, of smooth noise."""
    from PIL import Image

    random = np.random.RandomState(0)
    photos = []
    for side in SIDES:
        coarse = (random.rand(side // 16 + 1, side // 16 + 1, 3) * 255).astype("uint8")
        photo = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        with io.BytesIO() as file:
            photo.save(file, "JPEG", quality=90)
            photos.append(file.getvalue())
    return photos


class Photos(Dataset[tuple[Tensor, int, float]]):
    """Sample ``index`` decodes one of ``photos`` and returns (tensor, index, cost).

    The cost it returns is measured: CPU seconds of the thread that ran it.
    """

    def __init__(self, photos: Sequence[bytes], length: int, guard: ConcurrencyGuard) -> None:
        self.photos = photos
        self.length = length
        self.guard = guard

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int, float]:
        from PIL import Image

        with self.guard:
            begin = time.thread_time()
            with Image.open(io.BytesIO(self.photos[index % len(self.photos)])) as photo:
                small = photo.convert("RGB").resize((RESIZED, RESIZED))
            pixels = np.asarray(small, dtype=np.float32) / 255
            # What transforms do in Python: parameters drawn, labels looked up.
            labels = {number: [number] * 3 for number in range(200)}
            tensor = torch.from_numpy(pixels).permute(2, 0, 1)
            assert len(labels) == 200
            return tensor, index, time.thread_time() - begin
