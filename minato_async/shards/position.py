"""Where in a shard the consumer is, and how a reader comes there again."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from minato_async.resuming.own_state import has_state


class Snapshot(NamedTuple):
    """What a dataset, or its iterator, has told of its own state."""

    #: Of the sample that would have been read next.
    ordinal: int
    #: None: it has none.
    dataset: Any
    iterator: Any


class Mark(NamedTuple):
    """Where a shard is when a batch was read from it."""

    #: Of the sample that would be read next; those that failed count.
    ordinal: int
    #: There is no more.
    ended: bool
    #: The last that was made, for this batch or an earlier one.
    snapshot: Snapshot | None


class Start(NamedTuple):
    """Where a shard goes on in an epoch that is resumed."""

    #: Batches that were received from it.
    rounds: int
    mark: Mark


def snapshot_of(dataset: Any, iterator: Any, ordinal: int) -> Snapshot | None:
    """None: neither has a state."""
    states = [item.state_dict() if has_state(item) else None for item in (dataset, iterator)]
    if states == [None, None]:
        return None
    # Theirs, and they go on.
    return Snapshot(ordinal, *copy.deepcopy(states))


def opened(dataset: Any, snapshot: Snapshot | None) -> Iterator[Any]:
    """An iterator over `dataset`, which goes on from `snapshot`."""
    if snapshot is not None and snapshot.dataset is not None:
        dataset.load_state_dict(copy.deepcopy(snapshot.dataset))
    iterator: Iterator[Any] = iter(dataset)
    if snapshot is not None and snapshot.iterator is not None:
        state: Any = iterator
        state.load_state_dict(copy.deepcopy(snapshot.iterator))
    return iterator


class ShardsReceived:
    """What the consumer has received of each shard in one epoch. One consumer at a time."""

    def __init__(self, shards: int, pipe_seed: int | None, starts: list[Start] | None) -> None:
        start = Start(0, Mark(0, False, None))
        self._at = [start] * shards if starts is None else list(starts)
        self._pipe_seed = pipe_seed
        #: The consumer has come to the end.
        self.over = False

    @property
    def batches(self) -> int:
        """Received from all."""
        return sum(start.rounds for start in self._at)

    def add(self, shard: int, mark: Mark | None) -> None:
        """A batch of `shard` was received, or its failure; None: nobody knows where it ended."""
        rounds, last = self._at[shard]
        self._at[shard] = Start(rounds + 1, mark or last)
        self.over = False  # some iterators find more after their end

    def end(self) -> None:
        self.over = True

    def state(self) -> dict[str, Any]:
        """As plain values, but for what snapshots hold."""
        return {"pipe_seed": self._pipe_seed, "shards": [_plain(start) for start in self._at]}


def _plain(start: Start) -> dict[str, Any]:
    rounds, (ordinal, ended, snapshot) = start
    made = None if snapshot is None else snapshot._asdict()
    return {"batches": rounds, "ordinal": ordinal, "ended": ended, "snapshot": made}


def starts_of(state: dict[str, Any]) -> list[Start]:
    """Those of a state."""
    found = []
    for shard in state["shards"]:
        snapshot = None if shard["snapshot"] is None else Snapshot(**shard["snapshot"])
        mark = Mark(shard["ordinal"], shard["ended"], snapshot)
        found.append(Start(shard["batches"], mark))
    return found
