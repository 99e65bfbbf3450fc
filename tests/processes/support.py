"""What the tests of worker processes share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from minato_async import MinatoLoader
from tests.cases.support import PATIENCE, Made, Turnstile

__all__ = ["PATIENCE", "Made", "Turnstile"]

fork = multiprocessing.get_context("fork")


def processes(dataset: Any, *args: Any, **options: Any) -> Any:
    """A loader on worker processes."""
    own = {"executor": "process", "num_workers": 2, "in_order": True}
    return MinatoLoader(dataset, *args, **(own | options))


class Countdown:
    """Counts down from `n`, whichever processes do it; `context` starts them."""

    def __init__(self, n: int, context: Any = fork) -> None:
        self._left = context.Semaphore(n)

    def take(self) -> bool:
        """Whether it was not at zero."""
        return self._left.acquire(block=False)

    def wait(self) -> bool:
        """As `take`, when it is not at zero any more; False if that never came."""
        return self._left.acquire(timeout=PATIENCE)

    def add(self) -> None:
        self._left.release()


def kill_me() -> None:
    """As the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def flat(batches: Iterable[Any]) -> list[int]:
    return [index for batch in batches for index in batch.tolist()]


def once_each(found: Iterable[int], n: int) -> None:
    counts = Counter(found)
    assert counts == Counter(range(n)), counts - Counter(range(n))


def pause(seconds: float) -> None:
    """What a slow step does: it waits, and lets others compute."""
    threading.Event().wait(seconds)
