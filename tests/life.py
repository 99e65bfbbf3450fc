"""A recorder that checks the grammar of samples' lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block
from minato_async.engine.recorder import Outcome, Recorder


@dataclass
class Life:
    """What is known of one sample: where it is, and what has been told of it, in order."""

    #: "drawn", "claimed", "waiting" (in the temp queue), "expired" or "settled".
    where: str = "drawn"
    worker: str = ""
    #: Steps that have ended, by the number of the step.
    steps: list[int] = field(default_factory=list)
    inside: int | None = None
    parked: bool = False
    outcome: Outcome | None = None
    told: list[str] = field(default_factory=list)


class Lives(Recorder):
    """Notes what it is told, and checks it afterwards: appending is all that is done meanwhile."""

    detailed = True

    def __init__(self) -> None:
        #: (what, positions, details). A position is a block's first one plus the row.
        self.events: list[tuple[str, Sequence[int], Any]] = []

    def _note(self, what: str, block: Block, rows: Sequence[int], details: Any = None) -> None:
        self.events.append((what, [block.first + row for row in rows], details))

    def claimed(self, block: Block, rows: Sequence[int], worker: str) -> None:
        self._note("claimed", block, rows, worker)

    def returned(self, block: Block, rows: Sequence[int]) -> None:
        self._note("returned", block, rows)

    def began(self, block: Block, row: int, step: int, worker: str, when: float) -> None:
        self._note("began", block, (row,), (step, worker, when))

    def ended(self, block: Block, rows: Sequence[int], step: int, worker: str, when: float) -> None:
        self._note("ended", block, rows, (step, worker, when))

    def diverted(self, block: Block, row: int) -> None:
        self._note("diverted", block, (row,))

    def resumed(self, block: Block, row: int, worker: str) -> None:
        self._note("resumed", block, (row,), worker)

    def parked(self, block: Block, row: int, worker: str) -> None:
        self._note("parked", block, (row,), worker)

    def unparked(self, block: Block, row: int, worker: str) -> None:
        self._note("unparked", block, (row,), worker)

    def handed_off(self, block: Block, row: int) -> None:
        self._note("handed_off", block, (row,))

    def expired(self, block: Block, row: int) -> None:
        self._note("expired", block, (row,))

    def settled(self, block: Block, rows: Sequence[int], outcome: Outcome) -> None:
        self._note("settled", block, rows, outcome)

    def collated(self, batch: Batch, worker: str, began: float, ended: float) -> None:
        assert began <= ended
        self.events.append(("collated", (), id(batch)))

    def taken(self, batch: Batch, waited: float) -> None:
        assert waited >= 0
        self.events.append(("taken", (), id(batch)))

    def count(self, what: str) -> int:
        """How often it was told."""
        return sum(event[0] == what for event in self.events)

    def check(self, steps: int) -> dict[int, Life]:
        """The lives of all samples, by position; each has `steps` steps. Fails where something
        was told that cannot be."""
        checked = _Check(steps)
        for what, positions, details in self.events:
            try:
                getattr(checked, what)(positions, details)
            except AssertionError as error:
                error.add_note(f"{what} {list(positions)} {details}")
                error.add_note(f"{[checked.lives.get(position) for position in positions]}")
                raise
        checked.end()
        return checked.lives


class _Check:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.lives: dict[int, Life] = {}
        #: By worker, the position and the step of what it is in, and when that began.
        self._running: dict[str, tuple[int, int, float]] = {}
        self._collated = 0
        self._taken = 0

    def _each(self, what: str, positions: Sequence[int], *where: str) -> list[Life]:
        lives = [self.lives.setdefault(position, Life()) for position in positions]
        for life in lives:
            assert life.where in where
            life.told.append(what)
        return lives

    def claimed(self, positions: Sequence[int], worker: str) -> None:
        assert positions
        for life in self._each("claimed", positions, "drawn"):
            life.where, life.worker = "claimed", worker

    def returned(self, positions: Sequence[int], _: Any) -> None:
        assert positions
        for life in self._each("returned", positions, "claimed"):
            # What was diverted goes on where it was.
            life.where = "waiting" if "diverted" in life.told else "drawn"
            if life.where == "drawn":
                life.steps.clear()

    def began(self, positions: Sequence[int], details: tuple[int, str, float]) -> None:
        step, worker, when = details
        (life,) = self._each("began", positions, "claimed")
        assert life.worker == worker
        assert life.inside is None
        assert step == len(life.steps)
        assert worker not in self._running
        life.inside = step
        self._running[worker] = positions[0], step, when

    def ended(self, positions: Sequence[int], details: tuple[int, str, float]) -> None:
        step, worker, when = details
        position, begun, since = self._running.pop(worker)
        assert (begun, since <= when) == (step, True)
        self.lives[position].inside = None
        if positions:
            assert positions[0] == position
        # Those that are timed together may be settled before; and who has expired is late.
        for life in self._each("ended", positions, "claimed", "settled", "expired"):
            if life.where == "settled":
                assert self._steps == 1 or "expired" in life.told
            assert life.worker == worker
            life.steps.append(step)

    def diverted(self, positions: Sequence[int], _: Any) -> None:
        (life,) = self._each("diverted", positions, "claimed")
        assert life.inside is None
        assert 0 < len(life.steps) < self._steps
        life.where = "waiting"

    def resumed(self, positions: Sequence[int], worker: str) -> None:
        (life,) = self._each("resumed", positions, "waiting")
        life.where, life.worker = "claimed", worker

    def parked(self, positions: Sequence[int], worker: str) -> None:
        (life,) = self._each("parked", positions, "claimed")
        assert (life.worker, life.parked) == (worker, False)
        assert worker in self._running
        life.parked = True

    def unparked(self, positions: Sequence[int], worker: str) -> None:
        (life,) = self._each("unparked", positions, "claimed", "expired", "settled")
        assert (life.worker, life.parked) == (worker, True)
        life.parked = False

    def handed_off(self, positions: Sequence[int], _: Any) -> None:
        self._each("handed_off", positions, "claimed")

    def expired(self, positions: Sequence[int], _: Any) -> None:
        for life in self._each("expired", positions, "claimed"):
            life.where = "expired"

    def settled(self, positions: Sequence[int], outcome: Outcome) -> None:
        assert positions
        for life in self._each("settled", positions, "claimed", "expired"):
            if outcome is Outcome.FINISHED and life.where == "claimed" and self._steps > 1:
                assert life.inside is None
            life.where, life.outcome = "settled", outcome

    def collated(self, _: Sequence[int], batch: int) -> None:
        self._collated += 1

    def taken(self, _: Sequence[int], batch: int) -> None:
        self._taken += 1

    def end(self) -> None:
        """When all batches have been taken."""
        assert self._collated <= self._taken
        for position, life in self.lives.items():
            assert life.where == "settled", (position, life)
            assert not life.parked
            # A worker that nobody waits for may be in its step still, or have died in it.
            if "expired" in life.told or life.worker in self._running:
                continue
            assert life.inside is None
            if life.outcome is Outcome.FINISHED:
                assert life.steps, (position, life)
