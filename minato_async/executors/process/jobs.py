"""Jobs that run in other processes: requests for what they are to do, and the replies, which tell
what has happened. A job whose worker dies is run again; a ticket, or a batch, that costs workers
their lives `DEATHS` times fails.

The worker's half is `minato_async.executors.process.worker_samples`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block, Claim
from minato_async.engine.jobs import ClaimJob, FailedJob, SampleJob, SlowJob
from minato_async.engine.lanes import Sample
from minato_async.engine.protocols import Progress, Worker
from minato_async.errors import Unmade, name_sample, shown
from minato_async.executors.process.epoch_state import RemoteMapEpoch
from minato_async.executors.process.messages import (
    CollateBatch,
    Collated,
    Diverted,
    Failed,
    Finished,
    HandleFailure,
    NotBegun,
    Ran,
    ResumeSample,
    RunClaim,
    Slow,
)
from minato_async.executors.process.transport.failures import PackedError

#: The failure of a sample, given its index.
Refusal = Callable[[Any], Unmade]
#: Workers that may die over one ticket, or one batch, before it has failed.
DEATHS = 3
#: Seconds within which what one process has written to shared memory is seen by another. Caches
#: are coherent: what takes time, and far less, is the way from the processor's own buffers there.
SEEN = 1e-3


class RemoteJob(SampleJob):
    """Base of all jobs of one epoch. Methods whose caller does not hold the engine's lock take it
    themselves; they run on the event loop."""

    _epoch: RemoteMapEpoch
    _progress: Progress | None = None
    #: The name of the worker that has the request.
    _worker = ""
    #: The row that the worker was in when it was asked to begin no other, and when that was.
    _asked = (-1, 0.0)

    @property
    def context(self) -> Any:
        return self._epoch.context

    def run(self, worker: Worker) -> None:
        raise TypeError("this job is a request for another process")

    def request(self, progress: Progress) -> Any:
        self._progress = progress
        return self._request()

    def _request(self) -> Any:
        raise NotImplementedError

    @property
    def _row(self) -> int:
        return -1 if self._progress is None else self._progress.row

    @property
    def elapsed(self) -> float:
        return 0.0 if self._progress is None else self._progress.elapsed

    def _stuck_in(self) -> int | None:
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
        return row if now - since >= SEEN else None

    def finished(self) -> None:
        with self._lock:
            self._leave_slow_lane()

    def reply(self, worker: Worker, events: Any) -> None:
        self._worker = worker.name
        with self._lock:
            if not self._epoch.abandoned:
                for event in events:
                    if isinstance(event, Ran):
                        self._ran(event)
                    else:
                        self._happened(event)
        self._due.ring()

    def _ran(self, event: Ran) -> None:
        """Under the lock: the worker has been told that somebody wants to know."""
        if self._details is not None:
            row, rows, step, began, ended = event
            self._details.began(self.block, row, step, self._worker, began)
            ran = range(row, row + rows)
            self._details.ended(self.block, ran, step, self._worker, ended)

    def _made(self, batch: Batch, event: Collated) -> None:
        """Under the lock: a worker has collated `batch`, or cannot."""
        if self._details is not None and event.ended:
            self._details.collated(batch, self._worker, event.began, event.ended)
        self._epoch.made(batch, event.content, event.failure)

    def _happened(self, event: Any) -> None:
        """Under the lock."""
        if isinstance(event, Finished):
            self._settle(event, event.costs)
        elif isinstance(event, Failed):
            self._fail(event.row, event.error)

    def _settle(self, event: Finished, costs: Sequence[float]) -> None:
        epoch, samples = self._epoch, list(event.samples)
        if event.tickets:
            epoch.observe(self.block, event.row, costs, event.tickets, event.long)
        epoch.packed(samples, event.packing, costs)
        epoch.leave_to_collate(epoch.settle(self.block, event.row, samples))

    def _fail(self, row: int, error: Any) -> None:
        self._epoch.leave_to_collate(self._epoch.failed_in(self.block, row, error))

    def cannot_be_sent(self, error: BaseException) -> None:
        self._over(lambda: self._not_run(lambda index: Unmade(_unsendable, index, error)))

    def cannot_be_read(self, worker: Worker, error: PackedError) -> None:
        name = worker.name
        self._over(lambda: self._not_run(lambda index: Unmade(_unreadable, index, error, name)))

    def died(self, worker: Worker, how: str) -> None:
        self._over(lambda: self._died(how))

    def _over(self, what: Callable[[], None]) -> None:
        """There is no more to come, because of `what`."""
        with self._lock:
            self._leave_slow_lane()
            if not self._epoch.abandoned:
                what()
        self._due.ring()

    def _not_run(self, failure: Refusal) -> None:
        """Under the lock: keys of the user's cannot travel, and the request has not been begun.
        `failure` makes what has become of one of them."""
        raise NotImplementedError

    def _died(self, how: str) -> None:
        """Under the lock: the worker has died over it."""
        raise NotImplementedError

    def _died_collating(self, batch: Batch | Block, how: str) -> Unmade | None:
        """The failure of the batch that the worker was collating, if that was one death too
        many."""
        deaths = self._epoch.deaths
        count = deaths[batch, -1] = deaths.get((batch, -1), 0) + 1
        if count < DEATHS:
            return None
        return Unmade(_killed_collating, list(batch.indices[:8]), how, count)

    def _died_in(self, row: int, how: str) -> None:
        """The ticket of `row` fails if that was one death too many."""
        deaths, block = self._epoch.deaths, self.block
        count = deaths[block, row] = deaths.get((block, row), 0) + 1
        if count >= DEATHS:
            self._epoch.expire_with(
                block, row, Unmade(_killed_over, block.indices[row], how, count)
            )


class RemoteClaimJob(RemoteJob, ClaimJob):
    """`whole`: its worker has all that is missing of a batch, and is to collate it; the other
    samples of the batch are `given`."""

    def __init__(
        self, claim: Claim, whole: bool, given: CollateBatch | None, epoch: RemoteMapEpoch
    ) -> None:
        super().__init__(claim, epoch)
        self._whole = whole
        self._given = given

    def _request(self) -> RunClaim:
        block, start, stop, epoch = self.block, self._start, self._stop, self._epoch
        return RunClaim(
            start,
            block.positions[start:stop],
            block.indices[start:stop],
            block.repeats[start:stop],
            self._whole,
            self._given,
            epoch.threshold.seconds,
            epoch.diverts and not self._early,
            epoch.assigned is not None and not epoch.skips,
        )

    def _stuck_in(self) -> int | None:
        row = super()._stuck_in()
        # Otherwise it is collating, or about to.
        return row if row is not None and self._start <= row < self._stop else None

    def _no_longer_whole(self) -> None:
        if self._whole:
            self._whole = False
            self._epoch.unreserve(self.block)

    def _not_begun(self, row: int) -> None:
        if row < self._stop:
            self._no_longer_whole()
        super()._not_begun(row)

    def _given_up(self) -> None:
        # What it had finished is lost with it.
        self._no_longer_whole()
        self._not_begun(self._start)

    def _happened(self, event: Any) -> None:
        if isinstance(event, Slow):
            self._become_slow(event.row)
        elif isinstance(event, Collated):
            for number, costs in enumerate(event.costs):
                row = self._start + number * event.tickets
                self._epoch.observe(self.block, row, costs, event.tickets, event.long)
            self._collated(event)
        else:
            self._no_longer_whole()
            if isinstance(event, NotBegun):
                self._not_begun(event.row)
            elif isinstance(event, Diverted):
                row, value, step, costs, stream = event
                sample = Sample(self.block, row, value, step, sum(costs), list(costs), stream)
                self._epoch.divert(sample)
            else:
                super()._happened(event)

    def _collated(self, event: Collated) -> None:
        """The batch that the claim completes has been made, or cannot be."""
        epoch, whole = self._epoch, self.block.batch
        others = []
        for batch in epoch.settle(self.block, self._start, [None] * (self._stop - self._start)):
            if batch is whole:
                self._made(batch, event)
            else:
                others.append(batch)
        epoch.leave_to_collate(others)

    def _not_run(self, failure: Refusal) -> None:
        self._no_longer_whole()
        block, start = self.block, self._start
        if self._stop - start == 1:
            self._fail(start, failure(block.indices[start]))
            return
        # Which key it was will show when they are sent one by one.
        for row in range(start, self._stop):
            self._epoch.put_back(block, row, row + 1)

    def _died(self, how: str) -> None:
        row = self._row
        if self._whole and row == self._stop:
            error = self._died_collating(self.block, how)
            if error is not None:
                self._collated(Collated(None, error))
                return
        self._no_longer_whole()
        if self._start <= row < self._stop:
            self._died_in(row, how)
        self._not_begun(self._start)


class RemoteSlowJob(RemoteJob, SlowJob):
    def _request(self) -> ResumeSample:
        sample, block, row = self._sample, self.block, self._sample.row
        return ResumeSample(
            row,
            block.positions[row],
            block.indices[row],
            block.repeats[row] if block.repeats else 0,
            sample.value,
            sample.step,
            sample.cost,
            sample.stream,
        )

    def _given_up(self) -> None:
        """Nothing else is lost with the worker."""

    def _settle(self, event: Finished, costs: Sequence[float]) -> None:
        super()._settle(event, [*self._sample.costs, *costs])

    def _not_run(self, failure: Refusal) -> None:
        row = self._sample.row
        self._fail(row, failure(self.block.indices[row]))

    def _died(self, how: str) -> None:
        # What it had become is still there; its blocks belong to the worker that made it.
        sample = self._sample
        self._died_in(sample.row, how)
        if not self.block.settled[sample.row]:
            if self._details is not None:
                self._details.returned(self.block, (sample.row,))
            self._epoch.lanes.temp_queue.appendleft(sample)
            self._epoch.wake_for_work()


class RemoteCollateJob(RemoteJob):
    """A batch whose samples come from more than one claim."""

    def __init__(self, batch: Batch, epoch: RemoteMapEpoch) -> None:
        super().__init__(epoch, Block(0, (), 1))
        self._batch = batch

    def describe(self) -> str:
        return "collating a batch"

    def _request(self) -> CollateBatch:
        return CollateBatch(self._batch.indices, self._batch.samples)

    def _stuck_in(self) -> int | None:
        return None

    def _happened(self, event: Any) -> None:
        assert isinstance(event, Collated)
        self._made(self._batch, event)

    def _not_run(self, failure: Refusal) -> None:
        self._epoch.made(self._batch, None, failure(self._batch.indices))

    def _died(self, how: str) -> None:
        error = self._died_collating(self._batch, how)
        if error is None:
            self._epoch.leave_to_collate([self._batch])
        else:
            self._epoch.made(self._batch, None, error)


class RemoteFailedJob(RemoteJob, FailedJob):
    def _request(self) -> HandleFailure:
        return HandleFailure(self._failed_row, self.block.indices[self._failed_row], self._error)

    def _stuck_in(self) -> int | None:
        return None

    def _happened(self, event: Any) -> None:
        self._reopen()
        super()._happened(event)

    def _not_run(self, failure: Refusal) -> None:
        self._reopen()
        self._fail(self._failed_row, self._error)

    def _died(self, how: str) -> None:
        self._reopen()
        self._fail(self._failed_row, self._error)


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
