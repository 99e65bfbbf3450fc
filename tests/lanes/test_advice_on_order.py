"""What strict order costs is measured, and told once to who asked for the run again."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from minato_async.engine import coordinator
from minato_async.engine.batch import Batch
from minato_async.engine.bell import Bell, DueBells
from minato_async.engine.delivery import Delivery
from minato_async.iteration.order import choose_order
from minato_async.scheduling import advice
from minato_async.scheduling.advice import Advice, Adviser, Observation
from tests.loaders import on_each_executor
from tests.semantics.support import InThread


def observe(adviser: Adviser, held_up: float) -> list[Advice]:
    """What is found in ten seconds, of which the consumer was held up so many."""
    told: list[Advice] = []
    for second in range(11):
        told += adviser.observe(
            Observation(
                now=float(second),
                data_wait=held_up * second / 10,
                delivered=second,
                workers=2,
                most=2,
                active=2.0,
                temp_queue=0,
                in_flight=8,
                threshold=float("inf"),
                held_up=held_up * second / 10,
            )
        )
    return told


class TestAdviser:
    def test_it_says_what_order_costs(self) -> None:
        found = observe(Adviser(), 1.5)
        assert {advice.topic for advice in found} == {"order"}
        assert "15% of the time" in found[0].text
        assert "in_order=False" in found[0].text

    def test_not_where_it_would_bring_nothing_to_speak_of(self) -> None:
        assert observe(Adviser(), 0.4) == []


class TestHeldUp:
    """The time that the consumer waits for one batch while others are ready."""

    def batches(self, delivery: Delivery) -> list[Batch]:
        batches = [Batch(1, 1) for _ in range(3)]
        for batch in batches:
            delivery.expect(batch)
        return batches

    def test_runs_while_a_later_batch_is_ready(self) -> None:
        delivery = Delivery(True, DueBells())
        first, second, _ = self.batches(delivery)
        delivery.add_waiter(Bell())
        assert delivery.held_up == 0.0
        delivery.put(second)
        began = delivery.held_up
        assert delivery.held_up > began  # it goes on
        delivery.put(first)
        total = delivery.held_up
        assert total > 0.0
        assert delivery.held_up == total

    def test_runs_for_who_begins_to_wait_then(self) -> None:
        delivery = Delivery(True, DueBells())
        _, second, _ = self.batches(delivery)
        delivery.put(second)
        assert delivery.held_up == 0.0  # nobody waits
        delivery.add_waiter(Bell())
        assert delivery.held_up > 0.0

    def test_not_while_nothing_is_ready(self) -> None:
        delivery = Delivery(True, DueBells())
        first, _, _ = self.batches(delivery)
        delivery.add_waiter(Bell())
        delivery.put(first)
        assert delivery.held_up == 0.0


@pytest.mark.usefixtures("unseeded")
@pytest.mark.parametrize(
    ("options", "optional"),
    [
        ({"shuffle": True}, True),
        ({"shuffle": True, "in_order": True}, False),
        ({}, False),
    ],
    ids=["random", "asked for", "in turn"],
)
def test_order_is_optional_only_where_it_is_random_and_nobody_asked_for_it(
    options: dict[str, Any], optional: bool
) -> None:
    loader: MinatoLoader[Any] = MinatoLoader(range(9), **options)  # type: ignore[arg-type]
    assert not choose_order(loader, loader.in_order).optional  # nothing is kept without need
    torch.manual_seed(0)
    assert choose_order(loader, loader.in_order).optional is optional


class Told(logging.Handler):
    """Waits until advice is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.told.set()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """Advice after a moment, and not after seconds."""
    monkeypatch.setattr(advice, "_PERIOD", 0.05)
    monkeypatch.setattr(coordinator, "_ADVICE_INTERVAL", 0.01)
    monkeypatch.setattr(advice, "_given", {topic: threading.Lock() for topic in advice._given})
    handler = Told()
    advice.logger.addHandler(handler)
    yield handler
    advice.logger.removeHandler(handler)


class SlowFirst:
    """One sample waits until it is released; on whichever executor."""

    def __init__(self, slow: int) -> None:
        self.slow = slow
        self.released = multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == self.slow:
            assert self.released.wait(60)
        return index


@on_each_executor
def test_who_seeded_is_told_what_order_costs(told: Told) -> None:
    torch.manual_seed(3)
    expected = [batch.item() for batch in DataLoader(range(8), shuffle=True)]  # type: ignore[arg-type]
    data = SlowFirst(int(expected[0]))
    torch.manual_seed(3)
    loader = MinatoLoader(data, shuffle=True, num_workers=2)  # type: ignore[arg-type, var-annotated]
    consumer = InThread(lambda: [batch.item() for batch in loader])
    assert told.told.wait(60)
    data.released.set()
    assert consumer.result() == expected
    (line,) = [line for line in told.lines if "in_order=False" in line]
    assert "while later ones are ready" in line
    assert 0.0 < loader.stats.held_up <= loader.stats.data_wait
