"""What a worker process is told to do with samples, and what it answers. All can be pickled.

Samples and batches are in here as the worker packed them: the parent passes them on and does not
look inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minato_async.errors import Unmade

# Requests


class CollateBatch(NamedTuple):
    """Make a batch of these samples."""

    indices: Sequence[Any]
    samples: Sequence[Any]


class RunClaim(NamedTuple):
    """Run tickets, the first of which is row `start` of its block; each has its position in the
    epoch."""

    start: int
    positions: Sequence[int]
    indices: Sequence[Any]
    repeats: Sequence[int]
    #: They are all that is missing of one batch: collate it.
    whole: bool
    #: That batch with what there is of it; None: nothing.
    given: CollateBatch | None
    #: Seconds of cost after which a sample is slow, and is not gone on with.
    threshold: float
    #: Slow samples may be diverted: the order is free, and no batch belongs to a worker.
    diverts: bool
    #: The first sample that fails costs the batch: what comes after it is not begun.
    stops: bool = False


class ResumeSample(NamedTuple):
    """Run what is left of a slow sample."""

    row: int
    position: int
    index: Any
    repeat: int
    value: Any
    step: int
    cost: float
    stream: Any


class Rerun(NamedTuple):
    """Stands for a finished sample that cannot be pickled, or not in the time that it takes to make
    it: who collates it makes it again."""

    position: int
    index: Any
    repeat: int


class HandleFailure(NamedTuple):
    """Do what the user wants done about a sample that was not waited for any longer."""

    row: int
    index: Any
    error: Unmade


# Events, IN_THE_REQUEST they happened


class Finished(NamedTuple):
    """The samples of consecutive rows from `row` on, having run `tickets` rows at these costs:
    one sum for all where they were timed together, else one for each step of the only one."""

    row: int
    samples: Sequence[Any]
    costs: Sequence[float]
    tickets: int
    #: Seconds that it took to pack the samples.
    packing: float = 0.0
    #: Of rows that were timed together, those that took long, and the seconds of each.
    long: Sequence[tuple[int, float]] = ()


class Ran(NamedTuple):
    """A step was run, from `began` until `ended` as `time.perf_counter()` has it: of `row`, or of
    so many `rows` from there on that were timed together. Told only if somebody wants to know."""

    row: int
    rows: int
    step: int
    began: float
    ended: float


class Failed(NamedTuple):
    row: int
    #: Packed.
    error: Any


class Diverted(NamedTuple):
    """The sample of `row` is slow: here is what it has become so far."""

    row: int
    value: Any
    step: int
    costs: Sequence[float]
    stream: Any


class Slow(NamedTuple):
    """The sample of `row` is slow in the middle of a step, and its worker goes on with it."""

    row: int


class NotBegun(NamedTuple):
    """It was asked not to begin `row` and those after it."""

    row: int


class Collated(NamedTuple):
    """The batch is made: `content`, packed, or the packed `failure`."""

    content: Any
    failure: Any
    #: If all rows of a claim went into it: their costs as several `Finished` would have them, of
    #: `tickets` rows each.
    costs: Sequence[Sequence[float]] = ()
    tickets: int = 0
    #: `time.perf_counter()` before and after collating and packing; 0: it is not known.
    began: float = 0.0
    ended: float = 0.0
    #: As in `Finished`.
    long: Sequence[tuple[int, float]] = ()
