"""The tickets of one epoch: drawn from the sampler, or what is left of them when it is resumed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from minato_async.resuming.order import SamplerOrder, SoFar
from minato_async.resuming.positions import Received
from minato_async.resuming.ranks import share_of_rest
from minato_async.resuming.samplers import cuts_a_sequence
from minato_async.seeding.repeats import RepeatCounter


class Draw(NamedTuple):
    """The tickets of one batch, as it was drawn."""

    indices: list[Any]
    #: Samples that each of them stands for.
    unit: int
    #: How often the epoch has drawn each index before; empty: never.
    repeats: Sequence[int]
    #: Of each in the epoch, counted from 0. An empty batch has one, too.
    positions: Sequence[int]

    def rows(self, rows: Sequence[int]) -> Draw:
        """The tickets of `rows` alone."""
        if len(rows) == len(self.positions):
            return self
        return Draw(
            [self.indices[row] for row in rows],
            self.unit,
            [self.repeats[row] for row in rows] if self.repeats else (),
            [self.positions[row] for row in rows],
        )


class Draws(Iterator[Draw]):
    """Draws the tickets of one epoch, and knows which of them the consumer has received.

    `next` is for whoever holds `lock`; all else any thread may call. What was drawn and not
    received is kept where the sampler cannot be had to draw it again.
    """

    def __init__(
        self, loader: DataLoader[Any], batch_is_ticket: bool, repeats: RepeatCounter | None
    ) -> None:
        # An RLock, for a signal handler may ask for the state in the middle of a draw.
        self.lock = threading.RLock()
        #: While a draw goes on: the position before it, and what had been drawn then.
        self._before: tuple[int, SoFar] | None = None
        #: What was received before the epoch was shared out anew among ranks; None: it was not.
        self._shared: dict[str, Any] | None = None
        self._batch_is_ticket = batch_is_ticket
        self._repeats = repeats
        self._given_size = loader.batch_size
        plain = cuts_a_sequence(loader) and not batch_is_ticket
        #: Samples of a batch, if it does not matter which they are.
        self._batch_size = loader.batch_size if plain else None
        self._drop_last = bool(loader.drop_last)
        self._order = SamplerOrder(loader)
        self._position = 0
        self._received = Received()
        #: Received, and not yet noted there.
        self._news: deque[Sequence[Sequence[int]]] = deque()
        # Not the same as `lock`, which is held while the sampler draws.
        self._receiving = threading.RLock()
        #: What is left to be given of what was drawn before the epoch was resumed.
        self._left: deque[Draw] = deque()
        #: What is drawn is made into batches here, and a short one at the end dropped.
        self._regroups = False
        #: Of that, samples that do not make a batch of their own.
        self._carry: Draw | None = None
        #: Drawn and, as far as it was looked, not received.
        self._kept: deque[Draw] = deque()
        self._look_at = 64
        #: The consumer has come to the end.
        self.over = False

    def open(self, sampler_states: dict[str, Any] | None = None) -> None:
        """Ask the sampler, for an epoch from its beginning. If the one before it was loaded, with
        the states that samplers have of their own."""
        if sampler_states:
            self._order.begin_after(sampler_states)
        self._order.open()

    def __next__(self) -> Draw:
        while not self._left:
            if self._carry is None and not self._regroups:
                return self._draw()
            try:
                self._regroup(self._draw())
            except StopIteration:
                carry, self._carry = self._carry, None
                if self._drop_last or carry is None:
                    raise
                return carry
        return self._left.popleft()

    def _draw(self) -> Draw:
        self._before = self._position, self._order.so_far()
        try:
            draw = self._tickets(next(self._order))
            if not self._order.is_known:
                self._keep(draw)
            return draw
        finally:
            self._before = None

    def _tickets(self, drawn: Any) -> Draw:
        unit = 1
        if self._batch_is_ticket:
            indices = [drawn]
            unit = (len(drawn) or 1) if isinstance(drawn, list) else 1
        else:
            indices = list(drawn)
        repeats = () if self._repeats is None else self._repeats.count(indices)
        first = self._position
        self._position = first + (len(indices) or 1)
        return Draw(indices, unit, repeats, range(first, self._position))

    # What the consumer has

    def received(self, positions: Sequence[Sequence[int]]) -> None:
        """The consumer has these. Whoever is interrupted in here has them all, or none of them."""
        self._note_received()
        self._news.append(positions)

    def _note_received(self) -> None:
        news = self._news
        with self._receiving:
            while news:
                positions = news[0]
                for run in positions:
                    self._received.add(run)
                # A signal handler that asks for the state may have done it meanwhile.
                if news and news[0] is positions:
                    news.popleft()

    def end(self) -> None:
        """The consumer has come to the end. Nothing of the user's is kept any more."""
        self.over = True
        self._order.close()
        self._left.clear()
        self._kept.clear()
        self._carry = self._repeats = None

    def _keep(self, draw: Draw) -> None:
        kept, frontier = self._kept, self._received.frontier
        kept.append(draw)
        while kept and kept[0].positions[-1] < frontier:
            kept.popleft()
        if len(kept) > self._look_at:
            # Behind a slow sample, most are received already.
            with self._receiving:
                missing = self._received.missing
                self._kept = deque(d for d in kept if missing(d.positions))
            self._look_at = 2 * len(self._kept) + 64

    # In a state

    def state(self) -> dict[str, Any]:
        """What is left of the epoch, as plain values."""
        with self.lock:
            return self._state()

    def _state(self) -> dict[str, Any]:
        with self._receiving:
            self._note_received()
            received = self._received.copy()
        order = self._order
        # A signal has interrupted a draw of this thread's: it has not been made.
        position, drawn = self._before or (self._position, order.so_far())
        if self._before is not None and order.keeps_its_state:
            raise RuntimeError(
                "the sampler is drawing: its own state can be asked for when next() has returned"
            )
        state: dict[str, Any] = {
            "tickets": "batches" if self._batch_is_ticket else "samples",
            "positions": position,
            "batch_size": self._given_size,
            "received": received.state(),
            "in_order": not received.has_gaps,
            "order": order.state(drawn),
        }
        if self._shared is not None:
            state["shared"] = self._shared
        if not order.is_known:
            state["pending"] = [
                _plain(draw.rows(rows))
                for draw in self._kept
                if draw.positions[-1] < position and (rows := received.missing(draw.positions))
            ]
        if order.keeps_its_state and self._repeats is not None:
            state["repeats"] = self._repeats.state()
        return state

    def resume(self, loader: DataLoader[Any], state: dict[str, Any]) -> None:
        """As `open`, for what is left in a `state`."""
        if "shared" in state:
            self._shared = state["shared"]
            self._order.of_rest(share_of_rest(loader, self._shared))
            if "received" not in state:  # it has just been shared out
                self._order.open()
                return
        self._received = Received.of_state(state["received"])
        if self._batch_size is not None and self._drop_last:
            # In batches of another size, others were to be dropped.
            self._regroups = True
            self._order.keep_the_last()
        order, beyond = state["order"], list[Draw]()
        if order["ended"] and "pending" in state:
            # Nobody need know how the sampler came by them.
            self._order.skip(order)
        else:
            self._order.reopen(order)
            for drawn in self._order.again(order):
                draw = self._tickets(drawn)
                if "pending" not in state:
                    self._regroup(draw)
                elif rows := [r for r, p in enumerate(draw.positions) if p >= state["positions"]]:
                    # Of a batch of another size, keys that had not been drawn.
                    beyond.append(draw.rows(rows))
        for draw in [*map(_draw_of, state.get("pending", ())), *beyond]:
            self._kept.append(draw)
            self._regroup(draw)
        self._position = max(self._position, state["positions"])
        if self._repeats is not None and "repeats" in state:
            self._repeats.load(state["repeats"])

    def _regroup(self, draw: Draw) -> None:
        """What is left of `draw` is to be given: in batches of the size that they have to have."""
        rows = self._received.missing(draw.positions)
        if not rows:
            return
        size, draw = self._batch_size, draw.rows(rows)
        if size is None or (self._carry is None and len(rows) == size):
            self._left.append(draw)
            return
        joined = draw if self._carry is None else _joined(self._carry, draw)
        count = len(joined.indices)
        for start in range(0, count - count % size, size):
            self._left.append(joined.rows(range(start, start + size)))
        rest = range(count - count % size, count)
        self._carry = joined.rows(rest) if rest else None


def _joined(one: Draw, other: Draw) -> Draw:
    repeats: list[int] = []
    if one.repeats or other.repeats:
        repeats += one.repeats or [0] * len(one.indices)
        repeats += other.repeats or [0] * len(other.indices)
    positions = [*one.positions, *other.positions]
    return Draw([*one.indices, *other.indices], 1, repeats, positions)


def _plain(draw: Draw) -> dict[str, Any]:
    return {
        "keys": list(draw.indices),
        "unit": draw.unit,
        "repeats": list(draw.repeats),
        "positions": list(draw.positions),
    }


def _draw_of(state: dict[str, Any]) -> Draw:
    positions: Sequence[int] = state["positions"]
    if positions[-1] - positions[0] == len(positions) - 1:
        positions = range(positions[0], positions[-1] + 1)
    return Draw(list(state["keys"]), state["unit"], state["repeats"], positions)
