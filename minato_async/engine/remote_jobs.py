"""The parent's half of jobs that run in other processes: orders, and what is done with replies.

The worker's half is `minato_async.process_samples`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from minato_async.engine.batches import Batch
from minato_async.engine.feed import Block, Claim
from minato_async.engine.lanes import Sample
from minato_async.engine.orders import (
    CollateBatch,
    Collated,
    Diverted,
    Failed,
    Finished,
    HandleFailure,
    NotBegun,
    Rerun,
    ResumeSample,
    RunClaim,
    Slow,
    WholeBatch,
)
from minato_async.errors import Unmade, name_sample, shown, took_too_long
from minato_async.executors.base import Progress, Worker
from minato_async.transport.failures import PackedError

if TYPE_CHECKING:
    from minato_async.engine.remote_epoch import RemoteMapEpoch

#: The failure of a sample, given its index.
Refusal = Callable[[Any], Unmade]
#: Workers that may die over one ticket, or one batch, before it has failed.
DEATHS = 3
#: Seconds within which what one process has written to shared memory is seen by another. Caches
#: are coherent: what takes time, and far less, is the way from the processor's own buffers there.
SEEN = 1e-3


class RemoteJob:
    """Base of all jobs of one epoch. Methods whose caller does not hold the engine's lock take it
    themselves; they run on the event loop."""

    def __init__(self, epoch: RemoteMapEpoch) -> None:
        self._epoch = epoch
        self._lock = epoch.sync.lock
        self._due = epoch.sync.due
        #: The sample is known to be slow, and its worker counted in the slow lane.
        self.slow = False
        self._progress: Progress | None = None
        #: The row that the worker was in when it was asked to begin no other, and when that was.
        self._asked = (-1, 0.0)

    @property
    def context(self) -> Any:
        return self._epoch.context

    def run(self, worker: Worker) -> None:
        raise TypeError("this job is an order for another process")

    @property
    def elapsed(self) -> float:
        return 0.0 if self._progress is None else self._progress.elapsed

    def hand_off(self) -> bool:
        ticket = self._stuck_in()
        if ticket is None:
            return False
        self._become_slow(ticket[1])
        return True

    def _become_slow(self, row: int) -> None:
        """Under the lock: the worker is slow in `row`, and will begin no other."""
        if not self.slow:
            self.slow = True
            self._epoch.lanes.slow_running += 1
            self._not_begun(row + 1)

    def expire(self, seconds: float) -> bool:
        """As `hand_off`, and the running sample has failed. Its worker will be killed."""
        ticket = self._stuck_in()
        # Asked again, and of this row: it may have come to it since the watch looked.
        if ticket is None or self.elapsed <= seconds:
            return False
        block, row = ticket
        self._not_begun(row + 1)
        late = Unmade(took_too_long, block.indices[row], seconds)
        if not self._epoch.expire_with(block, row, late):
            return False
        self._lost(block, row)
        self._leave_slow_lane()
        return True

    def _stuck_in(self) -> tuple[Block, int] | None:
        """Under the lock: the ticket whose step the worker is in, once it is certain to begin no
        other. None if it came out, or has to be asked first: then, to be called again later."""
        progress, now = self._progress, perf_counter()
        if progress is None or not progress.elapsed:
            return None
        row, since = self._asked
        if progress.row != row:
            progress.stop()
            self._asked = progress.row, now
            return None
        # What the worker wrote before it saw the request is seen here by now: so it is still in
        # this row, and has been since it was asked.
        return self._ticket(row) if now - since >= SEEN else None

    def _ticket(self, row: int) -> tuple[Block, int] | None:
        """The ticket that `row` stands for, if it does for one."""
        raise NotImplementedError

    def _not_begun(self, row: int) -> None:
        """Under the lock: the worker begins neither `row` nor what comes after it; others do."""

    def _lost(self, block: Block, row: int) -> None:
        """Under the lock: the worker is killed in `row`, and what it had finished before it is
        lost with it."""

    def _leave_slow_lane(self) -> None:
        if self.slow:
            self.slow = False
            self._epoch.lanes.slow_running -= 1

    def conclude(self) -> None:
        """Nothing is left to be done."""

    def finished(self) -> None:
        with self._lock:
            self._leave_slow_lane()

    def reply(self, worker: Worker, events: Any) -> None:
        with self._lock:
            if not self._epoch.abandoned:
                for event in events:
                    self._happened(event)
        self._due.ring()

    def _happened(self, event: Any) -> None:
        """Under the lock."""
        raise NotImplementedError

    def cannot_be_sent(self, error: BaseException) -> None:
        self._refused(lambda index: Unmade(_unsendable, index, error))

    def cannot_be_read(self, worker: Worker, error: PackedError) -> None:
        self._refused(lambda index: Unmade(_unreadable, index, error, worker.name))

    def _refused(self, failure: Refusal) -> None:
        with self._lock:
            self._leave_slow_lane()
            if not self._epoch.abandoned:
                self._not_run(failure)
        self._due.ring()

    def _not_run(self, failure: Refusal) -> None:
        """Under the lock: keys of the user's cannot travel, and the order has not been begun.
        `failure` makes what has become of one of them."""
        raise NotImplementedError

    def died(self, worker: Worker, how: str) -> None:
        with self._lock:
            self._leave_slow_lane()
            if not self._epoch.abandoned:
                self._died(worker, how)
        self._due.ring()

    def _died(self, worker: Worker, how: str) -> None:
        """Under the lock."""
        raise NotImplementedError

    def _died_collating(self, batch: Batch | Block, how: str) -> Unmade | None:
        """A worker has died while it collated: the failure of the batch if that was one too
        many."""
        deaths = self._epoch.deaths
        count = deaths[batch, -1] = deaths.get((batch, -1), 0) + 1
        if count < DEATHS:
            return None
        return Unmade(_killed_collating, list(batch.indices[:8]), how, count)

    def _died_in(self, block: Block, row: int, how: str) -> None:
        """A worker has died over this ticket: it fails if that was one too many."""
        deaths = self._epoch.deaths
        count = deaths[block, row] = deaths.get((block, row), 0) + 1
        if count >= DEATHS:
            error = Unmade(_killed_over, block.indices[row], how, count)
            self._epoch.expire_with(block, row, error)

    def _fail(self, block: Block, row: int, error: Any) -> None:
        epoch = self._epoch
        if epoch.recipe.on_error == "skip":
            completed = epoch.skip_failed(block, row, error)
        else:
            completed = epoch.fail(block, row, error)
        epoch.leave_to_collate(completed)

    def _settle(self, block: Block, event: Finished) -> None:
        epoch = self._epoch
        epoch.observe(event.costs, event.tickets)
        if any(isinstance(sample, Rerun) for sample in event.samples):
            epoch.cannot_travel = True
            epoch.keep_together()
        else:
            epoch.packed(event.samples, event.packing, event.costs)
        epoch.leave_to_collate(epoch.settle(block, event.row, list(event.samples)))


class RemoteClaimJob(RemoteJob):
    """The fast lane: one claim. `whole`: its worker has all that is missing of a batch, and is to
    collate it; the other samples of the batch are `given`."""

    def __init__(
        self, claim: Claim, whole: bool, given: CollateBatch | None, epoch: RemoteMapEpoch
    ) -> None:
        super().__init__(epoch)
        self._block = claim.block
        self._start, self._stop = claim.start, claim.stop
        self._whole = whole
        self._given = given

    def describe(self) -> str:
        row = self._start if self._progress is None else max(self._start, self._progress.row)
        if row >= self._stop:
            return "collating a batch"
        return f"sample index {shown(self._block.indices[row])}"

    def order(self, progress: Progress) -> RunClaim:
        self._progress = progress
        block, start, stop, epoch = self._block, self._start, self._stop, self._epoch
        return RunClaim(
            start,
            block.first + start,
            block.indices[start:stop],
            block.repeats[start:stop],
            self._whole,
            self._given,
            epoch.threshold.seconds,
            epoch.diverts,
            epoch.assigned is not None and epoch.recipe.on_error != "skip",
        )

    def _ticket(self, row: int) -> tuple[Block, int] | None:
        # Otherwise it is collating, or about to.
        return (self._block, row) if self._start <= row < self._stop else None

    def _no_longer_whole(self) -> None:
        if self._whole:
            self._whole = False
            self._epoch.unreserve(self._block)

    def _not_begun(self, row: int) -> None:
        if row < self._stop:
            self._no_longer_whole()
            stop, self._stop = self._stop, row
            self._epoch.put_back(self._block, row, stop)

    def _lost(self, block: Block, row: int) -> None:
        self._no_longer_whole()
        self._epoch.put_back(block, self._start, self._stop)

    def _happened(self, event: Any) -> None:
        epoch, block = self._epoch, self._block
        if isinstance(event, Slow):
            self._become_slow(event.row)
            return
        if isinstance(event, WholeBatch):
            for costs in event.costs:
                epoch.observe(costs, event.tickets)
            self._collated(event.content, event.failure)
            return
        self._no_longer_whole()
        if isinstance(event, Finished):
            self._settle(block, event)
        elif isinstance(event, Failed):
            self._fail(block, event.row, event.error)
        elif isinstance(event, NotBegun):
            self._not_begun(event.row)
        elif isinstance(event, Diverted):
            sample = Sample(block, event.row, event.value, event.step)
            sample.cost, sample.costs = sum(event.costs), list(event.costs)
            sample.stream = event.stream
            epoch.lanes.divert(sample)
            epoch.wake_for_work()

    def _collated(self, content: Any, failure: Any) -> None:
        """The batch that the claim completes has been made, or cannot be."""
        epoch, whole = self._epoch, self._block.batch
        others = []
        for batch in epoch.settle(self._block, self._start, [None] * (self._stop - self._start)):
            if batch is whole:
                epoch.free_blocks(batch)
                epoch.collated(batch, content, failure)
            else:
                others.append(batch)
        epoch.leave_to_collate(others)

    def _not_run(self, failure: Refusal) -> None:
        self._no_longer_whole()
        block, start = self._block, self._start
        if self._stop - start == 1:
            self._fail(block, start, failure(block.indices[start]))
            return
        # Which key it was will show when they are sent one by one.
        for row in range(start, self._stop):
            self._epoch.put_back(block, row, row + 1)

    def _died(self, worker: Worker, how: str) -> None:
        row = -1 if self._progress is None else self._progress.row
        if self._whole and row == self._stop:
            error = self._died_collating(self._block, how)
            if error is not None:
                self._collated(None, error)
                return
        self._no_longer_whole()
        if self._start <= row < self._stop:
            self._died_in(self._block, row, how)
        self._epoch.put_back(self._block, self._start, self._stop)


class RemoteSlowJob(RemoteJob):
    """The slow lane: what is left of one diverted sample."""

    def __init__(self, sample: Sample, epoch: RemoteMapEpoch) -> None:
        super().__init__(epoch)
        self._sample = sample
        self.slow = True

    def describe(self) -> str:
        return f"slow sample index {shown(self._sample.block.indices[self._sample.row])}"

    def order(self, progress: Progress) -> ResumeSample:
        self._progress = progress
        sample = self._sample
        block, row = sample.block, sample.row
        return ResumeSample(
            row,
            block.first + row,
            block.indices[row],
            block.repeats[row] if block.repeats else 0,
            sample.value,
            sample.step,
            sample.cost,
            sample.stream,
        )

    def _ticket(self, row: int) -> tuple[Block, int] | None:
        return self._sample.block, self._sample.row

    def _happened(self, event: Any) -> None:
        sample = self._sample
        if isinstance(event, Finished):
            costs = [*sample.costs, *event.costs]
            self._settle(sample.block, event._replace(costs=costs))
        elif isinstance(event, Failed):
            self._fail(sample.block, sample.row, event.error)

    def _not_run(self, failure: Refusal) -> None:
        block, row = self._sample.block, self._sample.row
        self._fail(block, row, failure(block.indices[row]))

    def _died(self, worker: Worker, how: str) -> None:
        # What it had become is still there; its blocks belong to the worker that made it.
        sample = self._sample
        self._died_in(sample.block, sample.row, how)
        if not sample.block.settled[sample.row]:
            self._epoch.lanes.temp_queue.appendleft(sample)
            self._epoch.wake_for_work()


class RemoteCollateJob(RemoteJob):
    """A batch whose samples come from more than one claim."""

    def __init__(self, batch: Batch, epoch: RemoteMapEpoch) -> None:
        super().__init__(epoch)
        self._batch = batch

    def describe(self) -> str:
        return "collating a batch"

    def order(self, progress: Progress) -> CollateBatch:
        return CollateBatch(self._batch.indices, self._batch.samples)

    def _happened(self, event: Any) -> None:
        assert isinstance(event, Collated)
        self._collated(event.content, event.failure)

    def _collated(self, content: Any, failure: Any) -> None:
        batch = self._batch
        self._epoch.free_blocks(batch)
        self._epoch.collated(batch, content, failure)

    def _not_run(self, failure: Refusal) -> None:
        self._collated(None, failure(self._batch.indices))

    def _died(self, worker: Worker, how: str) -> None:
        error = self._died_collating(self._batch, how)
        if error is None:
            self._epoch.leave_to_collate([self._batch])
        else:
            self._collated(None, error)


class RemoteFailedJob(RemoteJob):
    """What is to be done about a sample that was not waited for any longer."""

    def __init__(self, block: Block, row: int, error: Unmade, epoch: RemoteMapEpoch) -> None:
        super().__init__(epoch)
        self._block, self._row, self._error = block, row, error

    def describe(self) -> str:
        return f"the failure of sample index {shown(self._block.indices[self._row])}"

    def order(self, progress: Progress) -> HandleFailure:
        return HandleFailure(self._row, self._block.indices[self._row], self._error)

    def _happened(self, event: Any) -> None:
        self._epoch.reopen(self._block, self._row)
        if isinstance(event, Finished):
            completed = self._epoch.settle(self._block, self._row, list(event.samples))
            self._epoch.leave_to_collate(completed)
        elif isinstance(event, Failed):
            self._fail(self._block, self._row, event.error)

    def _not_run(self, failure: Refusal) -> None:
        self._epoch.reopen(self._block, self._row)
        self._fail(self._block, self._row, self._error)

    def _died(self, worker: Worker, how: str) -> None:
        self._epoch.reopen(self._block, self._row)
        self._fail(self._block, self._row, self._error)


def _unsendable(index: Any, error: BaseException) -> BaseException:
    failure = TypeError(
        f"a key of type {type(index).__qualname__} cannot be sent to a worker process: "
        f"{shown(error)}. Use keys that can be pickled, or executor='thread'"
    )
    failure.__cause__ = error
    return name_sample(failure, index, "before the first", "none")


def _unreadable(index: Any, error: PackedError, worker: str) -> BaseException:
    return error.noted(
        f"minato_async: sample index {shown(index)}, step unpickling this key of type "
        f"{type(index).__qualname__}, worker {worker}"
    ).unpack()


def _killed_over(index: Any, how: str, times: int) -> BaseException:
    return RuntimeError(
        f"a worker process {how}, {times} times, each time over sample index {shown(index)}"
    )


def _killed_collating(indices: Sequence[Any], how: str, times: int) -> BaseException:
    listed = ", ".join(map(shown, indices))
    return RuntimeError(f"a worker process {how}, {times} times, over collating samples [{listed}]")
