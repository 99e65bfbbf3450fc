"""A batch on its way to the consumer, as plain state: the caller holds the engine's lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Batch:
    """Samples on their way to the consumer as one item.

    Its content is set once by the worker that collates it; a batch that cannot be had carries
    the `failure` to raise in the consumer instead.
    """

    __slots__ = (
        "consumer",
        "content",
        "failed_row",
        "failure",
        "held",
        "indices",
        "lost",
        "missing",
        "number",
        "owner",
        "positions",
        "ready",
        "rows",
        "samples",
        "size",
        "skipped_rows",
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
        #: Those of its tickets in the epoch, run by run; of failed and skipped ones, too.
        self.positions: list[Sequence[int]] = []
        self.missing = size
        #: Rows whose samples keep a place in the window until the batch is delivered.
        self.held = 0
        #: Rows whose samples were skipped.
        self.skipped_rows: list[int] = []
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
        #: Which of several consumers it is for; None: for whoever asks.
        self.consumer: int | None = None

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
        self.skipped_rows.append(row)
        self.missing -= 1

    def drop_skipped_rows(self) -> None:
        """Before collating: the samples that were not skipped move together. The batch is void
        if there are none."""
        self.void = len(self.skipped_rows) == self.size
        self.indices = list(self.indices)
        for row in sorted(self.skipped_rows, reverse=True):
            del self.indices[row]
            if self.samples:
                del self.samples[row]
        self.size = len(self.indices)
        self.skipped_rows.clear()

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
