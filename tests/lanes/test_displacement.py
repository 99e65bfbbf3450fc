"""`max_displacement`: by how many batches a ready sample may be passed over.

Measured here without the loader's own count: from the order in which samples became ready and the
order in which batches were delivered.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minato_async import MinatoLoader
from minato_async.engine.batch import Batch
from minato_async.engine.bell import DueBells
from minato_async.engine.epoch import Epoch, Order
from tests.engine.claims import claim_of

from .support import PATIENCE, Made, flat, until, wait_for


def displacement(ready: Sequence[int], delivered: Sequence[Sequence[int]]) -> int:
    """The most batches that were delivered before a sample although all that is in them became
    ready after it."""
    when = {sample: moment for moment, sample in enumerate(ready)}
    firsts = [min(when[sample] for sample in batch) for batch in delivered]
    return max(
        (
            sum(first > when[sample] for first in firsts[:number])
            for number, batch in enumerate(delivered)
            for sample in batch
        ),
        default=0,
    )


def test_the_measure() -> None:
    assert displacement("abcdef", ["ab", "cd", "ef"]) == 0
    assert displacement("abcdef", ["cd", "ab", "ef"]) == 1
    assert displacement("abcdef", ["ef", "cd", "ab"]) == 2
    # Batches that were filled at the same time pass nobody over.
    assert displacement("abcdef", ["ac", "bd", "ef"]) == 0


class Simulation:
    """An epoch whose samples become ready, and whose batches are collated, in random order."""

    def __init__(self, seed: int, most: int | None, size: int, samples: int) -> None:
        self.chance = random.Random(seed)
        order = Order(as_drawn=False, by_position=False, max_displacement=most)
        self.epoch = Epoch(order, None, DueBells())
        for first in range(0, samples, size):
            self.epoch.draw(range(first, min(samples, first + size)))
        self.epoch.end_draw()
        self.claims: list[Any] = []
        while (claim := claim_of(self.epoch)) is not None:
            self.claims += [(claim.block, row) for row in range(claim.start, claim.stop)]
        self.collating: list[Batch] = []
        self.ready: list[int] = []
        self.delivered: list[list[int]] = []

    def run(self) -> None:
        while self.claims or self.collating:
            if self.claims and (not self.collating or self.chance.random() < 0.7):
                self._settle(*self.claims.pop(self.chance.randrange(len(self.claims))))
            else:
                # Any of them may be slow, and the first for long.
                batch = self.collating.pop(self.chance.randrange(len(self.collating)))
                self.epoch.collated(batch, list(batch.samples), None)
            while (popped := self.epoch.pop()) is not None:
                self.delivered.append(popped.take_content())
        assert self.epoch.finished

    def _settle(self, block: Any, row: int) -> None:
        self.ready.append(block.indices[row])
        self.collating += self.epoch.settle(block, row, [block.indices[row]])


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    most=st.sampled_from([None, 0, 1, 2, 5]),
    size=st.integers(1, 5),
    samples=st.integers(1, 60),
)
def test_no_ready_sample_is_passed_over_by_more(
    seed: int, most: int | None, size: int, samples: int
) -> None:
    simulation = Simulation(seed, most, size, samples)
    simulation.run()
    assert sorted(flat(simulation.delivered)) == list(range(samples))
    found = displacement(simulation.ready, simulation.delivered)
    assert found == simulation.epoch.delivery.displacement.seen
    if most is not None:
        assert found <= most


def test_without_a_bound_it_happens() -> None:
    simulation = Simulation(1, None, 2, 60)
    simulation.run()
    assert displacement(simulation.ready, simulation.delivered) > 5


class SlowFirst:
    """A collate function that is stuck in the first batch until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.entered = threading.Event()

    def __call__(self, samples: list[int]) -> list[int]:
        if 0 in samples:
            self.entered.set()
            wait_for(self.let_go)
        return samples


def loader_of(collate: SlowFirst, **options: Any) -> MinatoLoader[Any]:
    def load(index: int) -> int:
        # The batch with the first sample is complete before any other is begun.
        if index >= 4:
            wait_for(collate.entered)
        return index

    usual = {"batch_size": 4, "num_workers": 3, "collate_fn": collate, "in_order": False}
    return MinatoLoader(Made(40, load), **(usual | {"timeout": PATIENCE} | options))


@pytest.mark.parametrize("most", [0, 1, 3])
def test_batches_wait_for_one_that_was_overtaken_often_enough(most: int) -> None:
    collate = SlowFirst()
    iterator = iter(loader_of(collate, max_displacement=most, max_queue_size=40))
    batches = [next(iterator) for _ in range(most)]
    assert not any(0 in batch for batch in batches)
    until(lambda: iterator.stats.ready_batches >= 9 - most)
    waiting = threading.Thread(target=lambda: batches.append(next(iterator)))
    waiting.start()
    # It waits though batches are ready; what it gets is the one that they had to wait for.
    until(lambda: iterator._epoch.delivery._waiting)
    collate.let_go.set()
    waiting.join(PATIENCE)
    assert 0 in batches[most]
    assert iterator.stats.displacement == most
    assert sorted(flat(batches) + flat(iterator)) == list(range(40))


def test_without_a_bound_nobody_waits() -> None:
    collate = SlowFirst()
    iterator = iter(loader_of(collate, max_queue_size=40))
    batches = [next(iterator) for _ in range(9)]
    assert not any(0 in batch for batch in batches)
    assert iterator.stats.displacement == 9
    collate.let_go.set()
    assert 0 in next(iterator)


def test_in_order_it_is_zero() -> None:
    loader = MinatoLoader(
        Made(40), batch_size=4, num_workers=3, in_order=True, collate_fn=list, max_displacement=2
    )
    iterator = iter(loader)
    assert flat(iterator) == list(range(40))
    assert iterator.stats.displacement == 0
