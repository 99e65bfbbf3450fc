"""The seam between the engine and what it is loading."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from minato_async.engine.batch import Batch
from minato_async.engine.bell import DueBells
from minato_async.engine.counts import Counts
from minato_async.engine.delivery import Delivery
from minato_async.engine.protocols import Job, Worker
from minato_async.engine.recorder import Recorder
from minato_async.engine.slots import Slots
from minato_async.engine.stage import Stage
from minato_async.stats import Stats, StepCosts


@dataclass(frozen=True)
class Sync:
    """What everything in one engine is guarded by, and how its waiting threads are woken."""

    #: Held for microseconds, never while user code runs.
    lock: threading.RLock
    #: Rung by whoever held the lock, after its release.
    due: DueBells
    #: Adds to `due` the bells of as many idle workers, if there are so many.
    wake_workers: Callable[[int], None]
    #: Has an idle worker look for the jobs of an epoch, if it has any; that one wakes the next.
    wake_next: Callable[[Loading], None]
    #: Who may run steps.
    slots: Slots
    #: Has the event loop start the threads that `slots` asks for.
    staff: Callable[[], None]
    #: Who is told what becomes of samples: what counts for `stats`, at least.
    recorder: Recorder = field(default_factory=Counts)


class Loading(Protocol):
    """An epoch being loaded. The caller of every method holds the engine's lock."""

    @property
    def delivery(self) -> Delivery:
        """The batch queue and the consumers waiting on it."""

    @property
    def recorder(self) -> Recorder:
        """Who is told what becomes of its samples."""

    @property
    def finished(self) -> bool:
        """No batch will come any more."""

    @property
    def jobs_waiting(self) -> int:
        """About as many workers as could find a job now: so many idle ones are woken."""

    @property
    def any_worker_will_do(self) -> bool:
        """Whether a job that waits is for whichever worker comes first."""

    @property
    def order_is_optional(self) -> bool:
        """Order is kept for the sake of reproducibility alone, so it may be worth a word what
        that costs."""

    @property
    def stuck_after(self) -> float:
        """Seconds of cost after which a worker may be stuck in its sample; infinite: never."""

    @property
    def parks(self) -> bool:
        """Whether workers inside slow samples may step aside, where no core is idle."""

    @property
    def finished_samples(self) -> int:
        """Samples that workers have finished so far."""

    @property
    def queued(self) -> tuple[int, int]:
        """Batches complete and not taken by the consumer, and how many there may be."""

    @property
    def backlog(self) -> tuple[int, int, float]:
        """Slow samples that wait to be finished, samples in flight, the threshold in seconds."""

    def stats(self) -> Stats:
        """What is known of its state, but for the costs of steps."""

    def costs_so_far(self) -> Callable[[], tuple[StepCosts, ...]]:
        """What sums up the costs of steps as of now: to be called when the lock is released, since
        it takes its time and names steps, which are the user's."""

    #: What else is done with its batches; None: nothing. Set when it begins.
    stage: Stage | None

    def ahead_of(self, batch: Batch, begun: int) -> int:
        """How many batches come to the consumer before `batch`, which waits for the stage: 0 if it
        is due. `begun` batches that the stage has begun have not been taken."""

    def stage_begins(self, batch: Batch) -> None:
        """The stage begins to work on `batch`."""

    def staged(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        """The stage has made `content` of `batch`, or has failed to."""

    def next_job(self, worker: Worker) -> Job | None:
        """Work for `worker`, which is idle; None: there is none to be had now."""

    def worker_ended(self, worker: Worker, how: str) -> None:
        """`worker`, a process, has ended: `how` says why."""

    def pop(self, consumer: int | None = None) -> Batch | None:
        """The next batch to deliver, or None if it is not ready. `consumer`: which of several
        asks."""

    def finished_for(self, consumer: int | None) -> bool:
        """No batch will come any more for this one of several consumers."""

    def abandon(self) -> Sequence[Job]:
        """Nobody will ask for more: drop what is loaded, wake whoever waits.

        Returns what workers have to do all the same, even if the engine closes: letting go of
        some objects runs user code, which may not happen under the lock nor on the event loop.
        """
