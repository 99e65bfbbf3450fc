"""The loaders that are compared, made over the same dataset with the same arguments."""

from typing import Any

import torch
from torch.utils.data import DataLoader

from minato_async.cli.demo.dataset import PhotoCrops


def make_loader(name: str, dataset: PhotoCrops, batch_size: int, workers: int) -> DataLoader[Any]:
    """Make one of the loaders of `options.LOADERS`, everything not named here at its default.

    No ``generator`` is given to anyone: the order of samples comes from torch's global
    generator, which the training seeds before each epoch. Who seeds gets strict order from
    MinatoLoader; what is shown here is ready samples first, so it is told.

    Args:
        name: Key of `options.LOADERS`.
        dataset: What to load.
        batch_size: Samples in a batch.
        workers: Worker processes or threads.

    Raises:
        ValueError: No loader has this name.
    """
    if name == "torch":
        return DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=workers)
    if name == "torch-any-order":
        return DataLoader(
            dataset, batch_size=batch_size, shuffle=True, num_workers=workers, in_order=False
        )
    if name == "minato":
        from minato_async import MinatoLoader

        loader: DataLoader[Any] = MinatoLoader(
            dataset, batch_size=batch_size, shuffle=True, num_workers=workers, in_order=False
        )
        return loader
    raise ValueError(f"no loader {name!r}")


def pick_device() -> torch.device:
    """Return where to train: CUDA if it is there, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
