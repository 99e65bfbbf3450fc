"""Pipelines as people have them: torchvision's on photos and small images, MONAI's on volumes.

All data is made here, on the spot. Photos are JPEG of 500 x 375 with smooth colours, and are
decoded for each sample, as those of ImageNet are.
"""

from __future__ import annotations

import copy
import importlib
import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

PHOTOS = 24
SMALL = 256
VOLUMES = 16

Transform = Callable[[Any], Any]


class Applied(Dataset[Any]):
    """`length` samples: what `transform` makes of the items, in turn, with the index. Each thread
    has a transform of its own: MONAI's keep in themselves what they draw, and bare threads make no
    copies."""

    def __init__(self, items: Sequence[Any], transform: Transform, length: int) -> None:
        self._items = items
        self._transform = transform
        self._thread = threading.local()
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        try:
            transform = self._thread.transform
        except AttributeError:
            transform = self._thread.transform = copy.deepcopy(self._transform)
        return transform(self._items[index % len(self._items)]), index


def _photos() -> list[bytes]:
    image: Any = importlib.import_module("PIL.Image")
    rng = np.random.RandomState(0)
    made = []
    for _ in range(PHOTOS):
        small = image.fromarray((rng.rand(40, 50, 3) * 255).astype("uint8"))
        file = io.BytesIO()
        small.resize((500, 375), image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        made.append(file.getvalue())
    return made


def _decode(photo: bytes) -> Any:
    image: Any = importlib.import_module("PIL.Image")
    return image.open(io.BytesIO(photo)).convert("RGB")


def _small() -> torch.Tensor:
    rng = np.random.RandomState(0)
    return torch.from_numpy(rng.randint(0, 256, (SMALL, 3, 32, 32)).astype("uint8"))


def _volumes() -> list[dict[str, torch.Tensor]]:
    rng = np.random.RandomState(0)
    shape = (1, 32, 32, 32)
    return [
        {
            "image": torch.from_numpy(rng.rand(*shape).astype("float32")),
            "label": torch.from_numpy((rng.rand(*shape) > 0.5).astype("float32")),
        }
        for _ in range(VOLUMES)
    ]


_NORMALIZE: dict[str, Any] = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def _imagenet_v1() -> tuple[Sequence[Any], Transform]:
    v1: Any = importlib.import_module("torchvision.transforms")
    parts = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor()]
    return _photos(), v1.Compose([v1.Lambda(_decode), *parts, v1.Normalize(**_NORMALIZE)])


def _imagenet_v2() -> tuple[Sequence[Any], Transform]:
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    parts = [v2.ToImage(), v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(**_NORMALIZE)]
    transform = v2.Compose([*parts, *end])
    return _photos(), lambda photo: transform(_decode(photo))


def _cifar(augment: bool) -> tuple[Sequence[Any], Transform]:
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    parts = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()]
    end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(**_NORMALIZE)]
    if augment:
        parts, end = [*parts, v2.RandAugment()], [*end, v2.RandomErasing(0.25)]
    return list(_small()), v2.Compose([*parts, *end])


def _monai() -> tuple[Sequence[Any], Transform]:
    monai: Any = importlib.import_module("monai.transforms")
    both = ["image", "label"]
    return _volumes(), monai.Compose(
        [
            monai.RandFlipd(both, prob=0.5, spatial_axis=0),
            monai.RandSpatialCropd(both, roi_size=(24, 24, 24), random_size=False),
            monai.RandGaussianNoised(["image"], prob=0.5),
        ]
    )


@dataclass(frozen=True)
class Pipeline:
    """A dataset to be made; `length` gives it some seconds on two cores. `module` must be there."""

    name: str
    module: str
    make: Callable[[], tuple[Sequence[Any], Transform]]
    length: int
    batch_size: int

    def dataset(self, length: int) -> Applied:
        """The samples; what `module` needs is imported now."""
        return Applied(*self.make(), length)


IMAGENET = (
    Pipeline("imagenet-v1", "torchvision", _imagenet_v1, 512, 32),
    Pipeline("imagenet-v2", "torchvision", _imagenet_v2, 448, 32),
)
PIPELINES = (
    *IMAGENET,
    Pipeline("cifar-v2", "torchvision", lambda: _cifar(False), 6144, 128),
    Pipeline("cifar-randaugment", "torchvision", lambda: _cifar(True), 1792, 128),
    Pipeline("monai", "monai", _monai, 1024, 16),
)
