"""Slow samples on worker processes: diverted, handed off, given up."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import minato_async
from tests.processes.support import (
    Countdown,
    Made,
    Turnstile,
    flat,
    once_each,
    pause,
    processes,
)
from tests.semantics.support import iterating, outcomes


def ran_in(value: Any) -> Any:
    """A step that notes in which process it ran."""
    index, where = value
    return index, [*where, os.getpid()]


def test_slow_sample_goes_on_with_what_it_has_become() -> None:
    """In whichever process; that it is another one, the tests of deaths show."""

    def first(index: int) -> Any:
        if index == 2:
            pause(0.05)
        return index, [os.getpid()]

    def collate(samples: list[Any]) -> Any:
        return samples

    loader = processes(
        Made(40, first),
        1,
        in_order=False,
        collate_fn=collate,
        transforms=[ran_in],
        timeout_threshold=0.02,
    )
    iterator = iter(loader)
    found = {}
    for ((index, where),) in iterator:
        found[index] = where
    assert found.keys() == set(range(40))
    assert all(len(where) == 2 for where in found.values())
    assert iterator.stats.diverted == 1
    assert iterator.stats.handed_off == 0


def test_diverted_sample_has_the_bytes_that_it_would_have_had() -> None:
    def sample(index: int) -> torch.Tensor:
        value = torch.rand(1000)
        if index % 5 == 0:
            pause(0.03)
        return value

    def more(value: torch.Tensor) -> torch.Tensor:
        return value + torch.rand(1000)

    def load(**options: Any) -> tuple[list[torch.Tensor], int]:
        iterator = iter(
            processes(Made(30, sample), 1, seed=5, in_order=False, transforms=[more], **options)
        )
        batches = sorted((batch[0] for batch in iterator), key=lambda row: float(row[0]))
        return batches, iterator.stats.diverted

    plain, none = load(timeout_threshold=1000.0, executor="thread")
    diverted, some = load(timeout_threshold=0.01)
    assert (none, some) == (0, 6)
    assert all(map(torch.equal, plain, diverted))


def test_sample_without_steps_in_between_holds_up_its_worker_alone() -> None:
    door = Turnstile()

    def sample(index: int) -> int:
        if index == 5:
            door.hold()
        return index

    loader = processes(Made(200, sample), 4, in_order=False, num_workers=2, max_queue_size=64)
    with iterating(loader) as iterator:
        # It gives back what it had claimed behind the one that holds it up; what was finished
        # before that one in the same claim waits with it.
        found = [next(iterator).tolist() for _ in range(30)]
        door.let_go()
        found += [batch.tolist() for batch in iterator]
    once_each((index for batch in found for index in batch), 200)


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_sample_timeout_kills_the_worker_and_fails_the_sample(on_error: str) -> None:
    def sample(index: int) -> int:
        if index == 3:
            pause(1000)
        return index

    def replace(index: int, error: BaseException) -> int:
        assert isinstance(error, TimeoutError)
        return 300 + index

    handler: Any = replace if on_error == "replace" else on_error
    loader = processes(Made(12, sample), 2, sample_timeout=0.3, on_error=handler)
    with iterating(loader) as iterator:
        found = outcomes(iterator)
    failures = [result for result in found if isinstance(result, Exception)]
    rest = flat(batch for batch in found if not isinstance(batch, Exception))
    if on_error == "raise":
        (failure,) = failures
        assert type(failure) is TimeoutError
        assert "sample index 3" in str(failure)
        assert rest == [0, 1, *range(4, 12)]
    elif on_error == "skip":
        assert not failures
        assert rest == [0, 1, 2, *range(4, 12)]
    else:
        assert not failures
        assert rest == [0, 1, 2, 303, *range(4, 12)]


def test_checkpoint_ends_a_sample_that_nobody_waits_for() -> None:
    door = Turnstile()

    def sample(index: int) -> int:
        if index == 1:
            door.come_in()
            try:
                while True:
                    pause(0.001)
                    minato_async.checkpoint()
            except BaseException:
                door.come_in()
                raise
        return index

    with iterating(processes(Made(4, sample))) as iterator:
        assert next(iterator).tolist() == [0]
        door.wait_for(1)
    door.wait_for(1)


def test_stuck_worker_is_replaced_where_there_may_be_more() -> None:
    door, others = Turnstile(), Countdown(0)

    def sample(index: int) -> int:
        if index == 0:
            door.hold()
        else:
            pause(0.002)
        others.add()
        return index

    loader = processes(
        Made(300, sample),
        1,
        in_order=False,
        num_workers=1,
        max_workers=3,
        scheduler="throughput",
        timeout_threshold=0.01,
        max_queue_size=300,
    )
    with iterating(loader) as iterator:
        found = [next(iterator).item() for _ in range(299)]
        assert iterator.stats.workers + iterator.stats.handed_off >= 2  # type: ignore[attr-defined]
        door.let_go()
        found.append(next(iterator).item())
    once_each(found, 300)


def test_every_row_before_the_slow_one_is_told_of_at_once_when_it_is_diverted() -> None:
    def first(index: int) -> int:
        if index == 6:
            pause(0.05)
        return index

    def second(index: int) -> int:
        return index

    loader = processes(
        Made(16, first), 1, in_order=False, transforms=[second], timeout_threshold=0.02
    )
    assert sorted(flat(loader)) == list(range(16))


def test_sample_timeout_is_each_samples_own() -> None:
    """Cheap samples are claimed together: what they cost together is no sample's cost."""

    def sample(index: int) -> int:
        pause(0.0005)
        return index

    loader = processes(Made(2000, sample), 1000, sample_timeout=0.2, num_workers=1)
    assert flat(loader) == list(range(2000))


def test_later_samples_of_a_claim_have_their_timeout_too() -> None:
    def sample(index: int) -> int:
        if index == 700:
            pause(1000)
        return index

    loader = processes(Made(1000, sample), 1000, sample_timeout=0.3, num_workers=1, on_error="skip")
    assert flat(loader) == [index for index in range(1000) if index != 700]
