"""The seam between the engine and what it is loading."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from minato_async.engine.batches import Batch
from minato_async.engine.bell import DueBells
from minato_async.engine.delivery import Delivery
from minato_async.engine.slots import Slots
from minato_async.executors.base import Job


@dataclass(frozen=True)
class Sync:
    """What everything in one engine is guarded by, and how its waiting threads are woken."""

    #: Held for microseconds, never while user code runs.
    lock: threading.Lock
    #: Rung by whoever held the lock, after its release.
    due: DueBells
    slots: Slots
    #: Have the event loop start the threads that `slots` asks for. Without the lock.
    staff: Callable[[], None]


class Loading(Protocol):
    """An epoch being loaded. The caller of every method holds the engine's lock."""

    @property
    def delivery(self) -> Delivery:
        """The batch queue and the consumers waiting on it."""

    @property
    def finished(self) -> bool:
        """No batch will come any more."""

    @property
    def jobs_waiting(self) -> int:
        """About as many workers as could find a job now: so many idle ones are woken."""

    def next_job(self) -> Job | None:
        """Work for an idle worker; None: there is none to be had now."""

    def pop(self) -> Batch | None:
        """The next batch to deliver, or None if it is not ready."""

    def abandon(self) -> None:
        """Nobody will ask for more: drop what is loaded, wake whoever waits."""
