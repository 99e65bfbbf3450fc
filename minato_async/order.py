"""Whether batches keep the order in which they were drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from minato_async.engine.epoch import Order
from minato_async.user_code import warn_user


def choose_order(loader: DataLoader[Any], in_order: bool | None) -> Order:
    """The order of `loader`'s epochs, for the value that its user gave to `in_order`.

    None reorders only where the order is random anyway and the user did not ask for
    reproducibility, which a `seed` does too. Samples change places only between batches that
    torch's own `BatchSampler` cut out of a sequence: what another batch sampler put together
    stays together.
    """
    keep = in_order if in_order is not None else not _order_is_random(loader)
    batch_sampler: Any = loader.batch_sampler
    if not keep and _is_recorded(batch_sampler):
        warn_user(
            "in_order=False is ignored while Lightning predicts: it takes the n-th batch for the "
            "n-th that the sampler drew, so predictions would get the wrong labels"
        )
        keep = True
    plain = type(batch_sampler) is BatchSampler
    return Order(
        as_drawn=keep or not plain,
        by_position=keep,
        # Those of another batch sampler are as drawn: which of them it drops is its own affair.
        drop_last=plain and bool(batch_sampler.drop_last),
        max_displacement=getattr(loader, "max_displacement", None),
    )


def _order_is_random(loader: DataLoader[Any]) -> bool:
    batch_sampler = loader.batch_sampler
    if loader.generator is not None or torch.are_deterministic_algorithms_enabled():
        return False
    if type(getattr(loader, "seed", None)) is int:
        return False
    if type(batch_sampler) is not BatchSampler:
        return False
    # Exact types: a subclass may have an order that means something.
    sampler: Any = batch_sampler.sampler
    if type(sampler) is RandomSampler:
        return sampler.generator is None
    return type(sampler) is DistributedSampler and sampler.shuffle


def _is_recorded(batch_sampler: Any) -> bool:
    """Whether it is Lightning's, which notes what it draws. Known by its name: to import Lightning
    here takes seconds, and to look for the notes is too early, there are none before it draws."""
    return any(cls.__name__ == "_IndexBatchSamplerWrapper" for cls in type(batch_sampler).__mro__)
