"""Whether it pays to send finished samples to the worker that collates them."""

from __future__ import annotations

from collections.abc import Sequence

#: A packed sample that is so many times what comes of it in its batch is much larger.
_LARGER = 4.0
#: Share of what it costs to make samples that packing may cost then: as much again is lost where
#: they are unpacked.
_SHARE = 0.05
#: Bytes of a sample, beyond those of its share of the batch, that are always sent.
_LITTLE = 1 << 16
#: Seconds that packing a sample may always cost, and samples after which the mean tells something.
_QUICK, _KNOWN = 2e-3, 4


class Travel:
    """Compares what samples are when they travel with what they are in their batches. A sample may
    refer to much more than is collated: to its dataset, say.

    The caller holds the engine's lock.
    """

    def __init__(self) -> None:
        self._packed = self._nbytes = 0
        self._packing = self._cost = 0.0
        self._collated = self._batched = 0

    def packed(self, samples: int, nbytes: int, packing: float, costs: Sequence[float]) -> None:
        """`samples` were made at these costs, in seconds, and packed in `packing` seconds."""
        self._packed += samples
        self._nbytes += nbytes
        self._packing += packing
        self._cost += sum(costs)

    def collated(self, samples: int, nbytes: int) -> None:
        """A batch of `samples` is of `nbytes`."""
        self._collated += samples
        self._batched += nbytes

    @property
    def pays(self) -> bool:
        if self._packed >= _KNOWN and self._packing > max(self._cost, _QUICK * self._packed):
            return False  # it takes longer than to make them
        if not self._packed or not self._collated:
            return True
        sample, share = self._nbytes / self._packed, self._batched / self._collated
        return (
            sample <= _LARGER * share
            or sample - share <= _LITTLE
            or self._packing <= _SHARE * self._cost
        )
