"""The batch builder: which finished sample becomes which row of which batch.

A sample gets its place the moment it is finished, by the worker that finished it, and the worker
that fills the last place collates the batch. Neither waits for the event loop: with slow samples
any other worker would first have to finish what it is running, and the batch with it.

Everything here is plain state: the caller holds the engine's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from minato_async.engine.feed import Block

#: Whole batches that may be reserved while another is being formed sample by sample.
OVERTAKING = 2


class Batch:
    """Samples on their way to the consumer as one item.

    Its content is set once by the worker that collates it; a batch that cannot be had carries
    the `failure` to raise in the consumer instead.
    """

    __slots__ = (
        "content",
        "failed_row",
        "failure",
        "held",
        "holes",
        "indices",
        "lost",
        "missing",
        "number",
        "owner",
        "ready",
        "rows",
        "samples",
        "size",
        "unit",
        "void",
    )

    def __init__(self, size: int, unit: int, indices: Sequence[Any] = ()) -> None:
        self.unit = unit
        self.size = size
        #: Made when the first sample comes, unless one worker brings them all.
        self.samples: list[Any] = []
        #: The index of the sample in each row, for error messages. Whoever changes it makes a
        #: copy: a batch as drawn shares it with its block.
        self.indices: Sequence[Any] = indices
        self.missing = size
        #: Rows whose samples keep a place in the window until the batch is delivered.
        self.held = 0
        #: Rows whose samples were skipped.
        self.holes: list[int] = []
        #: All of them were: there is nothing to give to the consumer.
        self.void = False
        #: Where large samples are written in place; made by the first one that pays.
        self.rows: Any = None
        self.failure: BaseException | None = None
        self.failed_row = size
        #: One of its samples failed: the others are dropped as they come.
        self.lost = False
        self.content: Any = None
        self.ready = False
        #: Made of ready samples: its place in the order in which such batches were begun.
        self.number: int | None = None
        #: As its block's.
        self.owner: int | None = None

    def put(self, row: int, samples: list[Any]) -> None:
        """Fill the places from `row` on. The list is the batch's own from now on."""
        count = len(samples)
        if count == self.size:
            self.samples = samples
        else:
            if not self.samples:
                self.samples = [None] * self.size
            self.samples[row : row + count] = samples
        self.missing -= count
        self.held += count

    def skip(self, row: int) -> None:
        """The place `row` stays empty."""
        self.holes.append(row)
        self.missing -= 1

    def close_holes(self) -> None:
        """Before collating: the samples that were not skipped move together. The batch is void
        if there are none."""
        self.void = len(self.holes) == self.size
        self.indices = list(self.indices)
        for row in sorted(self.holes, reverse=True):
            del self.indices[row]
            if self.samples:
                del self.samples[row]
        self.size = len(self.indices)
        self.holes.clear()

    def take_content(self) -> Any:
        """The content, which the batch does not keep: it is the consumer's to free."""
        content, self.content = self.content, None
        return content

    def take_failure(self) -> Any:
        """The failure, which the batch does not keep: where it was raised leads to the batch."""
        failure, self.failure = self.failure, None
        return failure

    def forget_samples(self) -> None:
        self.samples = []
        self.rows = None
        self.held = 0

    def shorten(self) -> None:
        """Give up the places that nothing will fill, all of them at the end."""
        self.size -= self.missing
        self.indices = self.indices[: self.size]
        del self.samples[self.size :]
        self.missing = 0


#: Consecutive rows of a batch: the batch, the first row, how many.
Place = tuple[Batch, int, int]


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


class AsDrawn:
    """Batches are those that the sampler drew, row for row."""

    def expect(self, block: Block) -> Batch | None:
        block.batch = Batch(len(block.indices), block.unit, block.indices)
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
        block.batch = Batch(len(block.indices), block.unit, block.indices)
        return True

    def unreserve(self, block: Block) -> None:
        block.batch = None

    def fail(self, block: Block, row: int, error: Any) -> Batch:
        """Only the failed sample is lost: its failure comes to the consumer as an item of its
        own, and the last batch of the epoch is one sample shorter."""
        batch = Batch(1, block.unit, [block.indices[row]])
        batch.failure, batch.lost = error, True
        return batch

    def reportable(self, block: Block, batch: Batch) -> bool:
        return True

    def unfinished(self) -> Batch | None:
        batch, self._forming, self._indices = self._forming, None, []
        if batch is not None:
            batch.shorten()
        return batch
