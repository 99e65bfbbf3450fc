"""What runs steps, on a worker of whatever executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from minato_async.checkpoint import Interruptible, SampleCancelled, current
from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block
from minato_async.engine.lanes import Sample
from minato_async.engine.recipe import BoundRecipe
from minato_async.errors import name_batch, name_sample


class Events(Interruptible, Protocol):
    """Where a runner tells what becomes of tickets. On threads this is their job, and the engine's
    state has changed when a call returns; in a worker process it makes notes of the calls, which
    are sent to the job.

    Where batches are returned, these calls have completed them, for the runner to collate.
    """

    @property
    def abandoned(self) -> bool:
        """Nobody waits for the epoch any more."""

    @property
    def expired(self) -> bool:
        """Nobody waits for the running sample any more."""

    def enter(self, sample: Sample) -> bool:
        """A step of `sample` begins. False: the sample is slow, and goes on elsewhere."""

    def leave(self) -> float:
        """The step is over; returns the seconds that it took."""

    def finished(self, sample: Sample) -> Sequence[Batch]:
        """All steps of `sample` have run."""

    def failed(self, block: Block, row: int, error: BaseException) -> Sequence[Batch]:
        """There is no sample."""

    def replaced(self, block: Block, row: int, value: Any) -> Sequence[Batch]:
        """The user's `on_error` gives `value` in its place."""

    def pass_on(self) -> None:
        """Something that may take long comes next."""

    def collated(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        """`batch` is made, or cannot be."""


class Tickets(Events, Protocol):
    """As `Events`, with the tickets that a worker has claimed: rows of a block."""

    block: Block

    def left(self) -> bool:
        """Whether there are tickets to be run. There may be, and `block` another one then, when
        there were none before."""

    def take(self) -> int:
        """The row to begin now. Raises IndexError: for the moment, there is none."""

    def begin_run(self) -> tuple[Callable[[], int], list[Any]] | None:
        """Tickets of a single step begin, one after the other, which are timed together: returns
        what takes them, and the list for finished samples. None: there are none after all."""

    def end_run(self, row: int, goes_on: bool) -> Sequence[Batch]:
        """They have run, up to `row`. `goes_on`: they are finished, and none has failed."""


class Runner:
    """Runs tickets and makes batches in the thread of one worker."""

    def __init__(self, bound: BoundRecipe, worker: str, events: Events) -> None:
        self._recipe = bound.recipe
        self._bound = bound
        self._steps = bound.steps
        self._streams = bound.streams
        self._worker = worker
        self._events = events

    def run_tickets(self, tickets: Tickets) -> None:
        """Run all that there are. They are the runner's `events`, too."""
        run = self._run_in_one if len(self._steps) == 1 else self._run_one
        seeded: Block | None = None
        while tickets.left():
            block = tickets.block
            if seeded is not block:
                self._streams.begin(self._seed_of(block))
            # A batch that was collated has begun random state of its own.
            seeded = None if self.collate(run(tickets, block)) else block

    def resume(self, sample: Sample) -> None:
        """Run what is left of a slow sample."""
        self._streams.begin(self._seed_of(sample.block))
        self._streams.ticket = sample.row
        self._streams.attach(sample.stream)
        self.collate(self._run_sample(sample))

    def handle(self, block: Block, row: int, error: BaseException, step: int = 0) -> None:
        """Do what is to be done about a sample that has failed in `step` elsewhere."""
        self.collate(self._failed_in(error, block, row, step))

    # Steps

    def _run_in_one(self, tickets: Tickets, block: Block) -> Sequence[Batch]:
        """Run tickets of a single step up to the end, or the first that fails. This loop is what
        a trivial sample costs: so it is timed as a whole, and the samples settled in one go."""
        begun = tickets.begin_run()
        if begun is None:
            return ()
        take, append = begun[0], begun[1].append
        indices, streams, fetch = block.indices, self._streams, self._steps[0]
        failure: BaseException | None = None
        row = -1
        try:
            while True:
                try:
                    row = take()
                except IndexError:
                    break
                streams.ticket = row
                append(fetch(indices[row]))
        except BaseException as error:
            failure = error
        if failure is None:
            return tickets.end_run(row, True)
        try:
            failure = self._named(failure, block, row, 0)
            completed = tickets.end_run(row, False)
            return [*completed, *self._fail(failure, block, row)]
        finally:
            # Its traceback refers to this frame.
            del failure

    def _run_one(self, tickets: Tickets, block: Block) -> Sequence[Batch]:
        """Run one ticket of several steps, or as many of them as it takes to find that it is
        slow."""
        try:
            row = tickets.take()
        except IndexError:  # taken over
            return ()
        self._streams.ticket = row
        return self._run_sample(Sample(block, row, block.indices[row]))

    def _run_sample(self, sample: Sample) -> Sequence[Batch]:
        events, steps = self._events, self._steps
        try:
            while sample.step < len(steps):
                if not events.enter(sample):
                    return ()
                try:
                    sample.value = steps[sample.step](sample.value)
                finally:
                    spent = events.leave()
                sample.cost += spent
                sample.costs.append(spent)
                sample.step += 1
        except BaseException as error:
            return self._failed_in(error, sample.block, sample.row, sample.step)
        return events.finished(sample)

    def _seed_of(self, block: Block) -> Callable[[int], int]:
        def seed(row: int) -> int:
            repeat = block.repeats[row] if block.repeats else 0
            return self._recipe.seed(block.indices[row], repeat, block.positions[row])

        return seed

    # Failures

    def _failed_in(
        self, error: BaseException, block: Block, row: int, step: int
    ) -> Sequence[Batch]:
        return self._fail(self._named(error, block, row, step), block, row)

    def _named(self, error: BaseException, block: Block, row: int, step: int) -> BaseException:
        events = self._events
        if events.expired or (isinstance(error, SampleCancelled) and events.abandoned):
            raise SampleCancelled
        return name_sample(error, block.indices[row], self._recipe.step_name(step), self._worker)

    def _fail(self, error: BaseException, block: Block, row: int) -> Sequence[Batch]:
        """Do with a failed sample what the user asked for: raise, skip, or replace it."""
        handler = self._bound.on_error
        try:
            if callable(handler):
                try:
                    replacement = handler(block.indices[row], error)
                except BaseException as raised:
                    # A `StopIteration`, too, must not end the epoch.
                    error = name_sample(raised, block.indices[row], "on_error", self._worker)
                else:
                    return self._events.replaced(block, row, replacement)
            return self._events.failed(block, row, error)
        finally:
            # Its traceback may refer to this frame.
            del error

    # Batches

    def collate(self, completed: Sequence[Batch]) -> bool:
        """Collate what there is; returns whether there was anything."""
        for batch in completed:
            self._events.pass_on()
            self._collate(batch)
        return bool(completed)

    def _collate(self, batch: Batch) -> None:
        content: Any = None
        failure: BaseException | None = None
        recipe, bound, job = self._recipe, self._bound, current.job
        # Torch's own functions draw nothing, and a digest of all indices takes its time.
        draws = not recipe.collates_by_default
        self._streams.begin(lambda _: recipe.seed(tuple(batch.indices), 0, 0), draws)
        self._streams.ticket = batch
        current.job = None
        if batch.skipped_rows:
            batch.drop_skipped_rows()
        try:
            collate = bound.collate if batch.rows is None else batch.rows.collate
            if not batch.void:
                content = bound.finish(collate(batch.samples))
        except BaseException as error:
            if isinstance(error, SampleCancelled) and self._events.abandoned:
                raise
            failure = name_batch(error, batch.indices, batch.samples, self._worker)
        finally:
            current.job = job
        # Here and not under the lock: freeing takes time, and a finalizer is user code.
        batch.samples, batch.rows = [], None
        self._events.collated(batch, content, failure)
        # Its traceback refers to this frame.
        del failure
