"""The samples: the same pixels for everyone, new ones in each epoch."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from minato_async.cli.demo.augment import CROP_SIZE
from minato_async.cli.demo.dataset import PhotoCrops


@pytest.fixture
def dataset(pictures: Path) -> PhotoCrops:
    return PhotoCrops(sorted(pictures.iterdir()), samples=12, seed=7)


def test_a_sample_is_a_normalised_crop_with_its_photo_and_its_times(dataset: PhotoCrops) -> None:
    pixels, record = dataset[6]

    assert pixels.shape == (3, CROP_SIZE, CROP_SIZE)
    assert pixels.dtype == torch.float32
    assert -1 <= float(pixels.min()) <= float(pixels.max()) <= 1
    label, begin, end = record.tolist()
    assert label == 6 % 4
    assert begin < end


def test_pixels_do_not_depend_on_who_makes_them_or_when(dataset: PhotoCrops) -> None:
    alone = [dataset[index][0] for index in range(len(dataset))]
    random.seed(123)
    np.random.seed(123)
    torch.manual_seed(123)
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda index: dataset[index][0], reversed(range(12))))
    processes = DataLoader(dataset, batch_size=5, num_workers=2)

    assert all(torch.equal(a, b) for a, b in zip(alone, reversed(together), strict=True))
    assert torch.equal(torch.stack(alone), torch.cat([pixels for pixels, _ in processes]))


def test_the_global_generators_are_left_alone(dataset: PhotoCrops) -> None:
    random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), torch.rand(1)
    random.seed(1)
    torch.manual_seed(1)
    dataset[0]

    assert (random.random(), torch.rand(1)) == expected


def test_each_epoch_and_each_turn_of_a_photo_has_crops_of_its_own(dataset: PhotoCrops) -> None:
    first, another_turn = dataset[3][0], dataset[7][0]
    dataset.set_epoch(1)
    next_epoch = dataset[3][0]

    assert not torch.equal(first, another_turn)
    assert not torch.equal(first, next_epoch)
    dataset.set_epoch(0)
    assert torch.equal(first, dataset[3][0])
