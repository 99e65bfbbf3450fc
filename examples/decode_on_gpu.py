"""Decodes photos on the GPU: the workers read files, `device_transform` does the rest.

    python -m examples.decode_on_gpu photos/*.jpg                # needs a GPU
    python -m examples.decode_on_gpu --device cpu photos/*.jpg   # to try it without one

The workers return the bytes as they are in the file, which are small; nothing else crosses to the
device. There they are decoded (torchvision: nvJPEG on CUDA), cropped, flipped and normalised, on
the prefetch's stream, while the training step works on the batch before. Each batch has random
numbers of its own, so a run can be done again. Another decoder for the device, such as NVIDIA
DALI's, takes the place of `decode_jpeg`.

It needs torchvision, and has not been run on a GPU by those who wrote it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from minato_async import MinatoLoader

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Files(Dataset[bytes]):
    """The bytes of each file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        return self.paths[index].read_bytes()


class DecodeOnDevice:
    """Makes images of a batch of files."""

    def __init__(self, device: str, size: int) -> None:
        self.device = device
        self.augment = v2.Compose(
            [
                v2.RandomResizedCrop(size, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def __call__(self, files: list[bytes]) -> Tensor:
        # torchvision wants the bytes on the CPU, and puts the pixels on the device.
        encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        photos = decode_jpeg(encoded, ImageReadMode.RGB, device=self.device)
        return torch.stack([self.augment(photo) for photo in photos])


def main(arguments: Sequence[str] | None = None) -> Tensor:
    """Go through the files once; returns the mean of the images' channels."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="JPEG files")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=224, help="of an image, in pixels")
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    parser.add_argument("-j", "--workers", type=int, default=4)
    given = parser.parse_args(arguments)
    loader = MinatoLoader(
        Files(given.files),
        given.batch_size,
        num_workers=given.workers,
        collate_fn=list,  # files of different sizes
        device=given.device,
        device_transform=DecodeOnDevice(given.device, given.size),
        seed=0,
    )
    began, total, count = time.perf_counter(), torch.zeros(3, device=given.device), 0
    for images in loader:
        total += images.sum(dim=(0, 2, 3))
        count += images.numel() // 3
    mean = total / count
    print(f"{len(given.files)} photos in {time.perf_counter() - began:.2f} s; mean {mean.tolist()}")
    return mean


if __name__ == "__main__":
    main()
