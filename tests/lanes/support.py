"""What the tests of slow samples share: steps that count, wait and tell."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from minato_async import share

#: Seconds after which a wait that should have ended long ago fails its test.
PATIENCE = 30.0


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE), "nobody came"


def until(condition: Callable[[], Any]) -> None:
    """Wait until `condition` holds."""
    # Looks are counted, and not seconds, which pass for processes that are stopped, too.
    for _ in range(round(PATIENCE / 0.001)):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it never came to that")


class Made:
    """A dataset of `n` samples, each what `make` returns for its index."""

    def __init__(self, n: int, make: Callable[[int], Any] = lambda index: index) -> None:
        self.n = n
        self.make = make

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Tally:
    """Counts, from any thread."""

    def __init__(self) -> None:
        share(self)
        self._lock = threading.Lock()
        self._counts: Counter[Any] = Counter()
        self._inside = 0
        self.most_inside = 0

    def add(self, key: Any) -> None:
        with self._lock:
            self._counts[key] += 1

    @property
    def counts(self) -> Counter[Any]:
        with self._lock:
            return self._counts.copy()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Counts those who are in here at once."""
        with self._lock:
            self._inside += 1
            self.most_inside = max(self.most_inside, self._inside)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1


def flat(batches: Iterable[Any]) -> list[Any]:
    """The samples of batches that are lists."""
    return [sample for batch in batches for sample in batch]


def busy(seconds: float) -> None:
    """Cost `seconds`, as work that waits does."""
    time.sleep(seconds)


def worker_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("minato-worker")]
