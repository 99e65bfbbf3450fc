"""What a sample is made of: how a dataset and a collate function become a recipe."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset, default_collate

from minato_async.collation import DefaultRowWriter
from minato_async.engine.recipe import Recipe

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def make_recipe(loader: DataLoader[Any]) -> tuple[Recipe, bool]:
    """The recipe for `loader`, and whether one ticket is a whole drawn batch.

    It is where batching is off (`batch_size=None`), and where the dataset fetches batches itself.
    """
    dataset, collate_fn = loader.dataset, loader.collate_fn
    step = f"{type(dataset).__name__}.__getitem__"
    if not loader._auto_collation:
        return Recipe(_item_getter(dataset), _only(collate_fn), step), True
    if _fetches_batches(dataset):
        step = f"{type(dataset).__name__}.__getitems__"
        return Recipe(dataset.__getitems__, _only(collate_fn), step), True  # type: ignore[attr-defined]
    writer = DefaultRowWriter() if collate_fn is default_collate else None
    return Recipe(_item_getter(dataset), collate_fn, step, writer), False


def _fetches_batches(dataset: Any) -> bool:
    """Whether `dataset` has a `__getitems__` of its own.

    `Subset` has one too, which only loops over the samples: it would hide them from us.
    """
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


def _item_getter(dataset: Any) -> Callable[[Any], Any]:
    # Looked up on the type, as brackets do, and once rather than for every sample.
    function = getattr(type(dataset), "__getitem__", None)
    if function is None:
        return partial(operator.getitem, dataset)  # raises the TypeError that brackets raise
    getter: Callable[[Any], Any] = function.__get__(dataset)
    return getter


def _only(function: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    """A collate function for batches that are one ticket each."""

    def collate_only(samples: list[Any]) -> Any:
        return function(samples[0])

    return collate_only
