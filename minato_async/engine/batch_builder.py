"""The batch builder: which finished sample becomes which row of which batch.

A sample gets its place the moment it is finished, by the worker that finished it, and the worker
that fills the last place collates the batch. Neither waits for the event loop: with slow samples
any other worker would first have to finish what it is running, and the batch with it.

Everything here is plain state: the caller holds the engine's lock.
"""

from __future__ import annotations

from typing import Any, Protocol

from minato_async.engine.batch import Batch, Place
from minato_async.engine.feed import Block

#: Whole batches that may be reserved while another is being formed sample by sample.
OVERTAKING = 2


class BatchBuilder(Protocol):
    """Decides the composition of batches."""

    def expect(self, block: Block) -> Batch | None:
        """A batch was drawn; returned if its turn among the batches is thereby fixed."""

    def place(self, block: Block, row: int, count: int) -> list[Place]:
        """The places of the finished samples of `count` tickets from `row` on."""

    def reserve(self, block: Block) -> bool:
        """All samples of `block` will be finished as one batch, if nothing comes in between.
        False: they will not make one."""

    def unreserve(self, block: Block) -> None:
        """Something came in between: the samples are placed one by one."""

    def fail(self, block: Block, row: int, error: Any) -> Batch:
        """A sample failed: the batch that is lost by it, which carries the failure."""

    def reportable(self, block: Block, batch: Batch) -> bool:
        """Whether the failure that a lost batch carries is final."""

    def unfinished(self) -> Batch | None:
        """Called once every drawn ticket is settled: the batch that will get no fuller."""


def _whole(block: Block) -> Batch:
    batch = Batch(len(block.indices), block.unit, block.indices)
    batch.positions = [block.positions]
    return batch


class AsDrawn:
    """Batches are those that the sampler drew, row for row."""

    def expect(self, block: Block) -> Batch | None:
        block.batch = _whole(block)
        return block.batch

    def place(self, block: Block, row: int, count: int) -> list[Place]:
        assert block.batch is not None
        return [(block.batch, row, count)]

    def reserve(self, block: Block) -> bool:
        return block.batch is not None and not block.batch.lost

    def unreserve(self, block: Block) -> None:
        """Nothing to do: they have their places either way."""

    def fail(self, block: Block, row: int, error: Any) -> Batch:
        """The whole batch is lost, to the failure of its first bad row, as with torch."""
        batch = block.batch
        assert batch is not None
        if row < batch.failed_row:
            batch.failed_row, batch.failure = row, error
        batch.lost = True
        return batch

    def reportable(self, block: Block, batch: Batch) -> bool:
        """Every row before the failed one is settled: which failure the consumer sees must not
        depend on which worker was faster."""
        return all(block.settled[: batch.failed_row])

    def unfinished(self) -> Batch | None:
        return None


class ReadyFirst:
    """Batches are made of whatever samples are ready, in the order in which they became so.

    All are as large as the largest that the sampler drew, but for the last, which gets what is
    left: so there is no more than one short batch, whatever failed. No ready sample is ever passed
    over: each goes into the batch that is being formed when it finishes.
    """

    def __init__(self) -> None:
        self._size = 0
        self._begun = 0
        self._forming: Batch | None = None
        #: Those of the samples in the batch that is being formed.
        self._indices: list[Any] = []
        self._placed = 0
        #: Whole batches reserved while the one that is being formed has samples.
        self._overtaking = 0

    def expect(self, block: Block) -> Batch | None:
        self._size = max(self._size, len(block.indices))
        return None

    def place(self, block: Block, row: int, count: int) -> list[Place]:
        if block.batch is not None:  # reserved
            if block.batch.number is None:
                # All of its samples are ready now, and not before.
                block.batch.number = self._begun
                self._begun += 1
            return [(block.batch, row, count)]
        places: list[Place] = []
        while count:
            if self._forming is None:
                self._overtaking = 0
                self._forming = Batch(self._size, block.unit, self._indices)
                self._placed = 0
                self._forming.number = self._begun
                self._begun += 1
            batch, first = self._forming, self._placed
            fitting = min(count, batch.size - first)
            places.append((batch, first, fitting))
            self._indices += block.indices[row : row + fitting]
            batch.positions.append(block.positions[row : row + fitting])
            self._placed += fitting
            if self._placed == batch.size:
                # The list is the batch's now: whoever frees the one frees the other.
                self._forming, self._indices = None, []
            row += fitting
            count -= fitting
        return places

    def reserve(self, block: Block) -> bool:
        if block.batch is not None:
            return False
        if self._forming is not None:
            # What is in there waits for samples that come one by one.
            if self._overtaking >= OVERTAKING:
                return False
            self._overtaking += 1
        block.batch = _whole(block)
        return True

    def unreserve(self, block: Block) -> None:
        block.batch = None

    def fail(self, block: Block, row: int, error: Any) -> Batch:
        """Only the failed sample is lost: its failure comes to the consumer as an item of its
        own, and the last batch of the epoch is one sample shorter."""
        batch = Batch(1, block.unit, [block.indices[row]])
        batch.positions = [block.positions[row : row + 1]]
        batch.failure, batch.lost = error, True
        return batch

    def reportable(self, block: Block, batch: Batch) -> bool:
        return True

    def unfinished(self) -> Batch | None:
        batch, self._forming, self._indices = self._forming, None, []
        if batch is not None:
            batch.shorten()
        return batch
