"""What the cases share: things that worker processes see too."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]

#: Seconds after which a wait that should have ended long ago fails its test.
PATIENCE = 60.0

_fork = multiprocessing.get_context("fork")


class Turnstile:
    """Counts those who come in and holds them until they are let go; for processes too."""

    def __init__(self) -> None:
        self._came = _fork.Semaphore(0)
        self._open = _fork.Event()

    def come_in(self) -> None:
        """Say that somebody is here."""
        self._came.release()

    def hold(self) -> None:
        self.come_in()
        assert self._open.wait(PATIENCE), "nobody let go"

    def wait_for(self, count: int) -> None:
        """Wait until `count` more have come."""
        for _ in range(count):
            assert self._came.acquire(timeout=PATIENCE), "nobody came"

    @property
    def came(self) -> int:
        """How many have come that nobody has waited for."""
        count = 0
        while self._came.acquire(block=False):
            count += 1
        for _ in range(count):
            self._came.release()
        return count

    def let_go(self) -> None:
        self._open.set()


class Made:
    """A dataset of `n` samples, each what `make` returns for its index."""

    def __init__(self, n: int, make: Callable[[int], Any] = lambda index: index) -> None:
        self.n = n
        self.make = make

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.make(index)
