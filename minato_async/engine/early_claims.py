"""Tickets that are known to be slow, and are claimed before their turn: so that they are finished
when their batch is due, and not begun when the epoch is about to end.

Everything here is plain state: the caller holds the engine's lock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from time import monotonic

from minato_async.engine.bell import DueBells
from minato_async.engine.feed import Block, Claim, Feed
from minato_async.scheduling.cost_book import EpochCosts

#: A ticket is claimed at least so many times its cost before it is due: costs are known to a factor
#: of two or so, and slow ones come in clusters.
MARGIN = 2.0
#: The same where ready samples come first: to be in time is of use at the end of the epoch alone. A
#: consumer that takes its time waits if workers are busy with slow samples of which none is due.
MARGIN_READY_FIRST = 1.25
#: A sample that was said to be slow is, if it costs this part of what slow ones cost at least.
_SLOW_INDEED = 0.5
#: Trust in the book that is gained by an early claim that proves slow; one that does not costs 1.
_REWARD = 2


class EarlyClaims:
    """Which tickets are claimed early, and when.

    The `workers` make `1 / costs.mean` samples a second each. So a ticket that costs c seconds is
    claimed at the latest when the feed is c * workers / mean positions before it, or earlier, by a
    margin. In order there is a second reason: a worker that has nothing else to do, because all
    places in the window are taken, begins a slow one however far ahead it is. Some places are kept
    for that.

    Where the book knows most samples, others are tried out: claimed early too, a few at a time, to
    find in time those that are slow.

    The book may be wrong. What is claimed early and is not slow takes a place in the window for
    nothing until its batch comes. So no more are under way, of which it has not shown that they
    are slow, than there is trust: that falls with each one that is not, and at 0 no more are
    claimed early in this epoch.
    """

    def __init__(
        self, feed: Feed, costs: EpochCosts, workers: int, in_order: bool, due: DueBells
    ) -> None:
        self._feed = feed
        self._due = due
        self._in_order = in_order
        margin = MARGIN if in_order else MARGIN_READY_FIRST
        self._lead = margin * workers / costs.mean
        #: Seconds after which it has shown that a sample is slow.
        self._indeed = _SLOW_INDEED * costs.limit
        #: Where the feed has to be for a ticket to be claimed, a number, and the ticket.
        self._waiting: list[tuple[float, int, Block, int]] = []
        self._added = 0
        #: Tickets of unknown cost, in drawing order; the next worker takes none of them.
        self._unknown: deque[tuple[Block, int]] = deque()
        self._others_first = False
        self._trust = max(2, workers // 2)
        self._most_trust = 4 * workers
        #: Tickets under way, and since when: those of which it has not shown that they are slow,
        #: and those of which it has.
        self._unproven: dict[tuple[Block, int], float] = {}
        self._proven: dict[tuple[Block, int], float] = {}
        #: Tickets claimed early so far.
        self.count = 0

    def add(self, block: Block, slow: Sequence[tuple[int, float]]) -> None:
        """Of `block`, which was just drawn, these rows are slow, or to be tried out: the row, and
        seconds of cost; 0: unknown."""
        if not self._trust:
            return
        for row, seconds in slow:
            if not seconds:
                self._unknown.append((block, row))
                continue
            self._added += 1
            start = block.first + row * block.unit - seconds * self._lead
            heapq.heappush(self._waiting, (start, self._added, block, row))
        self._keep_places()

    def claim(self, workers: int, idle: bool = False) -> Claim | None:
        """A ticket to be claimed early now, where there are so many `workers`; None: there is none.
        `idle`: the worker that asks has nothing else to do."""
        if not self._may_claim(workers, idle):
            return None if idle or not self._unknown else self._try_out()
        _, _, block, row = self._waiting[0]
        claim = self._feed.claim_early(block, row)
        if claim is not None:
            heapq.heappop(self._waiting)
            self._unproven[block, row] = monotonic()
            self.count += 1
            self._keep_places()
        return claim

    def _try_out(self) -> Claim | None:
        # Every other time: the batch that is due is not to wait for hundreds of them.
        self._others_first = not self._others_first
        if self._others_first or self._feed.ahead >= self._most_ahead // 2:
            return None
        while self._unknown:
            ticket = self._unknown[0]
            claim = self._feed.claim_early(*ticket)
            if claim is None and self._feed.is_unclaimed(*ticket):
                return None  # there is no place
            self._due.drop(self._unknown.popleft())
            if claim is not None:
                self.count += 1
                return claim
        return None

    def claimable(self, workers: int) -> int:
        """Tickets that idle workers could claim now."""
        if not (self._may_claim(workers, idle=True) or self._may_claim(workers, idle=False)):
            return 0
        return min(len(self._waiting), workers)

    def _may_claim(self, workers: int, idle: bool) -> bool:
        self._forget_stale()
        if not self._waiting or workers < 2 or (idle and not self._in_order):
            return False
        start, _, block, _ = self._waiting[0]
        # One worker is left to tickets in turn: the first batch is not to wait for slow samples
        # that others will need.
        if not idle and start > self._feed.position:
            return False
        self._look()
        busy = len(self._unproven) + len(self._proven)
        if busy >= (workers if idle else workers - 1) or len(self._unproven) >= self._trust:
            return False
        return self._feed.may_claim_early(block) and (
            block.reached or not self._in_order or self._feed.ahead < self._most_ahead
        )

    @property
    def _most_ahead(self) -> int:
        """Half of what the batch that is due does not need: nearer batches need places, too."""
        return (self._feed.most_ahead + 1) // 2

    def _keep_places(self) -> None:
        if self._in_order:
            kept = min(len(self._waiting), self._most_ahead - self._feed.ahead)
            self._feed.kept_for_early = max(0, kept)

    def _forget_stale(self) -> None:
        """Drop what was claimed in turn meanwhile."""
        waiting, changed = self._waiting, False
        while waiting and not self._feed.is_unclaimed(waiting[0][2], waiting[0][3]):
            self._due.drop(heapq.heappop(waiting))
            changed = True
        if changed:
            self._keep_places()

    def _look(self) -> None:
        """What has shown in the meantime?"""
        now = monotonic()
        for under_way in (self._unproven, self._proven):
            for ticket in [t for t in under_way if t[0].settled[t[1]]]:
                self._leave(under_way, ticket)
        for ticket, since in list(self._unproven.items()):
            if now - since >= self._indeed:
                self._proven[ticket] = self._unproven.pop(ticket)
                self._trust = min(self._trust + _REWARD, self._most_trust)

    def _leave(self, under_way: dict[tuple[Block, int], float], ticket: tuple[Block, int]) -> None:
        del under_way[ticket]
        self._due.drop(ticket)

    def finished(self, block: Block, row: int, seconds: float) -> None:
        """A ticket that was claimed early has cost `seconds`."""
        ticket = block, row
        if ticket in self._proven:
            self._leave(self._proven, ticket)
        elif ticket in self._unproven:
            self._leave(self._unproven, ticket)
            if seconds >= self._indeed:
                self._trust = min(self._trust + _REWARD, self._most_trust)
                return
            self._trust -= 1
            if self._trust <= 0:
                self.stop()

    def put_back(self, block: Block, row: int) -> None:
        """It was not begun, or nothing is left of it."""
        for under_way in (self._unproven, self._proven):
            if (block, row) in under_way:
                self._leave(under_way, (block, row))

    def stop(self) -> None:
        """Claim no more early in this epoch."""
        self._trust = 0
        self._due.drop(self._waiting, self._unknown)
        self._waiting, self._unknown = [], deque()
        self._feed.kept_for_early = 0
