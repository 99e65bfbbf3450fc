"""What a loader's samplers are, as far as it matters for having their order again.

Of samplers of the user's, attributes are looked at as they lie there: some are properties that
raise, or that draw.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from minato_async.resuming.own_state import has_state, is_there
from minato_async.resuming.random_states import Source, TorchGenerator, process_wide

#: What each of torch's own samplers is made with, as far as its order depends on it.
_SETTINGS: dict[type, tuple[str, ...]] = {
    SequentialSampler: (),
    RandomSampler: ("replacement", "num_samples"),
    SubsetRandomSampler: (),
    WeightedRandomSampler: ("replacement", "num_samples"),
    DistributedSampler: ("num_replicas", "rank", "shuffle", "seed", "drop_last"),
}
#: Those that draw from `generator`, or from torch's own.
_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What draws single keys, or whole batches if nothing else is known to."""
    batch_sampler: Any = loader.batch_sampler
    if batch_sampler is None:
        return loader.sampler
    inner = _lying_in(batch_sampler, "sampler")
    return batch_sampler if inner is None else inner


def cuts_a_sequence(loader: DataLoader[Any]) -> bool:
    """Whether batches are cut out of a sequence of keys by torch's own `BatchSampler`: then the
    keys may as well be in other batches."""
    return type(loader.batch_sampler) is BatchSampler


def is_torchs_own(loader: DataLoader[Any]) -> bool:
    """Whether the order is one of torch's, which is known to be the same again."""
    outer: Any = loader.batch_sampler
    return type(sampler_of(loader)) in _SETTINGS and (outer is None or type(outer) is BatchSampler)


def describe(loader: DataLoader[Any]) -> dict[str, Any]:
    """The samplers' classes and settings, to be compared: another sampler has another order."""
    sampler, outer = sampler_of(loader), loader.batch_sampler
    names = [type(s).__qualname__ for s in (outer, sampler) if s is not None]
    if sampler is outer:
        del names[1:]
    settings = {name: getattr(sampler, name) for name in _SETTINGS.get(type(sampler), ())}
    return {"type": " of ".join(names), "settings": settings}


def shares_among_ranks(loader: DataLoader[Any]) -> bool:
    return type(sampler_of(loader)) is DistributedSampler and is_torchs_own(loader)


def generators_of(loader: DataLoader[Any]) -> dict[str, Source]:
    """Generators that the user has given to the loader or its samplers."""
    found: dict[str, Source] = {}
    seen: list[torch.Generator] = []
    givers = {
        "loader": loader,
        "batch_sampler": loader.batch_sampler,
        "sampler": sampler_of(loader),
    }
    for name, giver in givers.items():
        generator = _lying_in(giver, "generator")
        if not isinstance(generator, torch.Generator) or generator is torch.default_generator:
            continue
        if not any(generator is other for other in seen):
            seen.append(generator)
            found[name] = TorchGenerator(generator)
    return found


def drawn_from(loader: DataLoader[Any]) -> dict[str, Source]:
    """The generators that the samplers of `loader` may draw from."""
    if not is_torchs_own(loader):
        return process_wide() | generators_of(loader)
    sampler: Any = sampler_of(loader)
    if type(sampler) not in _RANDOM:
        return {}
    generator = sampler.generator
    if generator is None or generator is torch.default_generator:
        return {"torch": TorchGenerator(torch.default_generator, shared=True)}
    return {"sampler": TorchGenerator(generator)}


def _lying_in(item: Any, name: str) -> Any:
    """What `item` has under this name in itself; None: nothing."""
    value = inspect.getattr_static(item, name, None)
    return None if isinstance(value, property) or hasattr(type(value), "__set__") else value


def keepers_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """The samplers that have a state of their own. A batch sampler of the user's speaks for what
    is inside: it may have drawn ahead."""
    outer: Any = loader.batch_sampler
    if outer is not None and has_state(outer):
        return {"batch_sampler": outer}
    sampler = sampler_of(loader)
    if (outer is None or isinstance(outer, BatchSampler)) and has_state(sampler):
        return {"sampler": sampler}
    return {}


def epoch_setters(loader: DataLoader[Any]) -> dict[str, Any]:
    """The samplers that are told the number of the epoch, as torch's `DistributedSampler` is."""
    found = {}
    for name, item in (("batch_sampler", loader.batch_sampler), ("sampler", sampler_of(loader))):
        if type(_lying_in(item, "epoch")) is int and is_there(item, "set_epoch"):
            found[name] = item
    return found
