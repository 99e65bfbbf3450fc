"""How many tickets a worker claims at once."""

from __future__ import annotations

import sys

#: Seconds of work that one claim is worth. Handing over a claim costs some 10 µs, so a hundredth
#: of that is lost, and an idle worker waits no longer than this for a share.
WORTH = 1e-3


class ClaimSize:
    """Adapts the size of claims to the measured cost of samples.

    A worker that claims trivial samples one at a time spends more on claiming than on loading; a
    worker that claims many slow ones makes the finished ones wait for the rest. The estimate
    rises at once with a slow claim and sinks slowly, and a claim at most doubles: believing that
    samples are cheap is the expensive mistake.

    The caller holds the engine's lock.
    """

    def __init__(self, worth: float = WORTH, cheap: float = 0.0, rise: float = 0.5) -> None:
        self._worth = worth
        #: Seconds below which a sample is so cheap that a claim has no bound: it ends with its
        #: block.
        self._cheap = cheap
        #: How far the estimate goes towards a claim that costs more.
        self._rise = rise
        self._cost: float | None = None
        #: Tickets in the last claim.
        self.current = 1

    def next(self) -> int:
        """Tickets to claim now."""
        if self._cost is None:
            return 1
        if self._cost < self._cheap:
            self.current = sys.maxsize
            return self.current
        fitting = self._worth / self._cost if self._cost > 0 else float("inf")
        self.current = max(1, int(min(fitting, 2 * self.current)))
        return self.current

    def observe(self, tickets: int, seconds: float) -> None:
        """`tickets` took `seconds` in all."""
        if not tickets:
            return
        cost = seconds / tickets
        if self._cost is None:
            self._cost = cost
        else:
            self._cost += (cost - self._cost) * (self._rise if cost > self._cost else 0.1)
