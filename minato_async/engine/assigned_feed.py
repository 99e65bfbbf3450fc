"""The feed where each batch belongs to one worker, as in torch's loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from minato_async.engine.bell import DueBells
from minato_async.engine.feed import Block, Claim, Feed


class AssignedFeed(Feed):
    """As `Feed`, but batch n, in the order drawn, is for the worker of number n modulo `workers`,
    who claims it whole: what a worker loads, and in which order, does not depend on others.

    A batch is admitted to the window when there is room for it and for all before it that are not
    claimed: workers that are faster must not take the places of the batch that is due.
    """

    def __init__(self, window: int, workers: int, due: DueBells | None = None) -> None:
        super().__init__(window, due)
        self._workers = workers
        self._drawn = 0

    def add(
        self,
        indices: Sequence[Any],
        unit: int,
        repeats: Sequence[int] = (),
        positions: Sequence[int] | None = None,
    ) -> Block:
        block = super().add(indices, unit, repeats, positions)
        block.reached = True  # by its own worker, whenever that one comes
        block.owner = self._drawn % self._workers
        self._drawn += 1
        return block

    def claim_for(self, worker: int) -> Claim | None:
        """What is left of the batch that this worker was making, or else its next one."""
        while (returned := self._take_returned(worker)) is not None:
            block, start, stop = returned
            self.unclaimed -= stop - start
            batch = block.batch
            assert batch is not None
            if not (batch.lost and start > batch.failed_row):
                self.in_window += (stop - start) * block.unit
                return Claim(block, start, stop)
            self._due.drop(block)
        block_or_none = next((b for b in self._admitted() if b.owner == worker), None)
        return None if block_or_none is None else self._claim_whole(block_or_none)

    def may_claim_early(self, block: Block) -> bool:
        """Never: what a worker loads, and when, would depend on others."""
        return False

    @property
    def waited_for(self) -> set[int | None]:
        """The workers that would get a claim."""
        return {block.owner for block, _, _ in self._returned} | {b.owner for b in self._admitted()}

    def _take_returned(self, worker: int) -> tuple[Block, int, int] | None:
        mine = [entry for entry in self._returned if entry[0].owner == worker]
        if not mine:
            return None
        # All of one batch: a worker makes one at a time.
        first = min(mine, key=lambda entry: entry[1])
        self._returned.remove(first)
        return first

    def _claim_whole(self, block: Block) -> Claim:
        self._blocks.remove(block)
        rows = len(block.indices)
        block.next_row, block.unclaimed = rows, 0
        self.unclaimed -= rows or 1
        self.in_window += block.samples
        if not rows:
            assert block.batch is not None
            return Claim(block, 0, 0, (block.batch,))
        return Claim(block, 0, rows)

    def _admitted(self) -> Iterator[Block]:
        # What was put back has its places still.
        returned = sum((stop - start) * block.unit for block, start, stop in self._returned)
        taken = self.in_window + returned
        for block in self._blocks:
            taken += block.samples
            if taken > max(self._window, block.samples):
                return
            yield block
