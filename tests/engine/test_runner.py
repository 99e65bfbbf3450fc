"""What runs steps, by itself: an executor of the test's is told what becomes of tickets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

import pytest

from minato_async.checkpoint import SampleCancelled
from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block
from minato_async.engine.lanes import Sample
from minato_async.engine.recipe import OnError, Streams
from minato_async.engine.runner import Runner
from minato_async.seeding.epoch_seeds import thread_streams

NAME = "worker-of-the-test"


def as_it_is(value: Any) -> Any:
    return value


class Recipe:
    """Seeds are told apart by key, repeat and position."""

    row_writer = None
    collates_by_default = False
    on_error: OnError = "raise"

    def step_name(self, step: int) -> str:
        return f"step {step}"

    def seed(self, key: Any, repeat: int, position: int) -> int:
        return hash((key, repeat, position)) % 2**64

    def bind(self, worker: Any) -> Any:
        raise AssertionError


@dataclass
class Bound:
    streams: Streams
    steps: Sequence[Callable[[Any], Any]]
    on_error: OnError = "raise"
    collate: Callable[[list[Any]], Any] = as_it_is
    finish: Callable[[Any], Any] = as_it_is
    recipe: Any = field(default_factory=Recipe)
    context: Context = field(default_factory=copy_context)


class Told:
    """Has the tickets of one block, of which each `batch` make a batch, and notes what it is told.
    It diverts `slow` rows."""

    def __init__(
        self, block: Block, batch: int = 0, slow: Sequence[int] = (), streams: Any = None
    ) -> None:
        self.block = block
        self.slow = slow
        self.streams = streams
        self.pending = list(range(len(block.indices) - 1, -1, -1))
        self.samples: list[Any] = []
        self.batch = batch
        self.ready: list[Any] = []
        self.events: list[Any] = []
        self.abandoned = self.expired = False

    def left(self) -> bool:
        return bool(self.pending) and not self.abandoned

    def take(self) -> int:
        return self.pending.pop()

    def begin_run(self) -> tuple[Callable[[], int], list[Any]]:
        # Two at a time: the rest of the claim comes in later runs.
        left = iter([self.pending.pop() for _ in range(min(2, len(self.pending)))])

        def take() -> int:
            row = next(left, None)
            if row is None:
                raise IndexError
            return row

        return take, self.samples

    def end_run(self, row: int, goes_on: bool) -> Sequence[Batch]:
        samples, self.samples = self.samples, []
        self.events.append(("run", row, list(samples), goes_on))
        return self._complete(samples)

    def _complete(self, samples: list[Any]) -> Sequence[Batch]:
        self.ready += samples
        if not self.batch or len(self.ready) < self.batch:
            return ()
        batch = Batch(len(self.ready), 1, tuple(range(len(self.ready))))
        batch.samples, self.ready = self.ready, []
        return [batch]

    def enter(self, sample: Sample) -> bool:
        if not sample.step or sample.row not in self.slow:
            return True
        sample.stream = self.streams.detach()
        self.events.append(("diverted", sample))
        return False

    def leave(self) -> float:
        return 1.0

    def finished(self, sample: Sample) -> Sequence[Batch]:
        self.events.append(("finished", sample.row, sample.value, list(sample.costs)))
        return self._complete([sample.value])

    def failed(self, block: Block, row: int, error: BaseException) -> Sequence[Batch]:
        self.events.append(("failed", row, error))
        return ()

    def replaced(self, block: Block, row: int, value: Any) -> Sequence[Batch]:
        self.events.append(("replaced", row, value))
        return ()

    def pass_on(self) -> None:
        self.events.append("pass on")

    def collated(self, batch: Batch, content: Any, failure: BaseException | None) -> None:
        self.events.append(("collated", content, failure))

    def checkpoint(self) -> None: ...


@pytest.fixture
def streams() -> Iterator[Streams]:
    with thread_streams(True) as found:
        yield found


def draw(index: Any) -> Any:
    return index, random.random()


def fails_at(*rows: int) -> Callable[[int], int]:
    def step(index: int) -> int:
        if index in rows:
            raise ValueError(index)
        return index

    return step


def own_draws(streams: Streams, count: int) -> list[Any]:
    """What `draw` gives for each index when nothing comes in between."""
    told = Told(Block(0, range(count), 1))
    Runner(Bound(streams, [as_it_is, draw]), NAME, told).run_tickets(told)
    return [event[2] for event in told.events]


def test_a_failed_ticket_ends_its_run_and_no_other(streams: Streams) -> None:
    told = Told(Block(0, range(5), 1))
    Runner(Bound(streams, [fails_at(2)]), NAME, told).run_tickets(told)
    first, second, failed, third = told.events
    assert first == ("run", 1, [0, 1], True)
    assert second == ("run", 2, [], False)
    assert failed[:2] == ("failed", 2)
    assert failed[2].__notes__ == [f"minato_async: sample index 2, step step 0, worker {NAME}"]
    # Row 3 was taken with row 2: it is its owner's.
    assert third == ("run", 4, [4], True)


@pytest.mark.parametrize("steps", [[draw], [as_it_is, draw]], ids=["one step", "two steps"])
def test_tickets_draw_their_own_numbers_after_a_batch_was_collated(
    streams: Streams, steps: list[Any]
) -> None:
    def collate(samples: list[Any]) -> Any:
        random.random()
        return samples

    told = Told(Block(0, range(6), 1), batch=2)
    Runner(Bound(streams, steps, collate=collate), NAME, told).run_tickets(told)
    batches = [event[1] for event in told.events if event[0] == "collated"]
    assert [sample for batch in batches for sample in batch] == own_draws(streams, 6)


def test_a_diverted_sample_goes_on_where_it_stopped(streams: Streams) -> None:
    bound = Bound(streams, [draw, lambda value: (*value, random.random())])
    block = Block(0, range(3), 1)
    undisturbed = Told(block)
    Runner(bound, NAME, undisturbed).run_tickets(undisturbed)
    told = Told(block, slow=[1], streams=streams)
    Runner(bound, NAME, told).run_tickets(told)
    ((_, sample),) = [event for event in told.events if event[0] == "diverted"]
    assert [event[1] for event in told.events if event[0] == "finished"] == [0, 2]
    assert (sample.step, sample.cost) == (1, 1.0)
    later = Told(block)
    Runner(bound, NAME, later).resume(sample)
    assert later.events == [undisturbed.events[1]]


def test_on_error_replaces_what_fails(streams: Streams) -> None:
    told = Told(Block(0, range(3), 1))
    bound = Bound(streams, [as_it_is, fails_at(1)], on_error=lambda index, error: -index)
    Runner(bound, NAME, told).run_tickets(told)
    assert [event[:3] for event in told.events] == [
        ("finished", 0, 0),
        ("replaced", 1, -1),
        ("finished", 2, 2),
    ]


def test_what_on_error_raises_is_the_failure(streams: Streams) -> None:
    def handler(index: int, error: BaseException) -> Any:
        raise StopIteration

    told = Told(Block(0, (7,), 1))
    Runner(Bound(streams, [fails_at(7)], on_error=handler), NAME, told).run_tickets(told)
    _, (_, row, error) = told.events
    assert row == 0
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, StopIteration)
    assert "step on_error" in error.__notes__[0]


def test_what_finishes_a_batch_may_fail_as_collating_may(streams: Streams) -> None:
    def finish(batch: Any) -> Any:
        raise ValueError("cannot be packed")

    told = Told(Block(0, range(2), 1), batch=2)
    Runner(Bound(streams, [as_it_is], finish=finish), NAME, told).run_tickets(told)
    (_, content, failure) = told.events[-1]
    assert content is None
    assert "collating samples with indices [0, 1]" in failure.__notes__[0]
    assert told.events[-2] == "pass on"


@pytest.mark.parametrize("field", ["expired", "abandoned"])
def test_a_sample_that_nobody_waits_for_is_told_of_no_more(streams: Streams, field: str) -> None:
    told = Told(Block(0, range(4), 1))

    def step(index: int) -> int:
        setattr(told, field, True)
        raise SampleCancelled

    with pytest.raises(SampleCancelled):
        Runner(Bound(streams, [step]), NAME, told).run_tickets(told)
    assert told.events == []


def test_a_sample_that_cancels_itself_has_failed(streams: Streams) -> None:
    def step(index: int) -> int:
        raise SampleCancelled

    told = Told(Block(0, (0,), 1))
    Runner(Bound(streams, [step]), NAME, told).run_tickets(told)
    assert isinstance(told.events[-1][2], SampleCancelled)
