"""The state of an epoch over shards, driven by hand: no threads, every interleaving."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato_async.engine.batch import Batch
from minato_async.engine.bell import DueBells
from minato_async.engine.loading import Sync
from minato_async.engine.slots import Slots
from minato_async.engine.stage import Stage
from minato_async.sample.autocast import Autocast
from minato_async.shards.epoch import (
    Shard,
    ShardBatch,
    ShardedEpoch,
    ShardEpochPlan,
    ShardPass,
    ShardRecipe,
)

from .datasets import in_turn, name


def nothing(count: int) -> None:
    pass


def epoch_over(
    shards: int,
    batch_size: int | None,
    in_order: bool,
    ahead: int | None,
    window: int | None,
    wake: Callable[[int], None] = nothing,
) -> ShardedEpoch:
    autocast = Autocast.of_this_thread()
    recipe = ShardRecipe("step", batch_size, False, None, list, copy_context(), True, autocast)
    sync = Sync(threading.Lock(), DueBells(), wake, lambda _: None, Slots(100, 100), lambda: None)
    made = [Shard(s, None, None) for s in range(shards)]
    return ShardedEpoch(ShardEpochPlan(made, recipe, in_order, ahead, window), sync)


class Hand:
    """Does what workers and the consumer do, one step at a time."""

    def __init__(self, epoch: ShardedEpoch, sizes: Sequence[int], batch_size: int | None) -> None:
        self.epoch = epoch
        self.left = [
            [name(shard, ordinal) for ordinal in range(size)] for shard, size in enumerate(sizes)
        ]
        self.size = batch_size or 1
        self.reading: list[ShardPass] = []
        self.collating: list[ShardBatch] = []
        self.delivered: list[list[int]] = []
        self.undelivered = 0
        #: What the stage's thread is working on.
        self.staging: Batch | None = None

    def claim(self) -> bool:
        source = self.epoch.claim()
        if source is None:
            return False
        assert source not in self.reading, "two workers inside one shard"
        self.reading.append(source)
        self.undelivered += self.size
        return True

    def read(self, which: int) -> None:
        source = self.reading.pop(which)
        left = self.left[source.shard.number]
        samples, left[:] = left[: self.size], left[self.size :]
        self.undelivered -= self.size - len(samples)
        batch = ShardBatch(source, 0, samples) if samples else None
        self.epoch.read(source, batch, ended=len(samples) < self.size)
        if batch is not None:
            self.collating.append(batch)

    def collate(self, which: int) -> None:
        batch = self.collating.pop(which)
        self.epoch.collated(batch, batch.samples, None)

    def work(self) -> bool:
        """What the stage's thread does: begin with a batch, or come to the end of one."""
        stage, batch = self.epoch.stage, self.staging
        assert stage is not None
        if batch is None:
            self.staging = stage.next(self.epoch.ahead_of)
            return self.staging is not None
        self.staging = None
        stage.done(batch, 8)
        self.epoch.staged(batch, stage.work(batch, batch.take_content()), None)
        return True

    def pop(self) -> bool:
        batch = self.epoch.pop()
        if batch is None:
            return False
        self.undelivered -= batch.held
        self.delivered.append(batch.take_content())
        return True


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    batch_size=st.one_of(st.none(), st.integers(1, 3)),
    in_order=st.booleans(),
    bound=st.one_of(
        st.tuples(st.integers(1, 3), st.none()), st.tuples(st.none(), st.integers(1, 8))
    ),
    seed=st.integers(0, 2**32),
    stage=st.sampled_from([0, 0, None, 1, 2, 3]),
)
def test_every_interleaving(
    sizes: list[int],
    batch_size: int | None,
    in_order: bool,
    bound: tuple[int | None, int | None],
    seed: int,
    stage: int | None,
) -> None:
    """`stage`: batches that the stage may have done, 0: there is none."""
    choices = random.Random(seed)
    ahead, window = bound
    epoch = epoch_over(len(sizes), batch_size, in_order, ahead, window)
    hand = Hand(epoch, sizes, batch_size)
    if stage != 0:
        epoch.stage = Stage(lambda batch, content: [*content], stage, lambda: None)
    while not epoch.finished:
        steps: list[Any] = [hand.claim, hand.pop]
        if hand.reading:
            steps.append(lambda: hand.read(choices.randrange(len(hand.reading))))
        if hand.collating:
            steps.append(lambda: hand.collate(choices.randrange(len(hand.collating))))
        if epoch.stage is not None:
            steps += [hand.work] * 2
            # The batch that is due comes in beyond the bound.
            assert stage is None or epoch.stage.begun <= stage + 1
            if not (hand.reading or hand.collating) and hand.work():
                continue
        if not (hand.reading or hand.collating) and not hand.claim():
            # Nothing is being done and nothing more can be: what is due must be there.
            assert hand.pop(), "deadlock"
            continue
        choices.choice(steps)()
        if window is not None:
            assert hand.undelivered <= max(window, hand.size)
        if ahead is not None:
            assert all(source.ahead <= ahead for source in epoch._passes)
    expected = in_turn(sizes, batch_size)
    if batch_size is None:
        expected = [[sample] for sample in expected]
    assert (hand.delivered if in_order else sorted(hand.delivered)) == (
        expected if in_order else sorted(expected)
    )


