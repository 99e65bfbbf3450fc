"""Which positions of an epoch its consumer has received."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Sequence


class Received:
    """A set of positions, of which nearly all lie without a gap from 0 on.

    The frontier is the first position that is missing. What was received beyond it are the
    samples that overtook a slow one: one byte each here, and a few bits in a state, since most of
    them are neighbours.
    """

    def __init__(self, frontier: int = 0, beyond: bytes = b"") -> None:
        self.frontier = frontier
        #: A byte for each position from the frontier on: whether it was received.
        self._beyond = bytearray(beyond)

    def add(self, positions: Sequence[int]) -> None:
        if type(positions) is range and positions.step == 1:
            if positions.start == self.frontier and not self._beyond:
                self.frontier = positions.stop
            else:
                self._mark(positions.start, positions.stop)
        else:
            for position in positions:
                self._mark(position, position + 1)

    def _mark(self, start: int, stop: int) -> None:
        base, beyond = self.frontier, self._beyond
        if stop <= base:
            return
        start = max(start, base)
        if len(beyond) < stop - base:
            beyond.extend(bytes(stop - base - len(beyond)))
        beyond[start - base : stop - base] = b"\x01" * (stop - start)
        if beyond[0]:
            whole = beyond.find(0)
            whole = len(beyond) if whole < 0 else whole
            del beyond[:whole]
            self.frontier += whole

    def __contains__(self, position: int) -> bool:
        place = position - self.frontier
        return place < 0 or (place < len(self._beyond) and self._beyond[place] == 1)

    @property
    def has_gaps(self) -> bool:
        """Whether something beyond the frontier was received."""
        return 1 in self._beyond

    def missing(self, positions: Sequence[int]) -> list[int]:
        """The places in `positions` of those that were not received."""
        if type(positions) is range and positions.stop <= self.frontier:
            return []
        return [place for place, position in enumerate(positions) if position not in self]

    def __iter__(self) -> Iterator[int]:
        yield from range(self.frontier)
        base = self.frontier
        yield from (base + place for place, there in enumerate(self._beyond) if there)

    def copy(self) -> Received:
        return Received(self.frontier, bytes(self._beyond))

    # In a state

    def state(self) -> dict[str, int | str]:
        """Plain and small: the frontier, and the lengths of the runs beyond it, missing and
        received in turn."""
        packed = zlib.compress(_varints(self._runs()), 9)
        return {"frontier": self.frontier, "beyond": base64.b64encode(packed).decode()}

    @classmethod
    def of_state(cls, state: dict[str, int | str]) -> Received:
        frontier, runs = state["frontier"], state["beyond"]
        assert isinstance(frontier, int)
        assert isinstance(runs, str)
        beyond = bytearray()
        for number, length in enumerate(_numbers(zlib.decompress(base64.b64decode(runs)))):
            beyond += (b"\x01" if number % 2 else b"\x00") * length
        return cls(frontier, bytes(beyond))

    def _runs(self) -> Iterator[int]:
        start, wanted, beyond = 0, 1, self._beyond
        while start < len(beyond):
            stop = beyond.find(wanted, start)
            stop = len(beyond) if stop < 0 else stop
            yield stop - start
            start, wanted = stop, 1 - wanted


def _varints(numbers: Iterable[int]) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    packed = bytearray()
    for number in numbers:
        while number > 0x7F:
            packed.append(number & 0x7F | 0x80)
            number >>= 7
        packed.append(number)
    return bytes(packed)


def _numbers(packed: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
