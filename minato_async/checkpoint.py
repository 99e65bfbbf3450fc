"""Checkpoints: where user code lets the loader step in."""

from __future__ import annotations

import threading
from typing import Protocol


class SampleCancelled(BaseException):
    """Raised inside a step whose result nobody waits for any more.

    A `BaseException`, so that `except Exception` in user code does not swallow it.
    """


class Interruptible(Protocol):
    def checkpoint(self) -> None: ...


class _Current(threading.local):
    #: What the calling thread is running, if it is a worker inside a step.
    job: Interruptible | None = None


current = _Current()


def checkpoint() -> None:
    """Let the loader step in, in the middle of a transform.

    Call it from time to time in code that may take long, inside a dataset or a transform. It
    costs a fraction of a microsecond. Where nobody waits for the sample any more, since the loader
    is closing or its `sample_timeout` has passed, it raises `SampleCancelled`; where the sample has
    become slow, it may let another go first. Outside a worker it does nothing.
    """
    job = current.job
    if job is not None:
        job.checkpoint()
