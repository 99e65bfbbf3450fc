"""What a worker does with a claim: run its tickets, settle the outcomes, collate full batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from minato_async.checkpoint import SampleCancelled, current
from minato_async.engine.batches import Batch
from minato_async.engine.feed import Block, Claim
from minato_async.engine.lanes import Parked, Sample
from minato_async.engine.recipe import BoundRecipe, OnError
from minato_async.errors import (
    Unmade,
    forget_frames,
    name_batch,
    name_sample,
    shown,
    took_too_long,
)
from minato_async.executors.base import Worker

if TYPE_CHECKING:
    from minato_async.engine.map_epoch import MapEpoch

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


class SampleJob:
    """Running samples of one epoch on one worker. Base of the jobs of both lanes."""

    def __init__(self, epoch: MapEpoch) -> None:
        self._epoch = epoch
        self._recipe = epoch.recipe
        self._lock = epoch.sync.lock
        self._due = epoch.sync.due
        #: The sample is known to be slow, and its worker counted in the slow lane.
        self.slow = False
        #: `perf_counter()` when the running step began, moved on by what it was parked.
        self.began = perf_counter()
        #: Seconds in earlier steps of the running sample.
        self.cost = 0.0
        #: The worker is inside a step.
        self._inside = False
        #: The row that was seen to run last, and since when; 0: since `began`.
        self._seen = (-1, 0.0)
        #: Nobody waits for the running sample any more, nor for its worker.
        self._expired = False
        self._worker: Worker | None = None
        self._name = ""
        self._on_error: OnError = "raise"
        self._streams: Any = None
        #: Samples that are not asked whether they are large.
        self._unasked = 0
        #: What the worker has collated last and not passed on yet. It waits for the lock that the
        #: worker takes anyway to get its next tickets: else the consumer, just woken, would meet
        #: the worker there.
        self._collated: tuple[Batch, Any, BaseException | None] | None = None

    def conclude(self) -> None:
        if self._collated is not None:
            self._epoch.collated(*self._collated)
            self._collated = None

    def _pass_on(self) -> None:
        """Something that may take long comes next."""
        if self._collated is not None:
            with self._lock:
                self.conclude()
            self._due.ring()

    def run(self, worker: Worker) -> None:
        self._worker, self._name = worker, worker.name
        bound = self._recipe.bind(worker)
        self._streams, self._on_error = bound.streams, bound.on_error
        current.job = self
        try:
            bound.context.run(self._run, bound, worker.name)
        finally:
            current.job = None
            # An idle worker must not keep the samples of its last job.
            bound.streams.end()
            if self.slow:
                with self._lock:
                    self._epoch.lanes.slow_running -= 1

    def _run(self, bound: BoundRecipe, worker: str) -> None:
        raise NotImplementedError

    # Steps

    def _run_steps(self, sample: Sample, steps: Sequence[Callable[[Any], Any]]) -> bool:
        """Run what is left of `sample`; False if it turned out to be slow between two steps."""
        threshold = self._epoch.threshold
        while True:
            self.cost, self.began, self._inside = sample.cost, perf_counter(), True
            try:
                sample.value = steps[sample.step](sample.value)
            finally:
                self._inside = False
            spent = perf_counter() - self.began
            sample.cost += spent
            sample.costs.append(spent)
            sample.step += 1
            if sample.step == len(steps):
                return True
            if self._expired:
                raise SampleCancelled
            if sample.cost > threshold.seconds and self._may_divert():
                return False

    def _may_divert(self) -> bool:
        return not self.slow and self._epoch.diverts

    @property
    def elapsed(self) -> float:
        """Seconds that the running sample has cost so far; 0 between samples. Any thread."""
        return self.cost + perf_counter() - self.began if self._inside else 0.0

    def hand_off(self) -> bool:
        if not self._inside:
            return False
        if not self.slow:
            self._become_slow()
        return True

    def expire(self, seconds: float) -> bool:
        """As `hand_off`, and the running sample has failed."""
        ticket = self._stuck_in()
        # Asked again: it may have come to its next ticket since the watch looked.
        if ticket is None or self.elapsed <= seconds:
            return False
        block, row = ticket
        error = Unmade(took_too_long, block.indices[row], seconds)
        if not self._epoch.expire_with(block, row, error):
            return False
        self._expired = True
        if self.slow:
            self.slow = False
            self._epoch.lanes.slow_running -= 1
        return True

    def _stuck_in(self) -> tuple[Block, int] | None:
        """Under the lock: the ticket whose step the worker is in; None if it came out after
        all."""
        return None

    def checkpoint(self) -> None:
        """In the middle of a step: end it if nobody waits for it; let others go first if it is
        slow."""
        epoch = self._epoch
        if epoch.abandoned or self._expired:
            raise SampleCancelled
        if self._may_divert() and self.elapsed > epoch.threshold.seconds:
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
        began = perf_counter()
        self._due.ring()
        epoch.sync.staff()
        parked.bell.wait(PARKING)
        if not parked.granted:
            with self._lock:
                epoch.lanes.unpark(parked)
        seconds, (row, since) = perf_counter() - began, self._seen
        self.began += seconds
        self._seen = row, since + seconds
        self._inside = True
        if epoch.abandoned:
            raise SampleCancelled

    def _park(self, worker: Worker) -> Parked | None:
        """Under the lock: give way, if that would help anybody."""
        epoch, slots = self._epoch, self._epoch.sync.slots
        if self._expired:  # just now: its worker is counted no more
            raise SampleCancelled
        self._become_slow()
        # With a core to spare, or nothing else to run, waiting would help nobody.
        if slots.cores_idle or slots.free or not epoch.feed.claimable:
            return None
        if epoch.lanes.has_place(epoch.in_flight, epoch.lanes.slow_running):
            return None
        parked = epoch.lanes.park(worker)
        # Being parked is no cost: neither is it stuck, nor does its time run out.
        self._inside = False
        epoch.wake_for_work()
        return parked

    def _become_slow(self) -> None:
        """Under the lock: the worker of this job is in the slow lane from now on."""
        self.slow = True
        self._epoch.lanes.slow_running += 1

    # Outcomes

    def _settle_one(
        self, block: Block, row: int, value: Any, costs: Sequence[float] = ()
    ) -> list[Batch]:
        """Give one sample, which has cost `costs` seconds step by step, its place; returns the
        batches that it completes."""
        large = self._is_large(value)
        with self._lock:
            if costs:
                self._epoch.observe(costs)
            if not large:
                completed = self._epoch.settle(block, row, [value])
                if not completed:
                    self._go_on()
        if large:
            return self._write(block, row, value)
        self._due.ring()
        return completed

    def _is_large(self, value: Any) -> bool:
        """Whether to write `value` straight into its batch."""
        writer = self._recipe.row_writer
        if writer is None:
            return False
        if self._unasked:
            self._unasked -= 1
            return False
        if writer.pays(value):
            return True
        self._unasked = _ASKED - 1
        return False

    def _write(self, block: Block, row: int, value: Any) -> list[Batch]:
        """As `_settle_one`, straight into its row of the batch: so the copying is shared out among
        workers."""
        writer, epoch = self._recipe.row_writer, self._epoch
        assert writer is not None
        with self._lock:
            placed = epoch.place(block, row)
            if placed is None:
                return []
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

    def _go_on(self) -> None:
        """Under the lock under which a sample has got its place: what comes next?"""

    def _fail(self, block: Block, row: int, error: BaseException) -> list[Batch]:
        """Do with a failed sample what the user asked for: raise, skip, or replace it."""
        handler = self._on_error
        replacement: Any = None
        skips = isinstance(handler, str) and handler == "skip"
        try:
            if callable(handler):
                try:
                    replacement = handler(block.indices[row], error)
                except BaseException as raised:
                    # A `StopIteration`, too, must not end the epoch.
                    error = name_sample(raised, block.indices[row], "on_error", self._name)
                else:
                    return self._settle_one(block, row, replacement)
            if skips:
                forget_frames(error)
            with self._lock:
                self._reopen(block, row)
                if skips:
                    completed = self._epoch.skip_failed(block, row, error)
                else:
                    completed = self._epoch.fail(block, row, error)
        finally:
            # Its traceback may refer to this frame.
            del error
        self._due.ring()
        return completed

    def _reopen(self, block: Block, row: int) -> None:
        """Under the lock: what is decided next is what is to become of the ticket."""

    def _failed_in(
        self, error: BaseException, block: Block, row: int, step: int, worker: str
    ) -> list[Batch]:
        """As `_fail`, for an `error` that a step has raised."""
        return self._fail(block, row, self._named(error, block, row, step, worker))

    def _named(self, error: BaseException, block: Block, row: int, step: int, worker: str) -> Any:
        if self._expired or (isinstance(error, SampleCancelled) and self._epoch.abandoned):
            raise SampleCancelled
        return name_sample(error, block.indices[row], self._recipe.step_name(step), worker)

    def _collate_all(self, completed: Sequence[Batch], bound: BoundRecipe, worker: str) -> bool:
        """Collate what there is; returns whether there was anything."""
        for batch in completed:
            self._pass_on()
            self._collate(batch, bound, worker)
        return bool(completed)

    def _collate(self, batch: Batch, bound: BoundRecipe, worker: str) -> None:
        content: Any = None
        failure: BaseException | None = None
        recipe = self._recipe
        bound.streams.begin(lambda _: recipe.seed(tuple(batch.indices), 0, 0))
        bound.streams.ticket = batch
        current.job = None
        if batch.holes:
            batch.close_holes()
        try:
            collate = bound.collate if batch.rows is None else batch.rows.collate
            if not batch.void:
                content = bound.finish(collate(batch.samples))
        except BaseException as error:
            if isinstance(error, SampleCancelled) and self._epoch.abandoned:
                raise
            failure = name_batch(error, batch.indices, batch.samples, worker)
        finally:
            current.job = self
        # Here and not under the lock: freeing takes time, and a finalizer is user code.
        batch.samples, batch.rows = [], None
        self._collated = batch, content, failure
        # Its traceback refers to this frame.
        del failure

    def _seed_of(self, block: Block) -> Callable[[int], int]:
        def seed(row: int) -> int:
            repeat = block.repeats[row] if block.repeats else 0
            return self._recipe.seed(block.indices[row], repeat, block.first + row)

        return seed


class ClaimJob(SampleJob):
    """The fast lane: one claim after another, run by the worker that took them.

    Between two samples of a few milliseconds each a worker's way through the engine runs cold, and
    each lock on it may be held by another. So it takes its next claim, as long as there is one for
    it, under the lock under which it has settled the last, and keeps all that does not change.
    """

    def __init__(self, claim: Claim, epoch: MapEpoch) -> None:
        super().__init__(epoch)
        #: Finished samples that have no place yet, in order, from row `_first` on.
        self._samples: list[Any] = []
        self._take(claim)

    def _take(self, claim: Claim) -> None:
        self._block = claim.block
        #: Batches to collate whose last sample came from no worker that could.
        self._completed = claim.completed
        # Tickets not started yet, the next one last. Whoever pops one owns it: the worker, or
        # whoever takes over what it cannot come to.
        self._pending = list(range(claim.stop - 1, claim.start - 1, -1))
        self._first, self._stop = claim.start, claim.stop

    def _go_on(self) -> None:
        if self._pending or self.slow or self._expired:
            return
        assert self._worker is not None
        claim = self._epoch.next_claim(self._worker)
        if claim is not None:
            self._take(claim)

    def describe(self) -> str:
        # The worker is in the ticket before those that are pending, the last of which is next.
        following = self._pending[-1:] or [self._stop]
        row = following[0] - 1
        return (
            f"sample index {shown(self._block.indices[row])}" if row >= 0 else "collating a batch"
        )

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

    def _run(self, bound: BoundRecipe, worker: str) -> None:
        run = self._run_tickets if len(bound.steps) == 1 else self._run_ticket
        seeded: Block | None = None
        while not self._epoch.abandoned:
            if self._completed:
                completed, self._completed = self._completed, ()
                self._collate_all(completed, bound, worker)
                seeded = None
            elif self._pending:
                self._pass_on()
                block = self._block
                if seeded is not block:
                    bound.streams.begin(self._seed_of(block))
                # A batch that was collated has begun random state of its own.
                seeded = None if self._collate_all(run(bound, worker), bound, worker) else block
            elif not self._next():
                break

    def _next(self) -> bool:
        """Pass on what was collated last, and take another claim; False: there is none."""
        if self._collated is None:
            return False  # there was none when the last sample got its place
        with self._lock:
            self.conclude()
            self._go_on()
        self._due.ring()
        return bool(self._pending or self._completed)

    def _run_tickets(self, bound: BoundRecipe, worker: str) -> list[Batch]:
        """Run tickets of a single step up to the end, or the first that fails; returns the batches
        that they complete. This loop is what a trivial sample costs: so it is timed as a whole, and
        the samples settled in one go."""
        block, indices, streams = self._block, self._block.indices, bound.streams
        fetch, append, take = bound.steps[0], self._samples.append, self._pending.pop
        failure: BaseException | None = None
        following = self._pending[-1:]
        if not following:  # taken over
            return []
        row = first = self._first = streams.ticket = following[0]
        self._seen = first, 0.0
        self.cost, self.began, self._inside = 0.0, perf_counter(), True
        try:
            while True:
                try:
                    row = take()
                except IndexError:
                    break
                streams.ticket = row
                append(fetch(indices[row]))
        except BaseException as error:
            failure = self._named(error, block, row, 0, worker)
        finally:
            self._inside = False
        tickets, seconds = row + 1 - first, perf_counter() - self.began
        if failure is None:
            return self._settle_finished(tickets, seconds)
        completed = self._settle_finished(tickets, seconds, goes_on=False)
        completed += self._fail(block, row, failure)
        # Its traceback refers to this frame.
        del failure
        return completed

    def _settle_finished(self, tickets: int, seconds: float, goes_on: bool = True) -> list[Batch]:
        """Give the finished samples their places, having run `tickets` in `seconds`."""
        large = len(self._samples) == 1 and self._is_large(self._samples[0])
        completed: list[Batch] = []
        with self._lock:
            self._epoch.observe((seconds,), tickets)
            # The list itself and no copy: nothing is appended to it any more.
            row, samples = self._first, self._samples
            self._first, self._samples = row + len(samples), []
            if not large:
                completed = self._epoch.settle(self._block, row, samples)
                if goes_on and not completed:
                    self._go_on()
        if large and samples:
            return self._write(self._block, row, samples.pop())
        self._due.ring()
        return completed

    def _take_finished(self) -> tuple[int, list[Any]]:
        """Under the lock: the samples that are finished and have no place, and the first's row."""
        row, samples = self._first, self._samples[:]
        del self._samples[: len(samples)]
        self._first += len(samples)
        return row, samples

    def _run_ticket(self, bound: BoundRecipe, worker: str) -> list[Batch]:
        """Run one ticket of several steps, or as many of them as it takes to find that it is
        slow; returns the batches that it completes."""
        try:
            row = self._pending.pop()
        except IndexError:  # taken over
            return []
        block, epoch = self._block, self._epoch
        self._first = bound.streams.ticket = row
        self._seen = row, 0.0
        sample = Sample(block, row, block.indices[row])
        try:
            finished = self._run_steps(sample, bound.steps)
        except BaseException as error:
            return self._failed_in(error, block, row, sample.step, worker)
        if finished:
            return self._settle_one(block, row, sample.value, sample.costs)
        sample.stream = bound.streams.detach()
        with self._lock:
            epoch.lanes.divert(sample)
            epoch.wake_for_work()
        self._due.ring()
        return []

    def _fail(self, block: Block, row: int, error: BaseException) -> list[Batch]:
        completed = super()._fail(block, row, error)
        if self._epoch.assigned is not None:
            with self._lock:
                self._drop_rest_of_lost()
        return completed

    def _drop_rest_of_lost(self) -> None:
        """Under the lock: where it matters what a worker has loaded, it goes on with the next batch
        when one is lost, as torch's does."""
        batch = self._block.batch
        if batch is not None and batch.lost:
            self._epoch.feed.leave_window(len(self._pending) * self._block.unit)
            self._pending.clear()

    def _become_slow(self) -> None:
        super()._become_slow()
        self.hand_over_rest()

    def hand_over_rest(self) -> int:
        """Under the lock: the running ticket takes long. What stands behind it goes back to the
        feed, and what is finished before it gets its place. Returns the row it must be."""
        epoch = self._epoch
        rows = []
        while self._pending:
            try:
                rows.append(self._pending.pop(0))
            except IndexError:  # the worker was faster
                break
        running = min(rows, default=self._stop) - 1
        if rows:
            epoch.feed.put_back(self._block, running + 1, self._stop)
            self._stop = running + 1
        epoch.leave_to_collate(epoch.settle(self._block, *self._take_finished()))
        return running

    def _stuck_in(self) -> tuple[Block, int] | None:
        # From here on the worker cannot begin another ticket.
        row = self.hand_over_rest()
        return (self._block, row) if self._inside else None


