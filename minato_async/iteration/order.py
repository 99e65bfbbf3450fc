"""Whether batches keep the order in which they were drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from minato_async.engine.epoch import Order
from minato_async.user_warnings import warn_user


def choose_order(loader: DataLoader[Any], in_order: bool | None) -> Order:
    """The order of `loader`'s epochs, for the value that its user gave to `in_order`.

    None reorders only where the order is random anyway and the user did not ask for
    reproducibility. Samples change places only between batches that torch's own `BatchSampler`
    cut out of a sequence: what another batch sampler put together stays together.
    """
    workers = loader.num_workers if getattr(loader, "assignment", None) == "batch" else 0
    optional = False
    if in_order is not None:
        keep = in_order
    else:
        optional = _order_is_random(loader) and not workers
        keep = not optional or _wants_the_run_again(loader)
    batch_sampler: Any = loader.batch_sampler
    if not keep and _is_recorded(batch_sampler):
        warn_user(
            "in_order=False is ignored while Lightning predicts: it takes the n-th batch for the "
            "n-th that the sampler drew, so predictions would get the wrong labels"
        )
        keep = True
    plain = type(batch_sampler) is BatchSampler
    return Order(
        as_drawn=keep or not plain or workers > 0,
        by_position=keep,
        # Those of another batch sampler are as drawn: which of them it drops is its own affair.
        drop_last=plain and bool(batch_sampler.drop_last),
        max_displacement=getattr(loader, "max_displacement", None),
        optional=optional and keep,
        workers=workers or None,
    )


def _order_is_random(loader: DataLoader[Any]) -> bool:
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is not BatchSampler:
        return False
    # Exact types: a subclass may have an order that means something.
    sampler: Any = batch_sampler.sampler
    if type(sampler) is RandomSampler:
        return True
    return type(sampler) is DistributedSampler and sampler.shuffle


def _wants_the_run_again(loader: DataLoader[Any]) -> bool:
    """Whether the user asked for reproducibility, by whatever means."""
    sampler: Any = getattr(loader.batch_sampler, "sampler", None)
    return (
        loader.generator is not None
        or getattr(sampler, "generator", None) is not None
        or type(getattr(loader, "seed", None)) is int
        or torch.are_deterministic_algorithms_enabled()
        or _torch_was_seeded()
    )


def _torch_was_seeded() -> bool:
    """Whether `torch.manual_seed` was called, as far as it can be told.

    A generator that nobody has seeded, and one after `torch.seed()`, has 64 random bits for a
    seed. Those of users are small; torch takes negative ones for 2**64 more. One random seed in
    2**31 is mistaken for a user's, and one of a user's beyond 2**32 for a random one.
    """
    if get_worker_info() is not None:
        # A loader that a sample makes for itself: a sample is to be the same, whatever runs it.
        return True
    seed = torch.default_generator.initial_seed()
    return min(seed, 2**64 - seed) < 2**32


def _is_recorded(batch_sampler: Any) -> bool:
    """Whether it is Lightning's, which notes what it draws. Known by its name: to import Lightning
    here takes seconds, and to look for the notes is too early, there are none before it draws."""
    return any(cls.__name__ == "_IndexBatchSamplerWrapper" for cls in type(batch_sampler).__mro__)
