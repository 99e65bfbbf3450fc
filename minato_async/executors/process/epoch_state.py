"""The epoch of a map-style dataset whose steps run in other processes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minato_async.engine.batch import Batch
from minato_async.engine.epoch import Order
from minato_async.engine.feed import Block
from minato_async.engine.loading import Sync
from minato_async.engine.map_epoch import MapEpoch
from minato_async.engine.protocols import Job
from minato_async.engine.recipe import Recipe
from minato_async.executors.process.messages import Rerun
from minato_async.executors.process.travel import Travel
from minato_async.scheduling.claim_size import ClaimSize
from minato_async.scheduling.threshold import Threshold

#: Seconds of work that one claim is worth. Between a reply and the next request 200 µs pass, or
#: more where the parent is busy, in which the worker has nothing to do. What it finishes in the
#: meantime it tells at once, so that a large claim holds up only what it has not begun; therefore
#: the estimate follows the mean, too.
WORTH = 50e-3
_RISE = 0.1
#: Seconds below which samples are worth more together: to send one away, so that another worker
#: can collate it, costs some 100 µs. All of a batch is claimed, run and collated by one worker.
CHEAP = 1e-3


@dataclass(frozen=True)
class Context:
    """What the workers have to know of one epoch."""

    number: int
    #: Given the number of the epoch that a worker was told of last (0: none), the pickled update.
    payload: Callable[[int], bytes]
    #: Tells the workers that nobody waits for this epoch any more. Waits for nothing.
    abandon: Callable[[int], None]


class RemoteMapEpoch(MapEpoch):
    """As `MapEpoch`, for jobs that are sent away. Samples are what the workers packed; nothing here
    looks inside. The caller of every method holds the engine's lock."""

    def __init__(
        self,
        recipe: Recipe,
        order: Order,
        window: int | None,
        threshold: Threshold,
        context: Context,
        sync: Sync,
    ) -> None:
        super().__init__(recipe, order, window, threshold, sync)
        self.context = context
        self._claim_size = ClaimSize(WORTH, CHEAP, _RISE)
        #: One worker may make a batch of ready samples while another batch has some: not where it
        #: is bounded how many may overtake.
        self._reserves = order.as_drawn or order.max_displacement is None
        self._travel = Travel()
        #: Each batch is made by one worker, as far as it can be.
        self._together = False
        #: Not because it does not pay to send samples away, but because they cannot be sent.
        self.cannot_travel = False
        #: How often workers have died over a ticket, or over a batch.
        self.deaths: dict[tuple[object, int], int] = {}

    @property
    def parks(self) -> bool:
        return False  # a process has nobody to make room for

    def made(self, batch: Batch, content: Any, failure: Any) -> None:
        """A worker has collated `batch`, or cannot: the blocks of its samples are free for
        others."""
        if self._together:  # some may stand for keys of the user's
            self._due.drop([sample for sample in batch.samples if isinstance(sample, Rerun)])
        batch.samples = []
        self.collated(batch, content, failure)

    def packed(self, samples: Sequence[Any], packing: float, costs: Sequence[float]) -> None:
        """`samples`, made at these costs, were packed in `packing` seconds, if they could be."""
        if any(isinstance(sample, Rerun) for sample in samples):
            self.cannot_travel = True
            self.keep_together()
            return
        nbytes = sum(sample.nbytes for sample in samples)
        self._travel.packed(len(samples), nbytes, packing, costs)
        self._see_whether_travel_pays()

    def _see_whether_travel_pays(self) -> None:
        if not self._together and not self._travel.pays:
            self.keep_together()

    def keep_together(self) -> None:
        """Samples cannot travel, or should not: from now on each batch is made by one worker, as
        far as it can be."""
        if not self._together:
            self._together = True
            self.claim_none_early()
            self._claim_size = ClaimSize(cheap=math.inf)
            self._claim_size.observe(1, 0.0)

    def _most_tickets(self) -> int:
        most = super()._most_tickets()
        if self.feed.drawn_all and most < sys.maxsize:
            # At the end of an epoch nobody is to work off a large claim while others have nothing
            # to do.
            most = min(most, 1 + self.feed.unclaimed // (2 * max(1, self.sync.slots.wanted)))
        return most

    def unreserve(self, block: Block) -> None:
        self._builder.unreserve(block)

    def leave_to_collate(self, completed: Sequence[Batch]) -> None:
        waiting = []
        for batch in completed:
            if batch.skipped_rows:
                self._due.drop(batch.indices)
                batch.drop_skipped_rows()
            if batch.void:
                self.collated(batch, None, None)
            else:
                waiting.append(batch)
        super().leave_to_collate(waiting)

    def collated(self, batch: Batch, content: Any, failure: Any) -> None:
        if content is not None and not self._together:
            self._travel.collated(len(batch.indices), content.nbytes)
            self._see_whether_travel_pays()
        super().collated(batch, content, failure)

    def abandon(self) -> Sequence[Job]:
        self.context.abandon(self.context.number)
        return super().abandon()