class SlowJob(SampleJob):
    """The slow lane: what is left of one diverted sample."""

    def __init__(self, sample: Sample, epoch: MapEpoch) -> None:
        super().__init__(epoch)
        self._sample = sample
        self.slow = True

    def describe(self) -> str:
        return f"slow sample index {shown(self._sample.block.indices[self._sample.row])}"

    def _stuck_in(self) -> tuple[Block, int] | None:
        return (self._sample.block, self._sample.row) if self._inside else None

    def _run(self, bound: BoundRecipe, worker: str) -> None:
        sample = self._sample
        block, row = sample.block, sample.row
        bound.streams.begin(self._seed_of(block))
        bound.streams.ticket = row
        bound.streams.attach(sample.stream)
        try:
            self._run_steps(sample, bound.steps)
        except BaseException as error:
            completed = self._failed_in(error, block, row, sample.step, worker)
            self._collate_all(completed, bound, worker)
            return
        value, sample.value = sample.value, None
        self._collate_all(self._settle_one(block, row, value, sample.costs), bound, worker)


class FailedJob(SampleJob):
    """What is to be done about a sample that was not waited for any longer."""

    def __init__(self, block: Block, row: int, error: Unmade, epoch: MapEpoch) -> None:
        super().__init__(epoch)
        self._block, self._row, self._error = block, row, error

    def describe(self) -> str:
        return f"the failure of sample index {shown(self._block.indices[self._row])}"

    def _run(self, bound: BoundRecipe, worker: str) -> None:
        block, row = self._block, self._row
        completed = self._failed_in(self._error.unpack(), block, row, 0, worker)
        self._collate_all(completed, bound, worker)

    def _reopen(self, block: Block, row: int) -> None:
        # Not before the outcome is there: the late result could come in between.
        self._epoch.reopen(block, row)

    def _settle_one(
        self, block: Block, row: int, value: Any, costs: Sequence[float] = ()
    ) -> list[Batch]:
        with self._lock:
            self._reopen(block, row)
            completed = self._epoch.settle(block, row, [value])
        self._due.ring()
        return completed
