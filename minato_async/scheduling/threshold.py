"""The online threshold: after how many seconds of cost a sample counts as slow."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

#: Costs that the percentile is taken over: some thirty batches of the usual size.
WINDOW = 1000
#: A sample is not slow as long as it costs less than this times the median. Where the percentile
#: lies inside a narrow mode (80 % of samples at 508 ms, P75 at 509 ms) jitter of a millisecond
#: would otherwise decide.
MARGIN = 1.25
#: Seconds below which no sample is slow: letting others go first costs about as much.
_LEAST = 1e-3
#: The threshold stays as long as the value it would take differs by less than this part of it.
HYSTERESIS = 0.1
#: A worker whose sample has cost this many thresholds may be stuck: at less, most that are a
#: little slow would have come back by the time that a replacement has started.
STUCK = 3.0
#: The same in medians, while there is no threshold.
STUCK_EARLY = 10.0
#: Seconds below which no worker is stuck: the watch looks no more often.
_LEAST_STUCK = 0.03
#: Samples that tell what a median is.
_ENOUGH = 32
#: Samples between two looks at the percentile, at least, and as a part of those that it is taken
#: over: a look sorts them, which takes some 50 µs for all of `WINDOW`.
_STRIDE, _STRIDE_PART = 16, 1 / 8


class Threshold:
    """Follows a percentile of the recent costs of samples.

    `seconds` is infinite, so that nothing is slow, until `warmup` samples have been observed;
    with a `fixed` value it is that from the beginning. The caller of `observe` holds the engine's
    lock; `seconds` may be read by any thread, and is at most a few samples old.
    """

    def __init__(self, percentile: float, warmup: int, fixed: float | None = None) -> None:
        self._percentile = percentile
        self._warmup = warmup
        self._fixed = fixed
        self.seconds = math.inf if fixed is None else fixed
        self._recent: deque[float] = deque(maxlen=WINDOW)
        #: Samples so far.
        self.observed = 0
        self._next_look = max(warmup, 1)

    def observe(self, seconds: float, samples: int = 1) -> None:
        """`samples` samples cost `seconds` each. Samples claimed together are observed together,
        as one value of their mean: they are too cheap to be told apart."""
        self.observed += samples
        self._recent.append(seconds)
        if self._fixed is None and self.observed >= self._next_look:
            self._next_look = self.observed + max(_STRIDE, int(_STRIDE_PART * len(self._recent)))
            self._look()

    def _look(self) -> None:
        ordered = sorted(self._recent)
        median = _percentile(ordered, 50.0)
        wanted = max(_percentile(ordered, self._percentile), MARGIN * median, _LEAST)
        if not abs(wanted - self.seconds) < HYSTERESIS * self.seconds or math.isinf(self.seconds):
            self.seconds = wanted

    @property
    def stuck_after(self) -> float:
        """Seconds of cost after which a worker may be stuck. Before there is a threshold, enough
        to tell that its sample is unlike all that were seen."""
        if math.isfinite(self.seconds):
            return max(STUCK * self.seconds, _LEAST_STUCK)
        if self.observed < _ENOUGH:
            return math.inf
        return max(STUCK_EARLY * self.percentile(50.0), _LEAST_STUCK)

    def percentile(self, percent: float) -> float:
        """The cost in seconds that `percent` % of recent samples do not exceed; nan without any."""
        return _percentile(sorted(self._recent), percent)


def _percentile(ordered: Sequence[float], percent: float) -> float:
    if not ordered:
        return math.nan
    rank = math.ceil(len(ordered) * percent / 100.0) - 1
    return ordered[min(max(rank, 0), len(ordered) - 1)]
