"""What a sample is made of: how a dataset and a collate function become a recipe."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset, default_collate

from minato_async.engine.protocols import Worker
from minato_async.engine.recipe import BoundRecipe, Streams
from minato_async.errors import name_transform
from minato_async.replicas.held_generators import HeldGenerator
from minato_async.replicas.replica import Code
from minato_async.sample.autocast import Autocast
from minato_async.sample.collation import DefaultRowWriter, is_extended
from minato_async.sample.pinning import empty_pinned, pins_memory
from minato_async.sample.shared_data_check import SharedDataCheck
from minato_async.sample.worker_setup import WorkerSetup, current_state
from minato_async.seeding.epoch_seeds import EpochSeeds, NoStreams
from minato_async.seeding.held import Place

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@dataclass(frozen=True)
class Bound:
    """A map-style recipe in the hands of one worker, or of the consumer's own thread."""

    recipe: MapRecipe
    steps: Sequence[Callable[[Any], Any]]
    collate: Callable[[list[Any]], Any]
    finish: Callable[[Any], Any]
    on_error: Any
    streams: Streams
    context: Context


class MapRecipe:
    """How one epoch of a map-style dataset is loaded.

    Grad mode, autocast and context variables are those of the thread that starts the epoch.
    """

    def __init__(
        self, loader: DataLoader[Any], setup: WorkerSetup, seeds: EpochSeeds, checks: bool = False
    ) -> None:
        dataset, collate_fn = setup.code.dataset, setup.code.collate_fn
        self.batch_is_ticket = batch_is_ticket(loader)
        method = (
            "__getitems__" if loader._auto_collation and self.batch_is_ticket else "__getitem__"
        )
        self._method = method
        self._first_step = f"{type(dataset).__name__}.{method}"
        self._transforms = setup.code.transforms
        self.on_error = setup.code.on_error
        self.collates_by_default = collate_fn is default_collate and not is_extended()
        writes_rows = self.collates_by_default and not self.batch_is_ticket
        #: Straight into pinned memory, where batches end up there. Not in a worker process, which
        #: must not touch the accelerator.
        self._collates_pinned = writes_rows and setup.replicas is not None and pins_memory(loader)
        self.row_writer: DefaultRowWriter | None = None
        if writes_rows:
            pinned = self._collates_pinned
            self.row_writer = DefaultRowWriter(empty_pinned) if pinned else DefaultRowWriter()
        self._finish: Callable[[Any], Any] = as_it_is
        self._setup = setup
        self._check = SharedDataCheck() if checks else None
        self.seeds = seeds
        self.seed = seeds.seed
        #: The random generators that the user's own objects hold, once they were looked for.
        self._held: Sequence[HeldGenerator] | None = None
        self._context = copy_context()
        self._grad = torch.is_grad_enabled()
        self._autocast = Autocast.of_this_thread()

    def bind(self, worker: Worker) -> BoundRecipe:
        state = current_state()
        bound = state.bound
        if isinstance(bound, Bound) and bound.recipe is self:
            return bound
        torch.set_grad_enabled(self._grad)
        self._autocast.apply()
        context = self._context.copy()
        code = context.run(state.code_for, self._setup, worker.number)
        # Others are seeded when they are drawn from.
        places = [place for place in state.places if isinstance(place.generator, torch.Generator)]
        state.bound = bound = self._bound(code, state.streams, context, places)
        return bound

    def bind_here(self, streams: Streams) -> Bound:
        """The recipe for the consumer's own thread, with the user's objects themselves."""
        places: list[Place] = []
        if not isinstance(streams, NoStreams):
            if self._held is None:
                self._held = self._setup.code.held_generators()
            places = [Place(held.place, held.generator) for held in self._held]
        return self._bound(self._setup.code, streams, self._context, places)

    def _bound(
        self, code: Code, streams: Streams, context: Context, places: Sequence[Place]
    ) -> Bound:
        """`places`: where random generators are held that cannot be asked before they draw."""
        transforms, collate = code.transforms, code.collate_fn
        if self._method == "__getitems__":
            transforms = [partial(_each, transform) for transform in transforms]
        if self.batch_is_ticket:
            collate = partial(_only, collate)
        if self._collates_pinned and self.row_writer is not None:
            collate = self.row_writer.collate
        steps = [_method_getter(code.dataset, self._method), *transforms]
        if self._check is not None:
            steps = [self._check.checked(code, step) for step in steps]
        if places:
            steps = [partial(_seeded, places, step) for step in steps]
            collate = partial(_seeded, places, collate)
        return Bound(self, steps, collate, self._finish, code.on_error, streams, context)

    def for_epoch(self, seeds: EpochSeeds, grad: bool, autocast: Autocast) -> MapRecipe:
        """The recipe of another epoch, in a process that has only that of an earlier one."""
        recipe = copy.copy(self)
        recipe.seeds, recipe.seed = seeds, seeds.seed
        recipe._grad, recipe._autocast = grad, autocast
        return recipe

    def finished_by(self, finish: Callable[[Any], Any]) -> MapRecipe:
        """The recipe with `finish` applied to every batch."""
        recipe = copy.copy(self)
        recipe._finish = finish
        return recipe

    @property
    def dataset(self) -> Any:
        return self._setup.code.dataset

    def step_name(self, step: int) -> str:
        if step == 0:
            return self._first_step
        return name_transform(step - 1, self._transforms[step - 1])


def batch_is_ticket(loader: DataLoader[Any]) -> bool:
    """Whether one ticket is a whole drawn batch: where batching is off (`batch_size=None`), and
    where the dataset fetches batches itself."""
    return not loader._auto_collation or _fetches_batches(loader.dataset)


def as_it_is(batch: Any) -> Any:
    """`batch`: it needs no more."""
    return batch


def _fetches_batches(dataset: Any) -> bool:
    """Whether `dataset` has a `__getitems__` of its own.

    `Subset` has one too, which only loops over the samples: it would hide them from us.
    """
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


def _method_getter(dataset: Any, method: str) -> Callable[[Any], Any]:
    if method == "__getitems__":
        getter: Callable[[Any], Any] = dataset.__getitems__
        return getter
    # Looked up on the type, as brackets do, and once rather than for every sample.
    function = getattr(type(dataset), method, None)
    if function is None or not hasattr(function, "__get__"):
        # None, for which brackets raise their TypeError, or a callable that does not bind.
        return partial(operator.getitem, dataset)
    getter = function.__get__(dataset)
    return getter


# The following are for `partial`, which can be pickled where a function made here could not.


def _seeded(places: Sequence[Place], step: Callable[[Any], Any], value: Any) -> Any:
    """Run `step` with held generators that stand in the sample's streams."""
    for place in places:
        place.here()
    return step(value)


def _each(transform: Callable[[Any], Any], samples: list[Any]) -> list[Any]:
    """The step that applies `transform` to every sample of a batch fetched as one."""
    return [transform(sample) for sample in samples]


def _only(collate_fn: Callable[[Any], Any], samples: list[Any]) -> Any:
    """The collate function of batches that are one ticket each."""
    return collate_fn(samples[0])
