"""One epoch through one loader, with the same consumer's loop for all.

Times are seconds on ``time.perf_counter`` (monotonic). The consumer looks at the batch, through a
*reader*, drops it, takes a step of fixed length if it has one, and asks for the next.
"""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

WARM_SHARE = 0.1
"""Share of an epoch's batches left out at its start for the steady rate."""


@dataclass
class Receipt:
    """What the batches of an epoch contained.

    ``samples`` counts them; ``indices`` in delivered order and ``costs`` (seconds, measured inside
    the samples, in the same order) are empty when the samples do not carry them.
    """

    samples: int = 0
    indices: list[int] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)


Reader = Callable[[Any, Receipt], None]
"""Looks at one batch and adds it to the receipt; it must keep no tensor (a batch of torch's
worker processes holds a file descriptor as long as it lives)."""


def count_tensor(batch: Any, receipt: Receipt) -> None:
    """Reader for batches that are one tensor: counts rows."""
    receipt.samples += len(batch)


def read_indexed(batch: Any, receipt: Receipt) -> None:
    """Reader for batches of (tensor, index)."""
    receipt.samples += len(batch[1])
    receipt.indices.extend(batch[1].tolist())


def read_costed(batch: Any, receipt: Receipt) -> None:
    """Reader for batches of (tensor, index, cost)."""
    receipt.samples += len(batch[1])
    receipt.indices.extend(batch[1].tolist())
    receipt.costs.extend(batch[2].tolist())


@dataclass(frozen=True)
class Epoch:
    """The times of one epoch, in seconds from ``iter()``.

    ``arrivals``: when ``next()`` returned each batch; ``counts``: samples in all batches up to and
    including that one; ``seconds``: when the ``for`` loop ended, the loader's own closing included;
    ``cpu``: CPU seconds that all threads of this process used meanwhile, and worker processes that
    ended in it. Unlike the other times it hardly depends on what else the machine does. ``busy``:
    what the consumer took after each batch, until it asked for the next. ``begun``: when ``iter()``
    had returned.
    """

    arrivals: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float
    cpu: float
    receipt: Receipt
    busy: tuple[float, ...] = ()
    begun: float = 0.0

    @property
    def first(self) -> float:
        """Time to the first batch."""
        return self.arrivals[0]

    def wait_share(self, batches: int | None = None) -> float:
        """Data wait after the first batch, up to that number of batches or the last: the share of
        the time that ``next()`` took."""
        last = (len(self.arrivals) if batches is None else batches) - 1
        return 1.0 - sum(self.busy[:last]) / (self.arrivals[last] - self.arrivals[0])

    @property
    def waited(self) -> float:
        """Seconds inside ``next()`` in a whole epoch: its end and the loader's closing too."""
        return self.seconds - self.begun - sum(self.busy)

    @property
    def gaps(self) -> list[float]:
        """Seconds from each batch to the next."""
        return [later - earlier for earlier, later in itertools.pairwise(self.arrivals)]

    @property
    def rate(self) -> float:
        """Samples a second over the whole loop, start and close included."""
        return self.receipt.samples / self.seconds

    @property
    def steady_rate(self) -> float:
        """Samples a second after the first tenth of the batches, up to the last batch."""
        start = int(len(self.arrivals) * WARM_SHARE)
        if start >= len(self.arrivals) - 1:
            return self.rate
        elapsed = self.arrivals[-1] - self.arrivals[start]
        samples = self.counts[-1] - self.counts[start]
        return samples / elapsed if elapsed > 0 else self.rate

    def as_json(self) -> dict[str, float | int]:
        """The times, without the receipt's lists."""
        return {
            "samples": self.receipt.samples,
            "batches": len(self.arrivals),
            "seconds": self.seconds,
            "cpu": self.cpu,
            "first": self.first,
            "last": self.arrivals[-1],
            "rate": self.rate,
            "steady_rate": self.steady_rate,
            "busy": sum(self.busy),
            "cost": sum(self.receipt.costs),
        }


def _cpu_seconds() -> float:
    """CPU seconds so far: this process, and its children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class NoBatch(RuntimeError):
    """An epoch delivered nothing at all."""


def consume(
    loader: Iterable[Any], read: Reader, *, batches: int | None = None, step: float = 0.0
) -> Epoch:
    """Run one epoch, or only its first ``batches``, and close the iterator.

    An epoch cut short ends with its last batch; closing it is not timed. ``step``: seconds that
    the consumer takes for a batch, as a training step does that waits for a device.
    """
    receipt = Receipt()
    arrivals: list[float] = []
    counts: list[int] = []
    clock = time.perf_counter
    busy: list[float] = []
    cpu = _cpu_seconds()
    begin = clock()
    iterator = iter(loader)
    begun = clock() - begin
    for batch in iterator:
        arrivals.append(clock() - begin)
        read(batch, receipt)
        counts.append(receipt.samples)
        # Freed before next() by every consumer alike: no loader gains from a batch kept alive.
        del batch
        if len(arrivals) == batches:
            break
        if step:
            time.sleep(step)
        busy.append(clock() - begin - arrivals[-1])
    seconds = clock() - begin
    cpu = _cpu_seconds() - cpu
    # Generators close at once; for the others dropping the last reference must do it.
    close = getattr(iterator, "close", None)
    if callable(close):
        close()
    del iterator
    if not arrivals:
        raise NoBatch("the epoch delivered no batch")
    return Epoch(tuple(arrivals), tuple(counts), seconds, cpu, receipt, tuple(busy), begun)
