"""Which generators that objects hold the sample of a thread has drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minato_async.seeding.current import NO_SAMPLE

if TYPE_CHECKING:
    from minato_async.seeding.held import Place


class HeldInSample:
    """The held generators that the current sample of a thread has drawn from."""

    __slots__ = ("_arrived", "_joined", "_sample", "_streams", "explicit")

    def __init__(self, streams: Any) -> None:
        self._streams = streams
        self._sample: Any = NO_SAMPLE
        self._joined: list[Place] = []
        #: States of those that it has drawn from elsewhere, and not here yet.
        self._arrived: dict[str, Any] = {}
        #: What `sample_rng` gives on this thread.
        self.explicit: Any = None

    def _follow(self) -> None:
        if self._sample is not self._streams.ticket:
            self.forget()
            self._sample = self._streams.ticket

    def join(self, place: Place) -> Any:
        """`place` is drawn from; returns its state if it was before, elsewhere."""
        self._follow()
        self._joined.append(place)
        return self._arrived.pop(place.name, None)

    def save(self) -> dict[str, Any] | None:
        """The states by place; None: there are none."""
        self._follow()
        states = {**self._arrived, **{place.name: place.save() for place in self._joined}}
        self.forget()
        return states or None

    def restore(self, states: dict[str, Any]) -> None:
        self._follow()
        self._arrived.update(states)

    def forget(self) -> None:
        """There is another sample, whose ticket may be the same object."""
        self._sample = NO_SAMPLE
        for place in self._joined:
            place.sample = NO_SAMPLE
        self._joined.clear()
        self._arrived.clear()
