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

    The ticket of row r is the sample `indices[r]` at position `first + r` of the epoch. A ticket
    is a row of its block and no object of its own: drawing one costs next to nothing.
    """

    __slots__ = (
        "batch",
        "first",
        "indices",
        "next_row",
        "owner",
        "repeats",
        "samples",
        "settled",
        "unit",
    )

    def __init__(
        self, first: int, indices: Sequence[Any], unit: int, repeats: Sequence[int] = ()
    ) -> None:
        self.first = first
        self.indices = indices
        #: How often this epoch has drawn the index of each row before; empty: never.
        self.repeats = repeats
        #: Samples a ticket stands for: 1, or a whole batch for a dataset with `__getitems__`.
        self.unit = unit
        self.samples = len(indices) * unit
        self.next_row = 0
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
    same batch, and would have to wait for that sample anyway.
    """

    __slots__ = ("block", "completed", "start", "stop")

    def __init__(
        self, block: Block, start: int, stop: int, completed: Sequence[Batch] = ()
    ) -> None:
        self.block = block
        self.start = start
        self.stop = stop
        #: Batches to collate whose last sample came from no worker that could.
        self.completed = completed


class Feed:
    """Unclaimed tickets, in drawing order, and the window that bounds what is claimed.

    `window` is the number of samples that may be claimed and not yet delivered. A block larger
    than the window is admitted alone, or its batch could never be complete.
    """

    def __init__(self, window: int, due: DueBells | None = None) -> None:
        self._window = window
        self._due = due or DueBells()
        self._blocks: deque[Block] = deque()
        self._returned: deque[tuple[Block, int, int]] = deque()
        self._position = 0
        #: Tickets drawn and not claimed.
        self.unclaimed = 0
        #: Samples claimed, and neither delivered nor lost.
        self.in_window = 0
        #: Samples drawn, and neither delivered nor lost.
        self.outstanding = 0
        #: The sampler has no more.
        self.drawn_all = False

    def add(self, indices: Sequence[Any], unit: int, repeats: Sequence[int] = ()) -> Block:
        """Append the tickets of one drawn batch."""
        block = Block(self._position, indices, unit, repeats)
        samples = block.samples
        self._position += samples
        self.outstanding += samples
        self.unclaimed += len(indices) or 1
        self._blocks.append(block)
        return block

    @property
    def claimable(self) -> int:
        """Tickets that could be claimed now; an empty batch counts as one."""
        if self._returned:
            return self.unclaimed
        if not self._blocks:
            return 0
        block = self._blocks[0]
        room = (max(self._window, block.samples) - self.in_window) // block.unit
        return max(0, min(self.unclaimed, room))

    def claim(self, most: int) -> Claim | None:
        """Take up to `most` tickets of the oldest block that has any; None: there are none, or
        the window is full. An empty batch gives an empty claim, so that it is collated."""
        if self._returned:
            return self._claim_returned(most)
        while self._blocks:
            block = self._blocks[0]
            left = len(block.indices) - block.next_row
            if block.batch is not None and (block.batch.lost or not block.indices):
                self._blocks.popleft()
                self.unclaimed -= left or 1
                if block.batch.lost:
                    self._due.drop(block)
                    continue  # do not load the rest of a batch that will not be
                return Claim(block, 0, 0, (block.batch,))
            room = (max(self._window, block.samples) - self.in_window) // block.unit
            count = min(most, left, room)
            if count <= 0:
                return None
            start = block.next_row
            block.next_row += count
            self.unclaimed -= count
            self.in_window += count * block.unit
            if count == left:
                self._blocks.popleft()
            return Claim(block, start, start + count)
        return None

    def put_back(self, block: Block, start: int, stop: int) -> None:
        """The rows from `start` up to `stop` were claimed and not begun: the next to be claimed."""
        self._returned.append((block, start, stop))
        self.unclaimed += stop - start
        self.in_window -= (stop - start) * block.unit

    def _claim_returned(self, most: int) -> Claim:
        # They had their place in the window, and it is still theirs.
        block, start, stop = self._returned.popleft()
        if stop - start > most:
            self._returned.appendleft((block, start + most, stop))
            stop = start + most
        self.unclaimed -= stop - start
        self.in_window += (stop - start) * block.unit
        return Claim(block, start, stop)

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
        """As `leave_window` and `account_for` together."""
        self.in_window -= claimed
        self.outstanding -= drawn

    def leave_window(self, samples: int) -> None:
        """`samples` that were claimed need their place no more."""
        self.in_window -= samples

    def account_for(self, samples: int) -> None:
        """`samples` that were drawn are delivered, lost or dropped."""
        self.outstanding -= samples

    def clear(self) -> object:
        """Forget what is not claimed, and return it."""
        left = self._blocks, self._returned
        self._blocks, self._returned = deque(), deque()
        self.unclaimed = 0
        return left
