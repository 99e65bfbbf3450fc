"""`MinatoLoader` inside Hugging Face Accelerate, and inside the Trainer of transformers.

Accelerate wraps a loader for its process: a `DataLoaderShard` (or `DataLoaderDispatcher`) with a
loader of its own inside, its `base_dataloader`. It builds that one afresh, always of torch's class,
from the attributes that torch knows. So a `MinatoLoader` that went through `accelerator.prepare` is
lost, and nothing says so. What is here lets Accelerate build, and then puts ours back inside.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import accelerate

from minato_async.iteration.order import choose_order
from minato_async.loader import MinatoLoader
from minato_async.patching import TorchLoader


def prepare(accelerator: Any, *objects: Any, **options: Any) -> Any:
    """`accelerator.prepare(*objects, **options)`, with every `MinatoLoader` still one afterwards.

    Args:
        accelerator: the `accelerate.Accelerator`.
        objects: models, optimizers, schedulers, loaders, in any order.
        options: passed on, such as `device_placement`.

    Returns:
        What `accelerator.prepare` returns: the prepared objects in the same order, or the only one.

    With `use_stateful_dataloader=True` the loader's state is saved and loaded by
    `accelerator.save_state` and `load_state`, as that of torchdata's StatefulDataLoader would be.

    Raises:
        NotImplementedError: if Accelerate wraps the loader in something else than its own (on
            TPUs).
    """
    ours = [_inside(item) for item in objects]
    only_ours = all(
        loader is not None or not isinstance(item, TorchLoader)
        for item, loader in zip(objects, ours, strict=True)
    )
    # A loader of torchdata's starts workers, and loads, when it is asked for its first state.
    with _without_torchdata(accelerator) if only_ours else contextlib.nullcontext():
        result = accelerator.prepare(*objects, **options)
    results = [result] if len(objects) == 1 else result
    for prepared, loader in zip(results, ours, strict=True):
        if loader is not None and _inside(prepared) is None:
            _put_inside(prepared, loader, accelerator.use_stateful_dataloader)
    return result


@contextlib.contextmanager
def _without_torchdata(accelerator: Any) -> Iterator[None]:
    """Within this, Accelerate makes loaders of torch's class, whose states are not saved."""
    config = accelerator.dataloader_config
    wanted = config.use_stateful_dataloader
    config.use_stateful_dataloader = False
    try:
        yield
    finally:
        config.use_stateful_dataloader = wanted


def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
    """`accelerate.skip_first_batches`, which loses a `MinatoLoader` too, and here does not.

    Args:
        loader: a loader that `prepare` has returned, a `MinatoLoader`, or any other loader: those
            go through Accelerate unchanged.
        num_batches: how many of the sampler's batches to leave out.

    Returns:
        A loader like the given one, for one epoch, that starts later.

    Warns:
        UserWarning: if the loader does not keep the sampler's order: the first batches that it
            delivered are then not the first that were drawn, which are the ones left out.
    """
    skipping = accelerate.skip_first_batches(loader, num_batches)
    ours = _inside(loader)
    if ours is None:
        return skipping
    if not choose_order(ours, ours.in_order).by_position:
        warnings.warn(
            "skip_first_batches leaves out the batches that the sampler draws first, but this "
            "loader delivers them in another order: some samples will come twice, others not at "
            "all. MinatoLoader(..., in_order=True) keeps the order.",
            stacklevel=2,
        )
    if type(skipping) is TorchLoader:
        skipping = later = _made_like(skipping, ours)
    else:
        later = _put_inside(skipping, ours, getattr(loader, "use_stateful_dataloader", False))
    # Both are one loader to the user: its epochs, and so its samples' random streams, go on.
    vars(later)["_count_epoch"] = ours._count_epoch
    return skipping


