"""The dataset all loaders read: random crops of photos."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.data import Dataset

from minato_async.cli.demo.augment import augment
from minato_async.cli.demo.photos import decode

_MASK = (1 << 64) - 1


class PhotoCrops(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Crops of photos, each with the number of the photo it was cut from, which is to be learnt.

    A sample is decoded from its file anew each time, nothing is cached. Its pixels depend on
    (seed, epoch, index) and on nothing else: the random numbers come from a generator made for
    this sample, seeded by arithmetic on those three. No global generator is drawn from, so
    processes, threads, their number and the order in which samples are made change nothing, and
    every loader trains on the very same pixels.
    """

    def __init__(self, paths: Sequence[Path], samples: int, seed: int) -> None:
        """Make the dataset.

        Args:
            paths: The photos' files.
            samples: Length of an epoch; the photos take turns.
            seed: Base of every sample's randomness.
        """
        self.paths = tuple(paths)
        self.samples = samples
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose which crops come next; call it before the epoch starts.

        Args:
            epoch: Number of the epoch, from 0.
        """
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make a sample.

        Args:
            index: 0 to ``len(self) - 1``.

        Returns:
            The pixels, float32, channels × height × width, and a record, float64: [number of
            the photo, seconds on the monotonic clock when the work began, when it ended].
        """
        # The clock is one for all processes of the machine: from begin and end of all samples
        # the training side sees how many were made at once, whoever made them, and whether a
        # loader kept to its number of workers. In the label's tensor, so that a batch has two
        # tensors, as it would have without.
        begin = time.monotonic()
        rng = random.Random(_mix(_mix(_mix(self.seed) ^ self.epoch) ^ index))
        label = index % len(self.paths)
        pixels = augment(decode(self.paths[label]), rng)
        record = torch.tensor([label, begin, time.monotonic()], dtype=torch.float64)
        return torch.from_numpy(pixels), record


def _mix(number: int) -> int:
    """Scatter a number over 64 bits, so that neighbours have unrelated generators (SplitMix64)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)
