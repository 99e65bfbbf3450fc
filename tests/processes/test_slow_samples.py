"""Slow samples on worker processes: diverted, handed off, given up."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import minato_async
from minato_async import Stats
from minato_async.executors.process.jobs import RemoteClaimJob
from minato_async.executors.process.messages import Slow
from minato_async.scheduling.claim_size import ClaimSize
from tests.lifetime.support import eventually
from tests.processes.support import (
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
    """In whichever process."""

    def first(index: int) -> Any:
        if index == 2:
            pause(0.15)
        return index, [os.getpid()]

    def collate(samples: list[Any]) -> Any:
        return samples

    loader = processes(
        Made(40, first),
        1,
        in_order=False,
        collate_fn=collate,
        transforms=[ran_in],
        timeout_threshold=0.1,
    )
    iterator = iter(loader)
    found = {}
    for ((index, where),) in iterator:
        found[index] = where
    assert found.keys() == set(range(40))
    assert all(len(where) == 2 for where in found.values())
    assert iterator.stats.diverted >= 1  # a busy machine makes others slow too


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
    assert none == 0
    assert some >= 6
    assert all(map(torch.equal, plain, diverted))


class Log:
    """Lines that any process appends to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, *words: object) -> None:
        with self._path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self) -> list[tuple[str, ...]]:
        return [tuple(line.split()) for line in self._path.read_text().splitlines()]


def test_another_process_goes_on_where_the_first_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClaimSize, "next", lambda self: 8)
    log, slow, resumed = Log(tmp_path / "log"), 3, Turnstile()

    def first(index: int) -> torch.Tensor:
        log.note(index, "first", os.getpid())
        if index == slow:
            pause(0.05)
        if index == slow + 1:
            # It stands behind the slow one in its claim: so that worker stays here until another
            # has taken up the slow one.
            resumed.wait_for(1)
        return torch.cat([torch.tensor([float(index)]), torch.rand(3)])

    def second(value: torch.Tensor) -> torch.Tensor:
        index = int(value[0])
        log.note(index, "second", os.getpid())
        if index == slow:
            resumed.come_in()
        return torch.cat([value, torch.rand(3)])

    def load(**options: Any) -> list[list[float]]:
        loader = processes(Made(16, first), 8, seed=5, transforms=[second], **options)
        return sorted(row.tolist() for batch in loader for row in batch)

    found = load(in_order=False, timeout_threshold=0.02)
    lines = log.lines()
    assert len({line[:2] for line in lines}) == len(lines) == 2 * 16
    pids = {step: pid for index, step, pid in lines if index == str(slow)}
    assert pids["first"] != pids["second"]
    assert found == load(num_workers=0, executor="thread"), "its random stream has not gone with it"


def comes_around(
    door: Turnstile, loader: Any, batches: int, then: Callable[[Stats], bool] = lambda stats: True
) -> None:
    """So many batches come while samples are held at `door`, and then it comes to what `then` says;
    when they are let go the rest comes, and each sample has come once."""
    with iterating(loader) as iterator:
        found = flat(islice(iterator, batches))
        assert eventually(lambda: then(iterator.stats))  # type: ignore[attr-defined]
        door.let_go()
        found += flat(iterator)
    once_each(found, len(loader.dataset))


def test_slow_sample_at_a_checkpoint_holds_up_nobody_else() -> None:
    """Its worker stays with it. What it had finished before, and what stands behind it in its
    claim, is delivered all the same, though no other worker may be started. Here there are two of
    them: but for this, each would keep a batch's worth."""
    door = Turnstile()

    def sample(index: int) -> int:
        if index in (20, 36):
            pause(0.03)
            minato_async.checkpoint()
            door.hold()
        return index

    loader = processes(
        Made(64, sample),
        8,
        in_order=False,
        num_workers=3,
        scheduler="fixed",
        timeout_threshold=0.01,
        max_queue_size=64,
    )
    comes_around(door, loader, 7, lambda stats: stats.slow_active == 2)


@pytest.mark.parametrize("steps", [1, 2])
def test_sample_that_is_slow_at_many_checkpoints_is_told_of_once(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each sample has its own cost: cheap ones in one claim are not slow together."""
    told: list[int] = []
    happened = RemoteClaimJob._happened

    def noting(self: RemoteClaimJob, event: Any) -> None:
        if isinstance(event, Slow):
            told.append(self.block.indices[event.row])
        happened(self, event)

    monkeypatch.setattr(RemoteClaimJob, "_happened", noting)

    def sample(index: int) -> int:
        if index % 100 == 7:
            pause(0.15)
        for _ in range(3):
            minato_async.checkpoint()
        return index

    transforms = [abs] * (steps - 1)
    options = {"in_order": False, "timeout_threshold": 0.1, "transforms": transforms}
    once_each(flat(processes(Made(200, sample), 10, **options)), 200)
    assert sorted(told) == [7, 107]
    once_each(flat(processes(Made(200, sample), 10, **options | {"in_order": True})), 200)
    assert len(told) == 2, "in order, others must not go first"


def test_sample_without_steps_in_between_holds_up_its_worker_alone() -> None:
    door = Turnstile()

    def sample(index: int) -> int:
        if index == 5:
            door.hold()
        return index

    loader = processes(Made(200, sample), 4, in_order=False, num_workers=2, max_queue_size=64)
    # It gives back what it had claimed behind the one that holds it up; what was finished before
    # that one in the same claim waits with it.
    comes_around(door, loader, 30)


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
    loader = processes(Made(12, sample), 2, sample_timeout=0.5, on_error=handler)
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
            except Exception:
                pass  # as code that thinks it knows better: this must not catch it
            finally:
                pause(0.1)  # what is left to do takes a moment
                door.come_in()
        return index

    with iterating(processes(Made(4, sample))) as iterator:
        assert next(iterator).tolist() == [0]
        door.wait_for(1)
    door.wait_for(1)


def test_stuck_worker_is_replaced_where_there_may_be_more() -> None:
    door = Turnstile()

    def sample(index: int) -> int:
        if index == 0:
            door.hold()
        else:
            pause(0.002)
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
    comes_around(door, loader, 299, lambda stats: stats.workers + stats.handed_off >= 2)


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

    loader = processes(Made(2000, sample), 1000, sample_timeout=0.5, num_workers=1)
    assert flat(loader) == list(range(2000))


def test_later_samples_of_a_claim_have_their_timeout_too() -> None:
    def sample(index: int) -> int:
        if index == 700:
            pause(1000)
        return index

    loader = processes(Made(1000, sample), 1000, sample_timeout=0.5, num_workers=1, on_error="skip")
    assert flat(loader) == [index for index in range(1000) if index != 700]
