"""Claims of an epoch without jobs, as the tests of its state take them."""

from __future__ import annotations

from minato_async.engine.epoch import Epoch
from minato_async.engine.feed import Claim


def claim_of(epoch: Epoch) -> Claim | None:
    """Tickets for an idle worker, or the batches that wait to be collated; None: there are none to
    be had now."""
    return epoch._take_left_over() or epoch.feed.claim(epoch._claim_size.next())
