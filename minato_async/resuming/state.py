"""The state of a loader: its form, and the checks that it is one of this loader."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from minato_async.resuming.own_state import has_state
from minato_async.resuming.random_states import note
from minato_async.resuming.samplers import (
    describe,
    epoch_setters,
    generators_of,
    keepers_of,
)

FORMAT = "minato_async.MinatoLoader"
#: Raised whenever a state is written that an older release would read wrongly.
VERSION = 1


class Left(Protocol):
    """What is left of an epoch: `iteration.draws.Draws` and `shards.position.ShardsReceived`."""

    @property
    def over(self) -> bool:
        """The consumer has come to its end."""

    def state(self) -> dict[str, Any]:
        """What is left of it, as plain values."""


@dataclass(frozen=True)
class Progress:
    """How far the consumer of one iterator is."""

    #: Of the epoch, from 0.
    number: int
    base_seed: int
    left: Left


def state_of(loader: DataLoader[Any], epochs: int, progress: Progress | None) -> dict[str, Any]:
    """The state of `loader`, which has begun so many `epochs`; None: no iterator yet."""
    iterable = isinstance(loader.dataset, IterableDataset)
    state: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": "iterable" if iterable else "map",
        "epochs": epochs,
        "base_seed": None if progress is None else progress.base_seed,
        "generators": note(generators_of(loader)),
        "epoch": None,
    }
    if not iterable:
        setters = epoch_setters(loader)
        state["dataset_length"] = _length(loader.dataset)
        state["sampler"] = describe(loader)
        state["sampler_epochs"] = {name: item.epoch for name, item in setters.items()}
        if has_state(loader.dataset):
            dataset: Any = loader.dataset
            state["dataset"] = dataset.state_dict()
    if progress is not None and not progress.left.over:
        state["epoch"] = {"number": progress.number, **progress.left.state()}
    elif not iterable:
        keepers = keepers_of(loader)
        state["sampler_states"] = {name: item.state_dict() for name, item in keepers.items()}
    # Fresh, whatever a sampler or a dataset has given of its own.
    return copy.deepcopy(state)


def check_state(loader: DataLoader[Any], state: Any) -> dict[str, Any]:
    """A copy of `state`, if it can be loaded by `loader`.

    Raises TypeError or ValueError, which say what is different.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is a dict, as state_dict() returns it, got {type(state)!r}")
    if state.get("format") != FORMAT:
        raise ValueError(
            "this is not the state of a MinatoLoader: another loader's state says nothing of what "
            f"was delivered here. Its keys are {sorted(map(str, state))}"
        )
    version = state.get("version")
    if version != VERSION:
        raise ValueError(
            f"this state has version {version!r}, and this release of minato_async reads version "
            f"{VERSION}: load it with the release that has saved it"
        )
    kind = "iterable" if isinstance(loader.dataset, IterableDataset) else "map"
    if state["kind"] != kind:
        raise ValueError(
            f"this state was saved over a dataset of kind {state['kind']!r}, this loader's is of "
            f"kind {kind!r}"
        )
    loaded = copy.deepcopy(dict(state))
    if kind == "iterable" and state["epoch"] is not None:
        _check_shards(loader, state["epoch"])
    if kind == "map":
        _check_map(loader, state)
        if _of_another_rank(loader, state):
            loaded["epoch"]["order"]["digest"] = None
    return loaded


def _of_another_rank(loader: DataLoader[Any], state: Mapping[str, Any]) -> bool:
    rank = state["sampler"]["settings"].get("rank")
    in_epoch = state["epoch"] is not None
    return in_epoch and rank is not None and rank != describe(loader)["settings"]["rank"]


def _check_shards(loader: DataLoader[Any], epoch: Mapping[str, Any]) -> None:
    then, now = len(epoch["shards"]), shards_of(loader)
    if then != now:
        raise ValueError(
            f"this state was saved of {then} shards, and this loader reads {now}: each worker has "
            "its own, and what it yields depends on how many there are. Use num_workers="
            f"{then}, or iterable_mode='shared' for both, where there is one for any number"
        )


def shards_of(loader: DataLoader[Any]) -> int:
    """In how many shards an iterable dataset is read."""
    shared = getattr(loader, "iterable_mode", None) == "shared"
    return 1 if shared else max(1, loader.num_workers)


def _check_map(loader: DataLoader[Any], state: Mapping[str, Any]) -> None:
    then, now = state["dataset_length"], _length(loader.dataset)
    if then != now:
        raise ValueError(
            f"this state was saved over a dataset of {then} samples, this loader's has {now}: its "
            "positions would be those of other samples"
        )
    _check_sampler(state, describe(loader))
    epoch = state["epoch"]
    if epoch is not None:
        _check_tickets(loader, epoch)


def _check_sampler(state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    saved = state["sampler"]
    if saved["type"] != here["type"]:
        raise ValueError(
            f"this state was saved with the sampler {saved['type']}, this loader has {here['type']}"
        )
    epoch, then, now = state["epoch"], saved["settings"], here["settings"]
    # The states of all ranks, merged, have no rank.
    different = sorted(name for name in now if name in then and then[name] != now[name])
    if epoch is None:
        # Nothing was drawn that would have to be drawn again.
        return
    if "num_replicas" in different:
        raise ValueError(
            f"this state was saved by one of {then['num_replicas']} ranks, and here are "
            f"{now['num_replicas']}: what is left of the epoch is shared out anew by "
            "minato_async.merge_states, given the states of all ranks"
        )
    if different == ["rank"]:
        if epoch["in_order"]:
            return  # all ranks are equally far
        raise ValueError(
            f"this is the state of rank {then['rank']}, and this is rank {now['rank']}: with ready "
            "samples first each rank has received others. Save the state of each, or use "
            "in_order=True"
        )
    if different:
        was = ", ".join(f"{name}={then.get(name)!r} (here {now[name]!r})" for name in different)
        raise ValueError(f"this state was saved with another {here['type']}: {was}")


def _check_tickets(loader: DataLoader[Any], epoch: Mapping[str, Any]) -> None:
    if "tickets" not in epoch:
        return  # it was shared out anew: nothing has been drawn
    if epoch["batch_size"] != loader.batch_size and epoch["tickets"] == "batches":
        raise ValueError(
            f"this state counts batches of {epoch['batch_size']}, which the dataset fetches as one "
            f"(__getitems__); this loader has batch_size={loader.batch_size}"
        )


def tell_epochs(loader: DataLoader[Any], state: Mapping[str, Any]) -> None:
    """Tell the samplers which epoch they were in, as `set_epoch` does. The user may do it again."""
    setters = epoch_setters(loader)
    for name, epoch in state.get("sampler_epochs", {}).items():
        if name in setters:
            setters[name].set_epoch(epoch)


def load_dataset(loader: DataLoader[Any], state: Mapping[str, Any]) -> None:
    dataset: Any = loader.dataset
    if "dataset" in state and has_state(dataset):
        dataset.load_state_dict(state["dataset"])


def keeps_base_seed(loader: DataLoader[Any], state: Mapping[str, Any] | None) -> bool:
    """Whether the next iterator draws no base seed, but has the one of `state`: its epoch goes on,
    or workers persist, whose later epochs draw none."""
    if state is None or state["base_seed"] is None:
        return False
    return state["epoch"] is not None or loader.persistent_workers


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:
        return None
