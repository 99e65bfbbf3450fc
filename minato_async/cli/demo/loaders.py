"""The loaders that are compared, made over the same dataset with the same arguments."""

from typing import Any

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
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": workers}
    if name == "torch":
        return DataLoader(dataset, **options)
    if name == "torch-any-order":
        return DataLoader(dataset, in_order=False, **options)
    if name == "minato":
        from minato_async import MinatoLoader

        return MinatoLoader(dataset, in_order=False, **options)
    raise ValueError(f"no loader {name!r}")