class TrainerMixin:
    """Makes the loaders of a transformers `Trainer` `MinatoLoader`s.

    ::

        class Trainer(TrainerMixin, transformers.Trainer):
            minato_options = {"max_queue_size": 512}

    The arguments of `TrainingArguments` that begin with `dataloader_` mean what they mean for
    torch's loader. What is evaluated or predicted always comes in order, for the Trainer takes the
    n-th prediction for the n-th sample. A loader of another class than torch's own, which a
    subclass may have chosen, stays.
    """

    #: Arguments of `MinatoLoader` that `TrainingArguments` does not have.
    minato_options: ClassVar[Mapping[str, Any]] = {}

    def get_train_dataloader(self) -> Any:
        """The Trainer's loader for training, with a `MinatoLoader` inside."""
        return self._with_ours(super().get_train_dataloader())  # type: ignore[misc]

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loader for evaluation, with a `MinatoLoader` inside."""
        stock = super().get_eval_dataloader(*args, **kwargs)  # type: ignore[misc]
        return self._with_ours(stock, in_order=True)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loader for prediction, with a `MinatoLoader` inside."""
        stock = super().get_test_dataloader(*args, **kwargs)  # type: ignore[misc]
        return self._with_ours(stock, in_order=True)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """`Trainer.train`; also keeps our loader where it resumes in the middle of an epoch."""
        with _trainer_skips_with_ours():
            return super().train(*args, **kwargs)  # type: ignore[misc]

    def _with_ours(self, prepared: Any, **forced: Any) -> Any:
        stock = getattr(prepared, "base_dataloader", prepared)
        if type(stock) is not TorchLoader:
            return prepared
        options = {"in_order": stock.in_order, **self.minato_options, **forced}
        # Only the options count: all that torch knows is taken over from its loader.
        ours = MinatoLoader(stock.dataset, num_workers=stock.num_workers, **options)
        if stock is prepared:
            return _made_like(stock, ours)
        _put_inside(prepared, ours)
        return prepared


@contextlib.contextmanager
def _trainer_skips_with_ours() -> Iterator[None]:
    """The Trainer skips through a function that it has imported by name: there is no other way to
    reach the loader that it gets. Loaders that are not ours pass through ours unchanged."""
    module: Any = importlib.import_module("transformers.trainer")
    theirs = module.skip_first_batches
    module.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        module.skip_first_batches = theirs


def _inside(loader: Any) -> MinatoLoader[Any] | None:
    """The `MinatoLoader` that `loader` is, or has inside; None: there is none.

    What Accelerate wraps claims to be of the class of what is inside, so the type is asked.
    """
    if "base_dataloader" in getattr(loader, "__dict__", ()):
        loader = loader.base_dataloader
    return loader if issubclass(type(loader), MinatoLoader) else None


def _put_inside(
    prepared: Any, loader: MinatoLoader[Any], stateful: bool = False
) -> MinatoLoader[Any]:
    """Let `prepared` have a loader like `loader` inside. `stateful`: Accelerate saves its state."""
    stock: Any = getattr(prepared, "base_dataloader", None)
    if type(stock) is not TorchLoader and not _is_stateful(stock):
        raise NotImplementedError(
            f"Accelerate has made a {type(prepared).__name__} of the MinatoLoader, with "
            f"{type(stock).__name__} inside: there is no place to put it back"
        )
    ours = _made_like(stock, loader)
    prepared.base_dataloader = ours
    prepared.use_stateful_dataloader = stateful
    if stateful:
        prepared.dl_state_dict = ours.state_dict()
    else:
        # It would ask for the state with each batch, and save it never.
        vars(prepared)["_update_state_dict"] = _ask_for_no_state
    return ours


def _ask_for_no_state() -> None:
    """Takes the place of a method of a prepared loader's."""


def _is_stateful(stock: Any) -> bool:
    """Whether it is torchdata's loader, which Accelerate makes where its state is to be saved.
    Known by its name: torchdata need not be there."""
    kind = type(stock)
    return kind.__name__ == "StatefulDataLoader" and kind.__module__.startswith("torchdata.")


def _made_like(stock: TorchLoader[Any], loader: MinatoLoader[Any]) -> MinatoLoader[Any]:
    """A copy of `loader` with the dataset, samplers and all else that `stock` was given.

    Copied rather than constructed: it may be of a subclass with a constructor of its own.
    """
    ours = copy.copy(loader)
    # `vars`, because torch forbids to set a sampler afterwards. The order is for ours to say: when
    # the Trainer evaluates, it is not the one of its arguments. How often the state is asked for is
    # ours to say as well, and what torchdata's loader has beside torch's attributes is no use.
    given = {name: value for name, value in vars(stock).items() if name in vars(loader)}
    for name in ("in_order", "snapshot_every_n_steps"):
        given.pop(name, None)
    vars(ours).update(given)
    return ours