@pytest.mark.parametrize("in_order", [True, False])
def test_reads_no_further_ahead_than_told(in_order: bool) -> None:
    hand = Hand(epoch_over(3, 4, in_order, 2, None), [100] * 3, 4)
    while hand.claim():
        hand.read(0)
    assert [len(left) for left in hand.left] == [92, 92, 92]
    while hand.collating:
        hand.collate(0)
    assert hand.pop()
    assert hand.epoch.jobs_waiting == 1
    assert hand.claim()
    assert not hand.claim()
    assert hand.reading[0].shard.number == 0


def test_a_large_window_lets_one_shard_run_ahead_of_a_slow_one() -> None:
    hand = Hand(epoch_over(2, 2, True, None, 10), [100] * 2, 2)
    assert hand.claim()
    while hand.claim():
        hand.read(1)
    assert [len(left) for left in hand.left] == [100, 92]
    hand.read(0)
    hand.collate(len(hand.collating) - 1)
    assert hand.pop()
    assert hand.delivered == [[0, 1]]


@pytest.mark.parametrize("in_order", [True, False])
def test_shard_is_closed_by_whoever_is_left_with_it(in_order: bool) -> None:
    """An abandoned epoch hands back the iterators that no worker is at, and has the batches freed
    when the lock is released."""
    epoch = epoch_over(3, 1, in_order, 2, None)
    hand = Hand(epoch, [5] * 3, 1)
    for _ in range(3):
        assert hand.claim()
    for source in hand.reading:
        source.reader = object()  # type: ignore[assignment]
    hand.read(2)
    hand.read(1)
    hand.collate(0)
    left = epoch.forget()
    assert [source.shard.number for source in left] == [1, 2]
    assert all(source.shard.occupied for source in left)
    batches: list[Any] = [batch for some in epoch.sync.due._dropped for batch in some]  # type: ignore[attr-defined]
    assert sum(batch is not None for batch in batches) == (2 if in_order else 1)
    assert epoch.finished
    assert epoch.claim() is None
    hand.collate(0)
    assert epoch.pop() is None


@pytest.mark.parametrize(("ahead", "readable"), [(2, 1), (1, 0)])
def test_worker_that_goes_on_to_collate_wakes_one_to_read_on(ahead: int, readable: int) -> None:
    woken: list[int] = []
    hand = Hand(epoch_over(1, 2, True, ahead, None, wake=woken.append), [9], 2)
    assert hand.claim()
    hand.read(0)
    assert woken == [readable]


def test_worker_that_leaves_late_wakes_one_for_the_next_epoch() -> None:
    """It may be told to end itself, or have other work first."""
    woken: list[int] = []
    epoch = epoch_over(1, 1, True, 2, None, wake=woken.append)
    source = epoch.claim()
    assert source is not None
    epoch.forget()
    assert not woken
    epoch.leave(source.shard)
    assert woken == [1]
    assert not source.shard.occupied
