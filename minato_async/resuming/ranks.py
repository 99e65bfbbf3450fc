"""What is left of an epoch that several ranks have begun, shared out anew among another number.

torch's `DistributedSampler` deals the keys of one order out to the ranks, one each in turn. The
place of a key in that order is its global position: it names the key whatever the number of ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from minato_async.resuming.positions import Received
from minato_async.resuming.samplers import sampler_of

#: The settings of a rank, and those that all ranks have in common.
_OF_A_RANK = ("num_replicas", "rank")


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of those that all ranks have saved at the same point of the training.

    Each rank of another number of ranks loads it, with the same epoch set at its sampler. What no
    rank had received is then shared out among them as torch's `DistributedSampler` shares out an
    epoch. Samples keep their random numbers where all ranks had one `seed`; else they get those of
    the first state.

    Args:
        states: what `state_dict()` returned on every rank, in any order.

    Raises:
        ValueError: if the sampler is another than torch's own `DistributedSampler`, for nobody else
            knows how it shares out what is left; if ranks are missing, or not in the same epoch.
    """
    given = sorted(states, key=_rank)
    if not given:
        raise ValueError("merge_states needs the states of all ranks, and got none")
    settings = given[0]["sampler"]["settings"]
    _check(given, settings)
    merged = copy.deepcopy(dict(given[0]))
    for name in _OF_A_RANK:
        del merged["sampler"]["settings"][name]
    if merged["epoch"] is not None:
        shared = _received_by_all(given)
        merged["epoch"] = {"number": merged["epoch"]["number"], "shared": shared}
    return merged


def _rank(state: Mapping[str, Any]) -> int:
    settings = state.get("sampler", {}).get("settings", {})
    if not settings.keys() >= set(_OF_A_RANK):
        kind = state.get("sampler", {}).get("type", "iterable dataset")
        raise ValueError(
            "states of several ranks can be merged where torch's own DistributedSampler shares the "
            f"samples out, and not for the sampler {kind}: how it would share out what is left is "
            "known to nobody else. Resume with the number of ranks that the states were saved with"
        )
    rank: int = settings["rank"]
    return rank


def _check(states: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
    ranks, wanted = [_rank(state) for state in states], settings["num_replicas"]
    if ranks != list(range(wanted)):
        raise ValueError(
            f"the states of {wanted} ranks are needed, each once; got those of {ranks}"
        )
    for name in ("format", "version", "kind", "dataset_length", "epochs", "sampler_epochs"):
        values = [state.get(name) for state in states]
        if any(value != values[0] for value in values):
            raise ValueError(f"the states are not of one point of one training: {name} is {values}")
    for state in states:
        common = {k: v for k, v in state["sampler"]["settings"].items() if k not in _OF_A_RANK}
        if common != {k: v for k, v in settings.items() if k not in _OF_A_RANK}:
            raise ValueError("the ranks had samplers with different settings")
    epochs = [state["epoch"] for state in states]
    if len({None if epoch is None else epoch["number"] for epoch in epochs}) > 1:
        raise ValueError("some ranks had come to the end of the epoch, and others had not")


def _received_by_all(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The global positions that any rank has received."""
    length = states[0]["dataset_length"]
    before = [state["epoch"].get("shared") for state in states]
    if any(shared != before[0] for shared in before):
        raise ValueError("the states go back to different states")
    received = Received() if before[0] is None else Received.of_state(before[0]["received"])
    left = _left(length, received)
    ranks = len(states)
    for rank, state in enumerate(states):
        for place in _places(state["epoch"], -(-len(left) // ranks)):
            # Beyond the end is what some ranks get twice, so that all have as many.
            if place * ranks + rank < len(left):
                received.add([left[place * ranks + rank]])
    return {"received": received.state()}


def _places(epoch: Mapping[str, Any], most: int) -> Iterator[int]:
    """The places of received samples in what one rank had to load."""
    if "received" not in epoch:
        return
    size = epoch["batch_size"] if epoch["tickets"] == "batches" and epoch["batch_size"] else 1
    for position in Received.of_state(epoch["received"]):
        yield from range(position * size, min((position + 1) * size, most))


def _left(length: int, received: Received) -> list[int]:
    """The global positions that nobody has received."""
    every = range(length)
    return [every[place] for place in received.missing(every)]


def share_of_rest(loader: DataLoader[Any], shared: Mapping[str, Any]) -> Iterable[Any]:
    """What takes the place of the loader's sampler for the rest of an epoch that was shared out
    anew: the batches of this rank, or its keys where batching is off."""
    sampler = sampler_of(loader)
    assert isinstance(sampler, DistributedSampler)
    alone = copy.copy(sampler)
    length = len(sampler.dataset)  # type: ignore[arg-type]
    alone.num_replicas, alone.rank = 1, 0
    alone.num_samples = alone.total_size = length
    order = list(alone)
    left = [order[position] for position in _left(length, Received.of_state(shared["received"]))]
    ranks = sampler.num_replicas
    if sampler.drop_last:
        del left[len(left) // ranks * ranks :]
    elif left:
        # As many for each: some come twice.
        missing = -len(left) % ranks
        left += (left * missing)[:missing]
    share = left[sampler.rank :: ranks]
    if loader.batch_sampler is None:
        return share
    assert loader.batch_size is not None
    return BatchSampler(share, loader.batch_size, bool(loader.drop_last))
