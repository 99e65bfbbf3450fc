"""What a worker process does with tickets and batches of a map-style dataset."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from minato_async.checkpoint import current
from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block
from minato_async.engine.lanes import Sample
from minato_async.engine.runner import Runner
from minato_async.errors import name_sample
from minato_async.executors.process.dataset_changes import Change, Path, apply
from minato_async.executors.process.messages import (
    CollateBatch,
    Collated,
    Diverted,
    Failed,
    Finished,
    HandleFailure,
    NotBegun,
    Ran,
    Rerun,
    ResumeSample,
    RunClaim,
    Slow,
)
from minato_async.executors.process.transport.failures import pack_error
from minato_async.executors.process.worker_main import WorkerContext
from minato_async.sample.autocast import Autocast
from minato_async.sample.map_recipe import Bound, MapRecipe
from minato_async.scheduling.cost_book import LEAST

#: Seconds after which finished samples are told of, though others of the claim are not finished.
_NEWS = 5e-3
#: Seconds in which any sample may be packed. What takes longer than that, and longer than it took
#: to make the sample, had better be made again where it is needed.
_CHEAP_TO_PACK = 2e-3


@dataclass(frozen=True)
class EpochPayload:
    """What changes from one epoch to the next."""

    seeds: Any
    grad: bool
    autocast: Autocast
    #: What was set anew in the dataset, as far as the worker does not know it.
    changes: dict[Path, Change]
    #: With which data pipes shuffle.
    pipe_seed: int | None = None


class SampleRunner:
    """Carries out requests for samples and batches, in the context of one worker."""

    def __init__(self, recipe: MapRecipe, worker_context: WorkerContext) -> None:
        # Packing a batch may fail as collating may.
        self._recipe = recipe.finished_by(worker_context.pack)
        self._worker_context = worker_context
        self._run: dict[type, Callable[[Any, Any], Sequence[Any]]] = {
            RunClaim: self._run_claim,
            ResumeSample: self._resume,
            CollateBatch: self._collate,
            HandleFailure: self._handle,
        }

    def begin_epoch(self, data: bytes) -> None:
        payload: EpochPayload = pickle.loads(data)
        self._recipe = self._recipe.for_epoch(payload.seeds, payload.grad, payload.autocast)
        apply(self._recipe.dataset, payload.changes)

    def run(self, request: Any) -> Sequence[Any]:
        bound = self._recipe.bind(self._worker_context)
        events: Sequence[Any] = bound.context.run(self._run[type(request)], request, bound)
        return events

    def _run_claim(self, request: RunClaim, bound: Bound) -> Sequence[Any]:
        notes = ClaimNotes(request, bound, self._worker_context)
        current.job = notes
        Runner(bound, self._worker_context.name, notes).run_tickets(notes)
        return notes.told()

    def _resume(self, request: ResumeSample, bound: Bound) -> Sequence[Any]:
        block = Block(request.position, (request.index,), 1, (request.repeat,))
        notes = Notes(block, request.row, bound, self._worker_context)
        runner = Runner(bound, self._worker_context.name, notes)
        self._worker_context.status.begin_row(request.row)
        try:
            value = request.value.copy(self._worker_context.memory)
        except BaseException as error:
            runner.handle(block, 0, error, request.step)
        else:
            sample = Sample(block, 0, value, request.step, request.cost, stream=request.stream)
            del value
            runner.resume(sample)
        return notes.told()

    def _collate(self, request: CollateBatch, bound: Bound) -> Sequence[Any]:
        notes = Notes(Block(0, (), 1), 0, bound, self._worker_context)
        if (batch := notes.unpacked(request)) is not None:
            Runner(bound, self._worker_context.name, notes).collate([batch])
        return notes.told()

    def _handle(self, request: HandleFailure, bound: Bound) -> Sequence[Any]:
        block = Block(0, (request.index,), 1)
        notes = Notes(block, request.row, bound, self._worker_context)
        Runner(bound, self._worker_context.name, notes).handle(block, 0, request.error.unpack())
        return notes.told()


class Notes:
    """What happens to the tickets of one request, for the parent to be told. They are the rows of
    `block`, which begins with row `start` of theirs."""

    expired = False

    def __init__(
        self, block: Block, start: int, bound: Bound, worker_context: WorkerContext
    ) -> None:
        self.block = block
        self._start = start
        self._bound = bound
        self._worker_context = worker_context
        self._status = worker_context.status
        self._events: list[Any] = []
        #: `perf_counter()` since when what runs is timed.
        self._began = 0.0
        #: The row and the number of the step that runs.
        self._step = -1, 0
        #: `perf_counter()` since when a batch is collated.
        self._collates_since = 0.0

    def told(self) -> Sequence[Any]:
        """What there is to tell."""
        events, self._events = self._events, []
        return events

    @property
    def abandoned(self) -> bool:
        return self._worker_context.abandoned

    def checkpoint(self) -> None:
        self._worker_context.checkpoint()

    def enter(self, sample: Sample) -> bool:
        self._step = sample.row, sample.step
        self._enter(sample.cost)
        return True

    def _enter(self, cost: float) -> None:
        self._began = perf_counter()
        self._status.enter(cost)

    def leave(self) -> float:
        row, step = self._step
        spent = self._leave()
        self._ran(row, 1, step, spent)
        return spent

    def _leave(self) -> float:
        self._status.leave()
        return perf_counter() - self._began

    def _ran(self, row: int, rows: int, step: int, spent: float) -> None:
        if self._worker_context.recorded:
            began = self._began
            self._events.append(Ran(self._start + row, rows, step, began, began + spent))

    def finished(self, sample: Sample) -> Sequence[Batch]:
        self._pack(sample.row, [sample.value], sample.costs, 1, math.inf)
        return ()

    def failed(self, block: Block, row: int, error: BaseException) -> Sequence[Batch]:
        self._events.append(Failed(self._start + row, pack_error(error)))
        return ()

    def replaced(self, block: Block, row: int, value: Any) -> Sequence[Batch]:
        try:
            packed = self._worker_context.pack(value)
        except BaseException as error:
            named = name_sample(error, block.indices[row], "on_error", self._worker_context.name)
            return self.failed(block, row, named)
        self._events.append(Finished(self._start + row, [packed], (), 0))
        return ()

    def pass_on(self) -> None:
        # It is passed on when all is done.
        self._collates_since = perf_counter()

    def collated(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        packed = None if failure is None else pack_error(failure)
        began, ended = self._collates_since, perf_counter()
        self._events.append(Collated(content, packed, began=began, ended=ended))

    def _pack(
        self,
        row: int,
        samples: Sequence[Any],
        costs: Sequence[float],
        tickets: int,
        budget: float,
        long: Sequence[tuple[int, float]] = (),
    ) -> None:
        """The samples from `row` on are finished; packing one takes no more than `budget`
        seconds."""
        began = perf_counter()
        packed = [self._packed(row + place, sample, budget) for place, sample in enumerate(samples)]
        spent = perf_counter() - began
        self._events.append(Finished(self._start + row, packed, costs, tickets, spent, long))

    def _packed(self, row: int, sample: Any, budget: float) -> Any:
        try:
            return self._worker_context.pack(sample, budget)
        except BaseException:  # it will be made again
            block = self.block
            repeat = block.repeats[row] if block.repeats else 0
            return Rerun(block.positions[row], block.indices[row], repeat)

    def unpacked(self, given: CollateBatch) -> Batch | None:
        """The batch of the `given` samples. None: it has failed by one of them."""
        batch = Batch(len(given.indices), 1, given.indices)
        try:
            batch.samples = self._unpacked(given)
        except BaseException as error:
            self.collated(batch, None, error)
            return None
        return batch

    def _unpacked(self, batch: CollateBatch) -> list[Any]:
        """The samples of `batch`. Raises what making one of them again raises."""
        samples = []
        # A collate function of the user's may keep samples, for the next batch, say.
        borrows = self._bound.recipe.collates_by_default
        memory = self._worker_context.memory
        for index, sample in zip(batch.indices, batch.samples, strict=True):
            if isinstance(sample, Rerun):
                samples.append(self._rerun(sample))
            elif sample is None:
                samples.append(None)
            else:
                try:
                    samples.append(sample.peek(memory) if borrows else sample.copy(memory))
                except BaseException as error:
                    step = "unpickling what another worker has made"
                    if (
                        named := name_sample(error, index, step, self._worker_context.name)
                    ) is error:
                        raise
                    raise named from error
        return samples

    def _rerun(self, sample: Rerun) -> Any:
        bound, recipe, index = self._bound, self._bound.recipe, sample.index
        bound.streams.begin(lambda _: recipe.seed(index, sample.repeat, sample.position))
        bound.streams.ticket = sample
        value = index
        for number, step in enumerate(bound.steps):
            try:
                value = step(value)
            except BaseException as error:
                named = name_sample(
                    error, index, recipe.step_name(number), self._worker_context.name
                )
                if callable(recipe.on_error):
                    return recipe.on_error(index, named)
                raise named from named.__cause__
        return value


class ClaimNotes(Notes):
    """What happens to the tickets of one claim. As long as its worker may make all of a batch,
    finished samples are kept for that; else they are told of from time to time."""

    def __init__(self, request: RunClaim, bound: Bound, worker_context: WorkerContext) -> None:
        block = Block(0, request.indices, 1, request.repeats, request.positions)
        super().__init__(block, request.start, bound, worker_context)
        self._request = request
        self._whole = request.whole
        #: Finished samples of the run.
        self._samples: list[Any] = []
        #: The ticket to begin next, and the one behind the last.
        self._next, self._stop = 0, len(request.indices)
        #: The first ticket of the run, of those that no event tells of.
        self._first = 0
        #: Finished samples that are in no event: the first one's row, the samples, and their costs,
        #: tickets and long rows as `Finished` has them.
        self._held: list[tuple[int, list[Any], Sequence[float], int, list[tuple[int, float]]]] = []
        #: `perf_counter()` when the running row of the run began, and those that took long.
        self._row_began = 0.0
        self._long: list[tuple[int, float]] = []
        self._told = perf_counter()
        #: A run ends when it has lasted until then.
        self._pause = math.inf
        #: The row that was told of as slow.
        self._slow = -1

    def told(self) -> Sequence[Any]:
        self._flush()
        return super().told()

    def _tell(self) -> None:
        """Samples are finished, and others will take their time."""
        self._worker_context.tell(self.told())
        self._told = perf_counter()

    def _flush(self) -> None:
        """Make events of the samples that are finished: others are to make the batch."""
        self._whole = False
        held, self._held = self._held, []
        for row, samples, costs, tickets, long in held:
            budget = max(_CHEAP_TO_PACK, sum(costs) / max(1, len(samples)))
            self._pack(row, samples, costs, tickets, budget, long)

    def left(self) -> bool:
        if self._next == self._stop or self.abandoned:
            return False
        if not self._whole and self._held and perf_counter() - self._told > _NEWS:
            self._tell()
        return True

    def take(self) -> int:
        row, now = self._next, perf_counter()
        if now - self._row_began > LEAST:
            self._took_long(row - 1, now - self._row_began)
        self._row_began = now
        if row == self._stop or (not self._whole and now > self._pause):
            raise IndexError
        if not self._status.begin_row(self._start + row):
            self._whole = False
            self._begin_no_more()
            raise IndexError
        self._next = row + 1
        return row

    # Tickets of a single step

    def _took_long(self, row: int, seconds: float) -> None:
        if row >= self._first:
            self._long.append((self._start + row, seconds))

    def begin_run(self) -> tuple[Callable[[], int], list[Any]]:
        self._first = self._next
        self._enter(0.0)
        self._row_began = self._began
        self._pause = self._began + _NEWS
        return self.take, self._samples

    def end_run(self, row: int, goes_on: bool) -> Sequence[Batch]:
        self._hold_run(self._next, self._leave())
        return self._completed() if goes_on else ()

    def _hold_run(self, row: int, seconds: float) -> None:
        """The tickets of the run up to `row`, which it does not include, took `seconds`."""
        # The same list again: the one who appends to it may be at a checkpoint.
        samples = self._samples[:]
        self._samples.clear()
        if row > self._first:
            self._ran(self._first, row - self._first, 0, seconds)
            long, self._long = self._long, []
            self._held.append((self._first, samples, (seconds,), row - self._first, long))
            self._first = row

    # Outcomes

    def finished(self, sample: Sample) -> Sequence[Batch]:
        self._held.append((sample.row, [sample.value], sample.costs, 1, []))
        return self._completed()

    def _completed(self) -> Sequence[Batch]:
        """The batch that this claim completes, when all of it is finished."""
        if not self._whole or self._next < self._stop:
            return ()
        # If the worker dies from here on, it is not over a sample.
        self._status.begin_row(self._start + self._stop)
        samples = [sample for _, some, _, _, _ in self._held for sample in some]
        if self._request.given is None:
            batch = Batch(len(samples), 1, self.block.indices)
            batch.samples = samples
            return [batch]
        rest = self.unpacked(self._request.given)
        if rest is None:
            return ()
        rest.samples[self._start : self._start + self._stop] = samples
        return [rest]

    def collated(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        super().collated(batch, content, failure)
        costs, tickets = [cost for _, _, cost, _, _ in self._held], self._held[0][3]
        long = [row for _, _, _, _, some in self._held for row in some]
        self._held.clear()
        told = {"costs": costs, "tickets": tickets, "long": long}
        self._events[-1] = self._events[-1]._replace(**told)

    def failed(self, block: Block, row: int, error: BaseException) -> Sequence[Batch]:
        self._flush()
        super().failed(block, row, error)
        if self._request.stops and self._next < self._stop:
            self._begin_no_more()
        return ()

    def replaced(self, block: Block, row: int, value: Any) -> Sequence[Batch]:
        self._flush()
        return super().replaced(block, row, value)

    def _begin_no_more(self) -> None:
        self._stop = self._next
        self._events.append(NotBegun(self._start + self._stop))

    # Slow samples

    def enter(self, sample: Sample) -> bool:
        return not self._diverted(sample) and super().enter(sample)

    def _diverted(self, sample: Sample) -> bool:
        """Whether it goes on elsewhere."""
        request, row = self._request, sample.row
        if not request.diverts or sample.cost <= request.threshold or row == self._slow:
            return False
        try:
            packed = self._worker_context.pack(sample.value)
        except BaseException:  # what cannot be pickled stays here
            return False
        self._flush()
        stream = self._bound.streams.detach()
        event = Diverted(self._start + row, packed, sample.step, sample.costs, stream)
        self._events.append(event)
        if self._next < self._stop:
            self._tell()
        return True

    def checkpoint(self) -> None:
        """In the middle of a step: end it if nobody waits for it. If it is slow, what is finished
        goes its way, and this sample is the last of the claim that is begun: so the parent is told,
        who gives to others what stands behind it."""
        super().checkpoint()
        request, status, row = self._request, self._status, self._next - 1
        if not request.diverts or row == self._slow or status.elapsed <= request.threshold:
            return
        self._slow = row
        status.stop()
        if len(self._bound.steps) == 1:
            now = status.began
            self._hold_run(row, now - self._began)
            self._began = now
        self._flush()
        self._events.append(Slow(self._start + row))
        self._tell()
