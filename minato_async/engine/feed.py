"""The feed: tickets drawn from the sampler and not yet claimed by a worker.

Everything here is plain state: the caller holds the engine's lock.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from minato_async.engine.batch import Batch
from minato_async.engine.bell import DueBells


class Block:
    """The tickets of one batch as the sampler drew it, one a row.

    The ticket of row r is the sample `indices[r]` at `positions[r]` of the epoch. A ticket
    is a row of its block and no object of its own: drawing one costs next to nothing.
    """

    __slots__ = (
        "ahead",
        "batch",
        "claimed_early",
        "first",
        "indices",
        "next_row",
        "owner",
        "positions",
        "reached",
        "repeats",
        "samples",
        "settled",
        "unclaimed",
        "unit",
    )

    def __init__(
        self,
        first: int,
        indices: Sequence[Any],
        unit: int,
        repeats: Sequence[int] = (),
        positions: Sequence[int] | None = None,
    ) -> None:
        #: Samples drawn before.
        self.first = first
        self.indices = indices
        #: Of each ticket in the epoch. An empty batch has one, too.
        self.positions = (
            range(first, first + (len(indices) or 1)) if positions is None else positions
        )
        #: How often this epoch has drawn the index of each row before; empty: never.
        self.repeats = repeats
        #: Samples a ticket stands for: 1, or a whole batch for a dataset with `__getitems__`.
        self.unit = unit
        self.samples = len(indices) * unit
        #: The row that is claimed next when it is this block's turn, and how many are unclaimed.
        self.next_row = 0
        self.unclaimed = len(indices)
        #: One byte a ticket, set if it was claimed out of turn; empty: none was.
        self.claimed_early = bytearray()
        #: All blocks drawn before have no unclaimed tickets: it is, or was, this one's turn. True
        #: from the start where blocks have no turns.
        self.reached = False
        #: Until then: its samples in the window.
        self.ahead = 0
        #: One byte a ticket, set when its outcome is decided. Setting it, under the engine's
        #: lock, is the one state change that makes a ticket count: so each is delivered once.
        self.settled = bytearray(len(indices))
        #: The batch these rows belong to; None when ready samples form batches (any order).
        self.batch: Batch | None = None
        #: The number of the worker that is to make the batch; None: whoever comes.
        self.owner: int | None = None


class Claim:
    """Tickets that one worker has taken: the rows from `start` up to `stop` of one block.

    It is all of one block, as many rows as `ClaimSize` allows or a whole batch, and run by its
    worker from end to end: in order, what stands behind a slow sample in a claim is of the
    same batch, and would have to wait for that sample anyway. One that is `early` is a single
    ticket, claimed out of turn because it is known to be slow.
    """

    __slots__ = ("block", "completed", "early", "start", "stop")

    def __init__(
        self,
        block: Block,
        start: int,
        stop: int,
        completed: Sequence[Batch] = (),
        early: bool = False,
    ) -> None:
        self.block = block
        self.start = start
        self.stop = stop
        self.early = early
        #: Batches to collate whose last sample came from no worker that could.
        self.completed = completed


class Feed:
    """Unclaimed tickets, in drawing order, and the window that bounds what is claimed.

    `window` is the number of samples that may be claimed and not yet delivered. A block larger
    than the window is admitted alone, or its batch could never be complete.

    Tickets are claimed in drawing order, but for those that are claimed early (`claim_early`).
    An early claim never takes a place that the batch which is due needs: where batches are as
    drawn, the samples claimed early for later blocks and the largest block drawn so far fit into
    the window together. A larger block that is drawn later is admitted beside them. Where batches
    are not `as_drawn` but made of what is ready, whatever is claimed brings the next one nearer.
    """

    def __init__(self, window: int, due: DueBells | None = None, as_drawn: bool = True) -> None:
        self._window = window
        self._as_drawn = as_drawn
        self._due = due or DueBells()
        #: The first has an unclaimed ticket, unless it is empty or its batch is lost.
        self._blocks: deque[Block] = deque()
        self._returned: deque[tuple[Block, int, int]] = deque()
        self._position = 0
        #: Samples in the window that belong to blocks whose turn has not come.
        self._ahead = 0
        #: Samples of the largest block so far, and of the largest ticket.
        self._largest, self._unit = 0, 1
        #: Places in the window that are left to early claims, as far as the batch that is due does
        #: not need them. None where batches are not as drawn: any batch may need them.
        self.kept_for_early = 0
        #: Samples drawn so far.
        self.drawn = 0
        #: Tickets drawn and not claimed.
        self.unclaimed = 0
        #: Samples claimed, and neither delivered nor lost.
        self.in_window = 0
        #: Samples drawn, and neither delivered nor lost.
        self.outstanding = 0
        #: The sampler has no more.
        self.drawn_all = False

    def add(
        self,
        indices: Sequence[Any],
        unit: int,
        repeats: Sequence[int] = (),
        positions: Sequence[int] | None = None,
    ) -> Block:
        """Append the tickets of one drawn batch, which have these `positions`; None: the next."""
        tickets = len(indices) or 1
        if positions is None:
            positions = range(self._position, self._position + tickets)
        block = Block(self.drawn, indices, unit, repeats, positions)
        samples = block.samples
        self._position += tickets
        self.drawn += samples
        self.outstanding += samples
        self.unclaimed += tickets
        self._blocks.append(block)
        self._largest, self._unit = max(self._largest, samples), max(self._unit, unit)
        if len(self._blocks) == 1 or not self._as_drawn:
            block.reached = True
        return block

    @property
    def position(self) -> int:
        """Samples that were drawn before the one that is claimed next, early claims apart."""
        if not self._blocks:
            return self.drawn
        block = self._blocks[0]
        return block.first + block.next_row * block.unit

    @property
    def claimable(self) -> int:
        """Tickets that could be claimed now, in turn; an empty batch counts as one."""
        if self._returned:
            return self.unclaimed
        for block in self._blocks:
            if not _is_pointless(block):
                return max(0, min(self.unclaimed, self._room(block)))
        return 0

    def _room(self, block: Block) -> int:
        """Tickets of `block`, whose turn it is, for which there are places."""
        window = self._window - self.kept_for_early
        due = (block.samples or 1) + self._ahead
        return (max(window, due) - self.in_window) // block.unit

    def claim(self, most: int) -> Claim | None:
        """Take up to `most` tickets of the oldest block that has any; None: there are none, or
        the window is full. An empty batch gives an empty claim, so that it is collated."""
        if self._returned:
            return self._claim_returned(most)
        while self._blocks:
            block = self._blocks[0]
            left = block.unclaimed
            batch = block.batch
            pointless = _is_pointless(block)
            if pointless or (batch is not None and not block.indices):
                self._blocks.popleft()
                self.unclaimed -= left or 1
                block.unclaimed = 0
                self._reach_next()
                if pointless:
                    self._due.drop(block)
                    continue
                return Claim(block, 0, 0, () if batch is None else (batch,))
            count = min(most, left, self._room(block))
            if batch is not None and batch.lost:
                count = min(count, batch.failed_row - block.next_row)
            if count <= 0:
                return None
            start = block.next_row
            early = block.claimed_early
            if early and (following := early.find(1, start, start + count)) >= 0:
                count = following - start
            stop = start + count
            block.next_row = _first_unclaimed(block, stop)
            block.unclaimed = left - count
            self.unclaimed -= count
            self.in_window += count * block.unit
            if count == left:
                self._blocks.popleft()
                self._reach_next()
            return Claim(block, start, stop)
        return None

    def claim_early(self, block: Block, row: int) -> Claim | None:
        """Take the ticket of `row` out of turn. None: it is claimed already, or there is no place
        for it that the batch which is due could not need."""
        if not self.may_claim_early(block) or not self.is_unclaimed(block, row):
            return None
        if not block.claimed_early:
            block.claimed_early = bytearray(len(block.indices))
        block.claimed_early[row] = 1
        block.unclaimed -= 1
        self.unclaimed -= 1
        self._enter_window(block, block.unit)
        if row == block.next_row:
            block.next_row = _first_unclaimed(block, row)
        if block is self._blocks[0] and not block.unclaimed:
            self._blocks.popleft()
            self._reach_next()
        return Claim(block, row, row + 1, early=True)

    def may_claim_early(self, block: Block) -> bool:
        """Whether there is a place in the window for an unclaimed ticket of `block`."""
        # What was put back has its places still, and comes first.
        if not self.unclaimed or self._returned or self.in_window + block.unit > self._window:
            return False
        if not self._as_drawn:
            # One of the tickets that are batches may be the short one, which keeps its places to
            # the end.
            return self._unit == 1
        return block.reached or self._ahead + block.unit <= self.most_ahead

    @property
    def ahead(self) -> int:
        """Samples in the window that belong to blocks whose turn has not come."""
        return self._ahead

    @property
    def most_ahead(self) -> int:
        """Samples that may be in the window before it is the turn of their blocks."""
        return self._window - self._largest

    def is_unclaimed(self, block: Block, row: int) -> bool:
        """Whether nobody has taken the ticket of `row`, nor given it up with its batch."""
        if row < block.next_row or not block.unclaimed:
            return False
        if block.batch is not None and block.batch.lost:
            return False
        return not (block.claimed_early and block.claimed_early[row])

    def _reach_next(self) -> None:
        """The first block was removed: it is the next one's turn, and not that of blocks of which
        everything was claimed early."""
        blocks = self._blocks
        while blocks:
            block = blocks[0]
            block.reached = True
            self._ahead -= block.ahead
            block.ahead = 0
            if block.unclaimed or not block.indices:
                return
            self._due.drop(blocks.popleft())

    def _enter_window(self, block: Block, samples: int) -> None:
        self.in_window += samples
        if not block.reached:
            block.ahead += samples
            self._ahead += samples

    def put_back(self, block: Block, start: int, stop: int) -> None:
        """The rows from `start` up to `stop` were claimed and not begun: the next to be claimed."""
        self._returned.append((block, start, stop))
        self.unclaimed += stop - start
        self.leave_window(block, (stop - start) * block.unit)

    def _claim_returned(self, most: int) -> Claim:
        # They had their place in the window, and it is still theirs.
        block, start, stop = self._returned.popleft()
        if stop - start > most:
            self._returned.appendleft((block, start + most, stop))
            stop = start + most
        self.unclaimed -= stop - start
        self._enter_window(block, (stop - start) * block.unit)
        early = bool(block.claimed_early and block.claimed_early[start])
        return Claim(block, start, stop, early=early)

    @property
    def window(self) -> int:
        return self._window

    @property
    def bound(self) -> int | None:
        """The window, None if it bounds nothing."""
        return None if self._window == sys.maxsize else self._window

    def admit(self, samples: int) -> None:
        """Widen the window to `samples`, if it is smaller."""
        self._window = max(self._window, samples)

    def release(self, claimed: int, drawn: int) -> None:
        """A batch was delivered: `claimed` of its samples need their place no more, and all the
        `drawn` ones are accounted for."""
        self.in_window -= claimed
        self.outstanding -= drawn

    def leave_window(self, block: Block, samples: int) -> None:
        """`samples` of `block` that were claimed need their place no more."""
        self.in_window -= samples
        if not block.reached:
            block.ahead -= samples
            self._ahead -= samples

    def account_for(self, samples: int) -> None:
        """`samples` that were drawn are delivered, lost or dropped."""
        self.outstanding -= samples

    def clear(self) -> object:
        """Forget what is not claimed, and return it."""
        left = self._blocks, self._returned
        self._blocks, self._returned = deque(), deque()
        self.unclaimed = 0
        return left


def _is_pointless(block: Block) -> bool:
    """Whether what is left of `block` need not be loaded: a row before all of it has failed, and
    that failure is the one to be raised."""
    batch = block.batch
    return batch is not None and batch.lost and block.next_row > batch.failed_row


def _first_unclaimed(block: Block, row: int) -> int:
    """The first row from `row` on that was not claimed early."""
    if not block.claimed_early:
        return row
    found = block.claimed_early.find(0, row)
    return len(block.indices) if found < 0 else found
