"""Jobs that run where the engine is: what happens to their tickets are direct calls, each of which
holds the engine's lock once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from minato_async.checkpoint import SampleCancelled, current
from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block, Claim
from minato_async.engine.jobs import ClaimJob, FailedJob, SampleJob, SlowJob
from minato_async.engine.lanes import Parked, Sample
from minato_async.engine.map_epoch import MapEpoch
from minato_async.engine.protocols import Worker
from minato_async.engine.recorder import Recorder
from minato_async.engine.runner import Runner
from minato_async.errors import forget_frames

#: Seconds that a worker waits at a checkpoint for the engine's lock, which is held for
#: microseconds. Bounded, because user code may hold locks here: where Python itself runs a
#: finalizer under the engine's lock, which nothing prevents, that may wait for one of them.
_ASKING = 0.05
#: Of samples too small to be written straight into their batch, one in so many is looked at: to
#: ask costs as much as to settle it. One that is missed is copied when the batch is collated.
_ASKED = 8
#: Seconds that a worker waits at a checkpoint for its place in the slow lane. Bounded, because
#: the sample may hold a lock that the samples which overtake it need.
PARKING = 1.0


class ThreadJob(SampleJob):
    """Base of the jobs of both lanes. Implements `Events` for its runner."""

    #: `perf_counter()` when the running step began, plus the seconds that it was parked.
    began = 0.0
    #: Seconds in earlier steps of the running sample.
    cost = 0.0
    #: The worker is inside a step.
    _inside = False
    #: Nobody waits for the running sample any more, nor for its worker.
    expired = False
    _worker: Worker | None = None
    _streams: Any = None
    #: How the worker was parked inside the running step, until it has its slot back.
    _parked: Parked | None = None
    _parked_in = -1
    #: Samples that are not asked whether they are large.
    _unasked = 0
    #: What the worker has collated last and not passed on yet. It waits for the lock that the
    #: worker takes anyway to get its next tickets: else the consumer, just woken, would meet the
    #: worker there.
    _collated: tuple[Batch, Any, BaseException | None] | None = None
    #: The step that was told of as begun: block, row and number.
    _step: tuple[Block, int, int]
    #: `perf_counter()` when the worker began to collate.
    _collates_since = 0.0

    def run(self, worker: Worker) -> None:
        bound = self._epoch.recipe.bind(worker)
        self._worker, self._streams = worker, bound.streams
        current.job = self
        try:
            bound.context.run(self._run, Runner(bound, worker.name, self))
        finally:
            current.job, self._inside = None, False
            # An idle worker must not keep the samples of its last job.
            bound.streams.end()
            self._unpark()
            if self.slow:
                with self._lock:
                    self._leave_slow_lane()

    def _run(self, runner: Runner) -> None:
        raise NotImplementedError

    def conclude(self) -> None:
        if self._collated is not None:
            self._epoch.collated(*self._collated)
            self._collated = None

    def _unpark(self, timeout: float = -1) -> None:
        """Go on, if this worker has been parked, with or without having been granted a slot. If the
        lock cannot be had within `timeout` seconds, it is counted as parked for longer."""
        parked = self._parked
        if parked is None:
            return
        if not parked.granted:
            if not self._lock.acquire(timeout=timeout):
                return
            try:
                self._epoch.lanes.unpark(parked)
            finally:
                self._lock.release()
        self._parked = None
        if self._details is not None:
            self._details.unparked(self.block, self._parked_in, self._name)

    @property
    def _name(self) -> str:
        return "" if self._worker is None else self._worker.name

    @property
    def elapsed(self) -> float:
        return self.cost + perf_counter() - self.began if self._inside else 0.0

    def _given_up(self) -> None:
        self.expired = True

    def checkpoint(self) -> None:
        """In the middle of a step: end it if nobody waits for it."""
        if self._epoch.abandoned or self.expired:
            raise SampleCancelled

    # What becomes of tickets, see `runner.Events`

    @property
    def abandoned(self) -> bool:
        return self._epoch.abandoned

    def enter(self, sample: Sample) -> bool:
        if self.expired:
            raise SampleCancelled
        self.cost, self.began, self._inside = sample.cost, perf_counter(), True
        if self._details is not None:
            self._step_began(self._details, sample.block, sample.row, sample.step)
        return True

    def leave(self) -> float:
        self._inside = False
        now = perf_counter()
        spent = now - self.began
        if self._parked is not None:
            self._unpark()
        if self._details is not None:
            block, row, step = self._step
            self._details.ended(block, (row,), step, self._name, now)
        return spent

    def _step_began(self, details: Recorder, block: Block, row: int, step: int) -> None:
        self._step = block, row, step
        details.began(block, row, step, self._name, self.began)

    def finished(self, sample: Sample) -> Sequence[Batch]:
        value, sample.value = sample.value, None
        return self._settle_one(sample.block, sample.row, value, sample.costs)

    def replaced(self, block: Block, row: int, value: Any) -> Sequence[Batch]:
        return self._settle_one(block, row, value)

    def failed(self, block: Block, row: int, error: BaseException) -> Sequence[Batch]:
        try:
            if self._epoch.skips:
                forget_frames(error)
            with self._lock:
                completed = self._failed(block, row, error)
        finally:
            # Its traceback may refer to this frame.
            del error
        self._due.ring()
        return completed

    def _failed(self, block: Block, row: int, error: BaseException) -> Sequence[Batch]:
        """Under the lock."""
        return self._epoch.failed_in(block, row, error)

    def pass_on(self) -> None:
        if self._collated is not None:
            with self._lock:
                self.conclude()
            self._due.ring()
        if self._details is not None:
            self._collates_since = perf_counter()

    def collated(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        self._collated = batch, content, failure
        if self._details is not None:
            self._details.collated(batch, self._name, self._collates_since, perf_counter())

    def _settle_one(
        self, block: Block, row: int, value: Any, costs: Sequence[float] = ()
    ) -> Sequence[Batch]:
        """Give one sample, which has cost `costs` seconds step by step, its place."""
        large = self._is_large(value)
        with self._lock:
            if costs:
                self._epoch.observe(block, row, costs)
            if not large:
                completed = self._epoch.settle(block, row, [value])
                if not completed:
                    self._go_on()
        if large:
            return self._write(block, row, value)
        self._due.ring()
        return completed

    def _go_on(self) -> None:
        """Under the lock under which a sample has got its place: what comes next?"""

    def _is_large(self, value: Any) -> bool:
        """Whether to write `value` straight into its batch."""
        writer = self._epoch.recipe.row_writer
        if writer is None:
            return False
        if self._unasked:
            self._unasked -= 1
            return False
        if writer.pays(value):
            return True
        self._unasked = _ASKED - 1
        return False

    def _write(self, block: Block, row: int, value: Any) -> Sequence[Batch]:
        """As `_settle_one`, straight into its row of the batch: so the copying is shared out among
        workers."""
        writer, epoch = self._epoch.recipe.row_writer, self._epoch
        assert writer is not None
        with self._lock:
            placed = epoch.place(block, row)
            if placed is None:
                return ()
            batch, place = placed
            if batch.rows is None:
                batch.rows = writer.rows(batch.size)
            rows = batch.rows
        written = rows.write(place, value)
        with self._lock:
            completed = epoch.fill(block, batch, place, written)
            if not completed:
                self._go_on()
        self._due.ring()
        return completed


class ThreadClaimJob(ThreadJob, ClaimJob):
    """The fast lane: one claim after another, run by the worker that took them.

    Between two samples of a few milliseconds each a worker's way through the engine runs cold, and
    each lock on it may be held by another. So it takes its next claim, as long as there is one for
    it, under the lock under which it has settled the last, and keeps all that does not change.
    """

    def __init__(self, claim: Claim, epoch: MapEpoch) -> None:
        super().__init__(claim, epoch)
        #: Finished samples that have no place yet, in order, from row `_first` on.
        self._samples: list[Any] = []
        #: The row that was seen to run last, and since when; 0: since `began`.
        self._seen = (-1, 0.0)
        self._begin(claim)

    def _begin(self, claim: Claim) -> None:
        self.block, self._start, self._stop = claim.block, claim.start, claim.stop
        self._early = claim.early
        # Tickets not started yet, the next one last. Whoever pops one owns it: the worker, or
        # whoever takes over what it cannot come to.
        self._pending = list(range(claim.stop - 1, claim.start - 1, -1))
        self._first = self._run_from = claim.start
        #: Batches to collate whose last sample came from no worker that could.
        self._completed = claim.completed

    def _go_on(self) -> None:
        if self._pending or self.slow or self.expired:
            return
        assert self._worker is not None
        claim = self._epoch.next_claim(self._worker)
        if claim is not None:
            self._begin(claim)

    @property
    def _row(self) -> int:
        # The one before those that are pending, the last of which is next.
        following = self._pending[-1:] or [self._stop]
        return following[0] - 1

    @property
    def elapsed(self) -> float:
        # Tickets of a single step are timed together. Of each but the first it is only known since
        # when it was seen to run, by whoever asked: the deadline watch, or a checkpoint of its own.
        if not self._inside:
            return 0.0
        running, (row, since) = self._streams.ticket, self._seen
        if running != row:
            since = perf_counter()
            self._seen = running, since
        return self.cost + perf_counter() - max(self.began, since)

    def _run(self, runner: Runner) -> None:
        while True:
            completed, self._completed = self._completed, ()
            runner.collate(completed)
            runner.run_tickets(self)
            if not self._completed:
                return

    def left(self) -> bool:
        if not self._pending and self._collated is not None:
            with self._lock:
                self.conclude()
                self._go_on()
            self._due.ring()
        if not self._pending or self._epoch.abandoned:
            return False
        if self._collated is not None:
            self.pass_on()
        return True

    def take(self) -> int:
        row = self._first = self._pending.pop()
        self._seen = row, 0.0
        return row

    def begin_run(self) -> tuple[Callable[[], int], list[Any]] | None:
        following = self._pending[-1:]
        if not following:  # taken over
            return None
        self._first = self._run_from = self._streams.ticket = following[0]
        self._seen = self._first, 0.0
        self.cost, self.began, self._inside = 0.0, perf_counter(), True
        if self._details is not None:
            self._step_began(self._details, self.block, self._first, 0)
        return self._pending.pop, self._samples

    def end_run(self, row: int, goes_on: bool) -> Sequence[Batch]:
        self._inside = False
        now = perf_counter()
        seconds, tickets = now - self.began, row + 1 - self._run_from
        if self._parked is not None:
            self._unpark()
        if self._details is not None:
            rows = range(self._run_from, row + 1)
            self._details.ended(self.block, rows, 0, self._name, now)
        large = len(self._samples) == 1 and self._is_large(self._samples[0])
        completed: Sequence[Batch] = ()
        with self._lock:
            if tickets > 0:  # else they were taken over
                self._epoch.observe(self.block, self._run_from, (seconds,), tickets)
            # The list itself and no copy: nothing is appended to it any more.
            first, samples = self._first, self._samples
            self._first, self._samples = first + len(samples), []
            if not large:
                completed = self._epoch.settle(self.block, first, samples)
                if goes_on and not completed:
                    self._go_on()
        if large and samples:
            return self._write(self.block, first, samples.pop())
        self._due.ring()
        return completed

    def _failed(self, block: Block, row: int, error: BaseException) -> Sequence[Batch]:
        completed = super()._failed(block, row, error)
        if self._epoch.assigned is not None:
            self._drop_rest_of_lost()
        return completed

    def _drop_rest_of_lost(self) -> None:
        """Under the lock: where it matters what a worker has loaded, it goes on with the next batch
        when one is lost, as torch's does."""
        batch = self.block.batch
        if batch is not None and batch.lost:
            self._epoch.feed.leave_window(self.block, len(self._pending) * self.block.unit)
            self._pending.clear()

    # Slow samples

    def _stuck_in(self) -> int | None:
        if not self.elapsed:
            return None
        # From here on the worker cannot begin another ticket; it may have come out of this one.
        row = self._hand_over_rest()
        return row if self._inside else None

    def _hand_over_rest(self) -> int:
        """Under the lock: the running ticket takes long. What stands behind it goes back to the
        feed, and what is finished before it gets its place. Returns the row it must be."""
        rows = []
        while self._pending:
            try:
                rows.append(self._pending.pop(0))
            except IndexError:  # the worker was faster
                break
        running = min(rows, default=self._stop) - 1
        self._not_begun(running + 1)
        first, samples = self._first, self._samples[:]
        del self._samples[: len(samples)]
        self._first += len(samples)
        self._epoch.leave_to_collate(self._epoch.settle(self.block, first, samples))
        return running

    def _may_divert(self) -> bool:
        return not (self.slow or self._early) and self._epoch.diverts

    def enter(self, sample: Sample) -> bool:
        if self.expired:
            raise SampleCancelled
        if sample.cost > self._epoch.threshold.seconds and self._may_divert():
            sample.stream = self._streams.detach()
            with self._lock:
                self._epoch.divert(sample)
            self._due.ring()
            return False
        # Not by `super`: that takes longer than the rest.
        self.cost, self.began, self._inside = sample.cost, perf_counter(), True
        if self._details is not None:
            self._step_began(self._details, sample.block, sample.row, sample.step)
        return True

    def checkpoint(self) -> None:
        """As in other jobs; and let others go first if the sample is slow."""
        super().checkpoint()
        self._unpark(_ASKING)
        if self._may_divert() and self.elapsed > self._epoch.threshold.seconds:
            self._step_aside()

    def _step_aside(self) -> None:
        epoch, worker = self._epoch, self._worker
        assert worker is not None
        if not self._lock.acquire(timeout=_ASKING):
            return  # the next checkpoint asks again
        try:
            parked = self._park(worker)
        finally:
            self._lock.release()
        if parked is None:
            return
        began, self._parked = perf_counter(), parked
        self._due.ring()
        epoch.sync.staff()
        parked.bell.wait(PARKING)
        self._unpark(_ASKING)
        seconds, (row, since) = perf_counter() - began, self._seen
        self.began += seconds
        self._seen = row, since + seconds
        self._inside = True
        if epoch.abandoned:
            raise SampleCancelled

    def _park(self, worker: Worker) -> Parked | None:
        """Under the lock: give way, if that would help anybody."""
        epoch, slots = self._epoch, self._epoch.sync.slots
        if self.expired:  # just now: its worker is counted no more
            raise SampleCancelled
        row = self._hand_over_rest()
        self._become_slow(row)
        # With a core to spare, or nothing else to run, waiting would help nobody.
        if slots.cores_idle or slots.free or not epoch.feed.claimable:
            return None
        if epoch.lanes.has_place(epoch.in_flight, epoch.lanes.slow_running):
            return None
        parked = epoch.lanes.park(worker)
        if self._details is not None:
            self._parked_in = row
            self._details.parked(self.block, row, worker.name)
        # Being parked is no cost: neither is it stuck, nor does its time run out.
        self._inside = False
        epoch.wake_for_work()
        return parked


class ThreadSlowJob(ThreadJob, SlowJob):
    def _run(self, runner: Runner) -> None:
        runner.resume(self._sample)

    def _stuck_in(self) -> int | None:
        return self._sample.row if self._inside else None


class ThreadFailedJob(ThreadJob, FailedJob):
    def _run(self, runner: Runner) -> None:
        runner.handle(self.block, self._failed_row, self._error.unpack())

    def _stuck_in(self) -> int | None:
        return None

    def _failed(self, block: Block, row: int, error: BaseException) -> Sequence[Batch]:
        self._reopen()
        return super()._failed(block, row, error)

    def replaced(self, block: Block, row: int, value: Any) -> Sequence[Batch]:
        with self._lock:
            self._reopen()
            completed = self._epoch.settle(block, row, [value])
        self._due.ring()
        return completed
