"""What a worker process does with tickets and batches of a map-style dataset."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from minato_async.autocast import Autocast
from minato_async.changes import Change, Path, apply
from minato_async.checkpoint import SampleCancelled, current
from minato_async.dataset import Bound, MapRecipe
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
from minato_async.errors import name_batch, name_sample
from minato_async.process_worker import Desk
from minato_async.transport.failures import PackedError, pack_error
from minato_async.transport.packing import Packed

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
    """Runs orders for samples and batches, at the desk of one worker."""

    def __init__(self, recipe: MapRecipe, desk: Desk) -> None:
        self._recipe = recipe
        self.desk = desk
        self._memory = desk.memory
        self._status = desk.status
        self._run: dict[type, Callable[[Any, Any], Sequence[Any]]] = {
            RunClaim: self._run_claim,
            ResumeSample: self._resume,
            CollateBatch: self._collate_order,
            HandleFailure: self._handle,
        }

    def begin_epoch(self, data: bytes) -> None:
        payload: EpochPayload = pickle.loads(data)
        self._recipe = self._recipe.for_epoch(payload.seeds, payload.grad, payload.autocast)
        apply(self._recipe.dataset, payload.changes)

    def run(self, order: Any) -> Sequence[Any]:
        bound = self._recipe.bind(self.desk)
        events: Sequence[Any] = bound.context.run(self._run[type(order)], bound, order)
        return events

    # Orders

    def _run_claim(self, bound: Bound, order: RunClaim) -> Sequence[Any]:
        claim = _Claim(order, bound, self)
        claim.run()
        return claim.events

    def _resume(self, bound: Bound, order: ResumeSample) -> Sequence[Any]:
        recipe, row = bound.recipe, order.row
        bound.streams.begin(lambda _: recipe.seed(order.index, order.repeat, order.position))
        bound.streams.ticket = row
        bound.streams.attach(order.stream)
        self._status.begin_row(row)
        step = order.step
        costs: list[float] = []
        try:
            value = order.value.copy(self._memory)
            while step < len(bound.steps):
                value, spent = self.step(bound.steps[step], value, order.cost + sum(costs))
                costs.append(spent)
                step += 1
        except BaseException as error:
            return self.failed(bound, row, order.index, step, error)
        began = perf_counter()
        try:
            packed: Any = self.desk.pack(value)
        except BaseException:
            packed = Rerun(order.position, order.index, order.repeat)
        return [Finished(row, [packed], costs, 1, perf_counter() - began)]

    def step(self, function: Callable[[Any], Any], value: Any, cost: float) -> tuple[Any, float]:
        """What `function` makes of `value`, and the seconds it took."""
        began = perf_counter()
        self._status.enter(cost)
        try:
            value = function(value)
        finally:
            self._status.leave()
        return value, perf_counter() - began

    def _collate_order(self, bound: Bound, order: CollateBatch) -> Sequence[Any]:
        try:
            samples = self.unpacked(bound, order)
        except BaseException as error:
            return [Collated(None, pack_error(error))]
        return [Collated(*self.collate(bound, list(order.indices), samples))]

    def unpacked(self, bound: Bound, batch: CollateBatch) -> list[Any]:
        """The samples of `batch`. Raises what making one of them again raises."""
        samples = []
        # A collate function of the user's may keep samples, for the next batch, say.
        borrows = bound.recipe.collates_by_default
        memory = self._memory
        for index, sample in zip(batch.indices, batch.samples, strict=True):
            if isinstance(sample, Rerun):
                samples.append(self._rerun(bound, sample))
            elif sample is None:
                samples.append(None)
            else:
                try:
                    samples.append(sample.peek(memory) if borrows else sample.copy(memory))
                except BaseException as error:
                    step = "unpickling what another worker has made"
                    if (named := name_sample(error, index, step, self.desk.name)) is error:
                        raise
                    raise named from error
        return samples

    def _rerun(self, bound: Bound, sample: Rerun) -> Any:
        recipe, index = bound.recipe, sample.index
        bound.streams.begin(lambda _: recipe.seed(index, sample.repeat, sample.position))
        bound.streams.ticket = sample
        value = index
        for number, step in enumerate(bound.steps):
            try:
                value = step(value)
            except BaseException as error:
                named = name_sample(error, index, recipe.step_name(number), self.desk.name)
                if callable(recipe.on_error):
                    return recipe.on_error(index, named)
                raise named from named.__cause__
        return value

    def _handle(self, bound: Bound, order: HandleFailure) -> Sequence[Any]:
        return self.failed(bound, order.row, order.index, 0, order.error.unpack())

    # Outcomes

    def failed(
        self, bound: Bound, row: int, index: Any, step: int, error: BaseException
    ) -> Sequence[Any]:
        """What becomes of a sample that `error` was raised in."""
        if isinstance(error, SampleCancelled) and self.desk.abandoned:
            raise error
        error = name_sample(error, index, bound.recipe.step_name(step), self.desk.name)
        handler = bound.recipe.on_error
        if callable(handler):
            try:
                return [Finished(row, [self.desk.pack(handler(index, error))], (), 0)]
            except BaseException as raised:
                error = name_sample(raised, index, "on_error", self.desk.name)
        return [Failed(row, pack_error(error))]

    def collate(
        self, bound: Bound, indices: list[Any], samples: list[Any]
    ) -> tuple[Packed | None, PackedError | None]:
        """The batch, or the failure to make it."""
        recipe, job = bound.recipe, current.job
        # Torch's own functions draw nothing, and a digest of all indices takes its time.
        draws = not recipe.collates_by_default
        bound.streams.begin(lambda _: recipe.seed(tuple(indices), 0, 0), draws)
        bound.streams.ticket = samples
        current.job = None
        try:
            return self.desk.pack(bound.collate(samples)), None
        except BaseException as error:
            if isinstance(error, SampleCancelled) and self.desk.abandoned:
                raise
            return None, pack_error(name_batch(error, indices, samples, self.desk.name))
        finally:
            current.job = job


class _Claim:
    """One claim on its way through the worker."""

    def __init__(self, order: RunClaim, bound: Bound, worker: SampleRunner) -> None:
        self._order = order
        self._bound = bound
        self._worker = worker
        self._status = worker._status
        self.events: list[Any] = []
        #: Finished samples that are not in `events` yet, in order, and the row of the first.
        self._samples: list[Any] = []
        self._first = order.start
        #: Costs of these, as `Finished` has them.
        self._costs: list[Sequence[float]] = []
        self._tickets = 1
        #: `perf_counter()` since when the samples of a single step are timed.
        self._began = self._told = perf_counter()
        #: The row that was told of as slow.
        self._slow = -1

    def run(self) -> None:
        order, bound = self._order, self._bound
        recipe, start = bound.recipe, order.start

        def seed(row: int) -> int:
            place = row - start
            repeat = order.repeats[place] if order.repeats else 0
            return recipe.seed(order.indices[place], repeat, order.position + place)

        bound.streams.begin(seed)
        if order.diverts:
            current.job = self
        row, stop = start, start + len(order.indices)
        run = self._run_tickets if len(bound.steps) == 1 else self._run_ticket
        while row < stop and not self._worker.desk.abandoned:
            row = run(row, stop)
        if order.whole and len(self._samples) == len(order.indices) and not self.events:
            content, failure = self._collate()
            self.events.append(WholeBatch(content, failure, self._costs, self._tickets))
        else:
            self._flush()

    def _collate(self) -> tuple[Packed | None, PackedError | None]:
        """The batch that this claim completes."""
        order = self._order
        # If the worker dies from here on, it is not over a sample.
        self._status.begin_row(order.start + len(order.indices))
        if order.given is None:
            return self._worker.collate(self._bound, list(order.indices), self._samples)
        try:
            samples = self._worker.unpacked(self._bound, order.given)
        except BaseException as error:
            return None, pack_error(error)
        samples[order.start : order.start + len(order.indices)] = self._samples
        return self._worker.collate(self._bound, list(order.given.indices), samples)

    def _flush(self) -> None:
        """Make events of the samples that are finished."""
        samples: list[Any] = self._samples[:]
        # The same list: the one who appends to it may be at a checkpoint.
        self._samples.clear()
        row, costs, tickets = self._first, self._costs, self._tickets
        self._costs = []
        if len(self._bound.steps) == 1:
            samples = [samples] if costs else []  # timed together
        else:
            samples = [[sample] for sample in samples]
        for some, cost in zip(samples, costs, strict=True):
            began = perf_counter()
            budget = max(_CHEAP_TO_PACK, sum(cost) / max(1, len(some)))
            packed = [
                self._packed(row + place, sample, budget) for place, sample in enumerate(some)
            ]
            self.events.append(Finished(row, packed, cost, tickets, perf_counter() - began))
            row += len(packed)
        self._first = row

    def _packed(self, row: int, sample: Any, budget: float) -> Any:
        """`sample`, packed, unless it costs more than `budget` seconds: then it will be made
        again."""
        try:
            return self._worker.desk.pack(sample, budget)
        except BaseException:
            place, order = row - self._order.start, self._order
            repeat = order.repeats[place] if order.repeats else 0
            return Rerun(order.position + place, order.indices[place], repeat)

    def _failed(self, row: int, step: int, error: BaseException) -> None:
        index = self._order.indices[row - self._order.start]
        self.events += self._worker.failed(self._bound, row, index, step, error)

    def _next_after_failed(self, row: int, stop: int) -> int:
        """The row to go on with when that of `row` has failed."""
        if not (self._order.stops and isinstance(self.events[-1], Failed)):
            return row + 1
        if row + 1 < stop:
            self.events.append(NotBegun(row + 1))
        return stop

    def checkpoint(self) -> None:
        """In the middle of a step: end it if nobody waits for it. If it is slow, what is finished
        goes its way, and this sample is the last of the claim that is begun: so the parent is told,
        who gives to others what stands behind it."""
        self._worker.desk.checkpoint()
        row = self._first + len(self._samples)
        if row == self._slow or self._status.elapsed <= self._order.threshold:
            return
        self._slow = row
        # The parent gives to others what stands behind it.
        self._status.stop()
        if len(self._bound.steps) == 1:
            self._time(self._status.began, row - self._first)
        self._flush()
        self.events.append(Slow(row))
        self._tell()

    def _time(self, now: float, tickets: int) -> None:
        """The tickets of a single step that have run since it was last asked took until `now`."""
        self._costs = [(now - self._began,)] if tickets else []
        self._began, self._tickets = now, tickets

    def _run_tickets(self, row: int, stop: int) -> int:
        """Run tickets of a single step up to the end, or to the first that fails; returns the row
        to go on with. Timed as a whole: what is done here for each is what a trivial one costs."""
        order, streams, status = self._order, self._bound.streams, self._status
        fetch, append, begin = self._bound.steps[0], self._samples.append, status.begin_row
        indices, start = order.indices, order.start
        failure: BaseException | None = None
        ended = False
        self._first = row
        self._began = began = perf_counter()
        status.enter()
        try:
            while row < stop:
                if not begin(row):
                    ended = True
                    break
                streams.ticket = row
                append(fetch(indices[row - start]))
                row += 1
                if not order.whole and perf_counter() - began > _NEWS:
                    break
        except BaseException as error:
            failure = error
        status.leave()
        self._time(perf_counter(), row - self._first + (failure is not None))
        if failure is not None:
            self._flush()
            self._failed(row, 0, failure)
            return self._next_after_failed(row, stop)
        if ended:
            self._flush()
            self.events.append(NotBegun(row))
            return stop
        if row < stop:
            self._tell()
        return row

    def _tell(self) -> None:
        """Samples are finished, and others will take their time."""
        self._flush()
        self._worker.desk.tell(self.events)
        self.events, self._told = [], perf_counter()

    def _run_ticket(self, row: int, stop: int) -> int:
        """Run one ticket of several steps; returns the row to go on with."""
        order, bound, worker = self._order, self._bound, self._worker
        if not self._status.begin_row(row):
            self._flush()
            self.events.append(NotBegun(row))
            return stop
        bound.streams.ticket = row
        index = order.indices[row - order.start]
        value, step, costs, cost = index, 0, [], 0.0
        steps = bound.steps
        try:
            while True:
                value, spent = worker.step(steps[step], value, cost)
                costs.append(spent)
                cost += spent
                step += 1
                if step == len(steps):
                    break
                if order.diverts and cost > order.threshold and row != self._slow:
                    try:
                        packed = worker.desk.pack(value)
                    except BaseException:  # what cannot be pickled stays here
                        continue
                    self._flush()
                    stream = bound.streams.detach()
                    self.events.append(Diverted(row, packed, step, costs, stream))
                    self._first = row + 1
                    if row + 1 < stop:
                        self._tell()
                    return row + 1
        except BaseException as error:
            self._flush()
            self._failed(row, step, error)
            self._first = row + 1
            return self._next_after_failed(row, stop)
        self._samples.append(value)
        self._costs.append(costs)
        if not order.whole and row + 1 < stop and perf_counter() - self._told > _NEWS:
            self._tell()
        return row + 1
