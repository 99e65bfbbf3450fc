"""Displacement: by how many batches ready samples are passed over, and how many that may be."""

from __future__ import annotations


class Displacement:
    """Follows the batches that overtake others on their way from the batch builder to the
    consumer.

    Batches are numbered as they are begun; with ready samples first, every sample of a later one
    became ready after those of an earlier one. One is overtaken while its worker still copies or
    collates it. `most` bounds by how many; None: there is no bound.

    The caller holds the engine's lock.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        #: The oldest batch that is not delivered, and those after it that are.
        self._oldest = 0
        self._ahead: set[int] = set()
        #: Later ones that have no turn any more.
        self._left_out: set[int] = set()
        #: The most batches by which one was overtaken so far.
        self.seen = 0

    def may_go(self, number: int | None) -> bool:
        """Whether the batch of this number, None for one that has no turn, may be delivered."""
        # The oldest that lags has been overtaken most often: if it allows another, all do.
        if self._most is None or len(self._ahead) < self._most:
            return True
        return number is None or number == self._oldest

    def waits_for(self, number: int | None) -> bool:
        """Whether the batch of this number may be what all others have to wait for."""
        return self._most is not None and number == self._oldest

    def went(self, number: int | None) -> None:
        """It is delivered."""
        if number is None:
            return
        if number != self._oldest:
            self._ahead.add(number)
            self.seen = max(self.seen, len(self._ahead))
            return
        self._advance()

    def leave_out(self, number: int | None) -> None:
        """It is not counted from now on: it is delivered last."""
        if number is None:
            return
        if number != self._oldest:
            self._left_out.add(number)
            return
        self._advance()

    def _advance(self) -> None:
        self._oldest += 1
        while self._oldest in self._ahead or self._oldest in self._left_out:
            self._ahead.discard(self._oldest)
            self._left_out.discard(self._oldest)
            self._oldest += 1
