"""The order that the sampler has in one epoch, and how it is had again in another process.

torch's own samplers are run once more, from the states that their generators had. A sampler with
`state_dict` goes on from its own state. Any other is run once more too, from the states of all
generators that it may have drawn from, and what it draws is compared.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader

from minato_async.resuming.own_state import has_state
from minato_async.resuming.random_states import as_noted, note
from minato_async.resuming.samplers import (
    cuts_a_sequence,
    drawn_from,
    is_torchs_own,
    keepers_of,
    sampler_of,
)
from minato_async.seeding.keys import key_number

#: Keys, and batches of other batch samplers, by which one knows that an order is the same again.
_COMPARED_KEYS = 256
_COMPARED_BATCHES = 8


class SoFar(NamedTuple):
    """How much was drawn."""

    number: int
    #: What the generators were before the first; None: nothing was drawn.
    first_draw: dict[str, Any] | None
    ended: bool


class SamplerOrder(Iterator[Any]):
    """What the sampler of `loader` draws in one epoch. One thread at a time."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader_sampler: Iterable[Any] = loader._index_sampler
        self._name = type(sampler_of(loader)).__qualname__
        #: Keys of a batch that torch's own `BatchSampler` draws, but for the last.
        self._size = loader.batch_size if cuts_a_sequence(loader) else None
        self._keepers = keepers_of(loader)
        self._sources = drawn_from(loader)
        self._draws_when_opened = not is_torchs_own(loader)
        self._opened: dict[str, Any] = {}
        self._first_draw: dict[str, Any] | None = None
        self._iterator: Iterator[Any] = iter(())
        #: What was drawn last: keys where torch's own `BatchSampler` cuts them into batches, whose
        #: size may be another when the epoch is resumed; otherwise what `next` has returned.
        most = _COMPARED_BATCHES if self._size is None else _COMPARED_KEYS
        self._last: deque[Any] = deque(maxlen=most)
        #: How many of those were drawn.
        self.drawn = 0
        #: There is no more.
        self.ended = False

    def open(self) -> None:
        """Ask the sampler for its order."""
        if self._draws_when_opened and not self._keepers:
            self._opened = note(self._sources)
        self._iterator = iter(self._loader_sampler)
        if has_state(self._iterator):
            self._keepers["iterator"] = self._iterator

    def of_rest(self, rest: Iterable[Any]) -> None:
        """`rest` takes the place of the sampler. To be called first."""
        self._loader_sampler = rest

    def keep_the_last(self) -> None:
        """Of torch's own `BatchSampler`: draw the short batch at the end, too. To be called before
        it is opened."""
        batches: Any = self._loader_sampler
        self._loader_sampler = BatchSampler(batches.sampler, batches.batch_size, drop_last=False)

    @property
    def keeps_its_state(self) -> bool:
        return bool(self._keepers)

    @property
    def is_known(self) -> bool:
        """Whether it is certain that the sampler draws the same again."""
        return not (self._draws_when_opened or self._keepers)

    def __next__(self) -> Any:
        if self._first_draw is None:
            self._first_draw = {} if self._keepers else note(self._sources)
        try:
            drawn = next(self._iterator)
        except StopIteration:
            self.ended = True
            raise
        if self._size is None:
            self.drawn += 1
            self._last.append(drawn)
            return drawn
        self.drawn += len(drawn)
        self._last.extend(drawn)
        if len(drawn) < self._size:
            # The sampler inside has come to its end, as far as it knows itself.
            self.ended = True
        return drawn

    # In a state

    def so_far(self) -> SoFar:
        return SoFar(self.drawn, self._first_draw, self.ended)

    def state(self, drawn: SoFar) -> dict[str, Any]:
        """How to have it again, from after what was `drawn`. The caller is the one thread."""
        state: dict[str, Any] = {"drawn": drawn.number, "ended": drawn.ended}
        if self._keepers:
            state["own"] = {name: item.state_dict() for name, item in self._keepers.items()}
        else:
            # In the middle of a draw the latest are others, and are not compared.
            state["digest"] = _digest(self._last) if drawn.number == self.drawn else None
            state["first_draw"] = drawn.first_draw
            noted = drawn.first_draw or {}
            state["opened"] = {n: s for n, s in self._opened.items() if s != noted.get(n)}
        return state

    def reopen(self, state: dict[str, Any]) -> None:
        """As `open`, for what has the `state` of another: `again` and `next` give what it gave."""
        own = state.get("own", {})
        for name, item in self._keepers.items():
            if name in own:
                item.load_state_dict(own[name])
        self._first_draw = state.get("first_draw")
        self._opened = (self._first_draw or {}) | state.get("opened", {})
        with as_noted(self._sources, self._opened):
            self._iterator = iter(self._loader_sampler)
        if has_state(self._iterator) and "iterator" in own:
            self._keepers["iterator"] = self._iterator
            self._keepers["iterator"].load_state_dict(own["iterator"])

    def skip(self, state: dict[str, Any]) -> None:
        """As `reopen`, for an order that had come to its end: nothing is drawn again."""
        self.drawn, self.ended = state["drawn"], True
        self.begin_after(state.get("own", {}))

    def begin_after(self, own: dict[str, Any]) -> None:
        """To be called before the next `open`, where the sampler's `own` state was saved when it
        had no more to draw."""
        keepers = {name: item for name, item in self._keepers.items() if name in own}
        for name, item in keepers.items():
            item.load_state_dict(own[name])
        # For some it is the end of an epoch, which they have to come to: the next `iter` begins
        # another one. For others the next has begun with this: then it was one key too many.
        if keepers and next(iter(self._loader_sampler), self) is not self:
            for name, item in keepers.items():
                item.load_state_dict(own[name])

    def again(self, state: dict[str, Any]) -> Iterator[Any]:
        """All that was drawn before `state`, drawn again; in batches of another size it may be some
        keys more. To be called, and run to its end, after `reopen`. Raises RuntimeError at the end
        if the sampler draws other keys."""
        wanted: int = state["drawn"]
        if self._keepers:
            self.drawn = wanted
            return
        digest: int | None = None
        with as_noted(self._sources, self._first_draw or {}):
            while self.drawn < wanted:
                drawn = next(self._iterator, None)
                if drawn is None:
                    break
                drawn_keys = [drawn] if self._size is None else drawn
                # As far as the other had come, and then the rest.
                left = wanted - self.drawn
                self._last.extend(drawn_keys[:left])
                if left <= len(drawn_keys):
                    digest = _digest(self._last)
                self._last.extend(drawn_keys[left:])
                self.drawn += len(drawn_keys)
                yield drawn
            if state["ended"]:
                # Some draw from their generator at the end, too. If the other one dropped keys
                # there, they are had now.
                for drawn in self._iterator:
                    self.drawn += 1 if self._size is None else len(drawn)
                    self._last.extend([drawn] if self._size is None else drawn)
                    yield drawn
        # The state of another rank has no digest: here it is other keys.
        if self.drawn < wanted or (wanted and state["digest"] not in (None, digest)):
            raise RuntimeError(
                f"this epoch cannot be resumed: the sampler ({self._name}) does not draw what it "
                "drew when the state was saved. Call its set_epoch first if it has one, give it "
                "the generator or the seed that it had, or let it have state_dict and "
                "load_state_dict, which are then asked instead"
            )

    def close(self) -> None:
        """The epoch has come to its end: keep nothing of the user's."""
        self._iterator = iter(())
        self._keepers = {}
        self._last.clear()
        self._opened, self._first_draw = {}, {}


def _digest(drawn: Sequence[Any]) -> int:
    """The same in every process for the same keys. Those that have no digest count as one."""
    digest = 0
    for batch in drawn:
        keys = batch if isinstance(batch, (list, tuple)) else [batch]
        for key in keys:
            try:
                number = key_number(key)
            except Exception:
                number = 0
            digest = zlib.crc32(number.to_bytes(9, "little", signed=True), digest)
    return digest
