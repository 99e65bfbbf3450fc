"""What can be known of a loader's samplers without touching those of the user.

torch calls `__iter__` of a sampler and nothing else. Some have a `batch_size` that is a list, or a
`__len__` that raises, takes a minute, or draws random numbers: none of it is asked for here.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

#: Samplers whose length is known to be the number of indices that they yield.
_COUNTABLE = (
    SequentialSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
)


def samples_in_batch(loader: DataLoader[Any]) -> int:
    """How many samples a batch of `loader` has, as far as one knows; else 1."""
    if loader.batch_size is not None:
        return loader.batch_size
    # As it was set, without calling anything: it may be a property.
    size = inspect.getattr_static(loader.batch_sampler, "batch_size", None)
    return size if type(size) is int and size > 0 else 1


def samples_in_epoch(loader: DataLoader[Any]) -> int | None:
    """How many samples an epoch of `loader` has: about as many as the dataset where the sampler is
    none of torch's. None: nobody knows."""
    batch_sampler: Any = loader.batch_sampler
    sampler: Any = loader.sampler
    if type(batch_sampler) is BatchSampler:
        sampler = batch_sampler.sampler
    elif batch_sampler is not None:
        sampler = None
    counted: Any = sampler if type(sampler) in _COUNTABLE else loader.dataset
    try:
        return len(counted)
    except Exception:
        return None


def may_be_drawn_ahead(loader: DataLoader[Any]) -> int:
    """How many indices of an epoch of `loader` may be drawn earlier than torch draws them; 0: none.

    For these samplers nobody can tell: they draw their random numbers for the first index, all at
    once, and run no code of the user's for the others.
    """
    batch_sampler: Any = loader.batch_sampler
    sampler: Any = loader.sampler
    whole = 1
    if batch_sampler is not None:
        if type(batch_sampler) is not BatchSampler:
            return 0
        sampler, whole = batch_sampler.sampler, batch_sampler.batch_size
    if type(sampler) is RandomSampler:
        if sampler.replacement or sampler.num_samples > len(sampler.data_source):
            return 0
        if sampler.generator is not None:
            # Asked for more than it has, it draws once more, from the user's generator: the short
            # batch at the end is left to its time.
            return len(sampler) // whole * whole
    elif type(sampler) is SubsetRandomSampler:
        if type(sampler.indices) not in (list, tuple, range):
            return 0
    elif type(sampler) not in (SequentialSampler, DistributedSampler):
        return 0
    return len(sampler)
