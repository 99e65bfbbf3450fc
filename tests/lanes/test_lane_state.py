"""The lanes and the slots, as plain state."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from minato_async.engine.bell import DueBells
from minato_async.engine.feed import Block
from minato_async.engine.lanes import Lanes, Sample
from minato_async.engine.slots import Slots


@dataclass
class NamedWorker:
    name: str
    number: int = 0
    native_id: int = 0
    retiring: bool = False
    aside: bool = False
    shares: bool = False


class NoJob:
    elapsed = 0.0

    def hand_off(self) -> bool:
        return True

    def expire(self, seconds: float) -> bool:
        return True

    def describe(self) -> str:
        return "nothing"

    def run(self, worker: object) -> None: ...


def make_lanes(workers: int, most: int | None = None) -> tuple[Lanes, Slots]:
    slots = Slots(workers, workers if most is None else most)
    return Lanes(slots, DueBells()), slots


def sample(number: int = 0) -> Sample:
    return Sample(Block(0, [number], 1), 0, number)


def enter(slots: Slots, count: int) -> list[NamedWorker]:
    workers = [NamedWorker(f"w{number}", number) for number in range(count)]
    for worker in workers:
        slots.enter(worker, NoJob())
    return workers


class TestShare:
    def test_nobody_serves_an_empty_queue(self) -> None:
        lanes, _ = make_lanes(8)
        assert not lanes.wants_worker(64)

    @pytest.mark.parametrize("workers", [1, 2, 3, 8])
    def test_one_place_is_always_there(self, workers: int) -> None:
        lanes, _ = make_lanes(workers)
        lanes.divert(sample())
        assert lanes.wants_worker(10**6)

    def test_no_second_place_while_the_backlog_is_small(self) -> None:
        lanes, _ = make_lanes(8)
        lanes.divert(sample())
        lanes.slow_running = 1
        assert not lanes.wants_worker(1000)

    @pytest.mark.parametrize(
        ("backlog", "places"), [(0, 1), (1, 1), (4, 2), (8, 4), (16, 7), (64, 7)]
    )
    def test_places_grow_with_the_backlog(self, backlog: int, places: int) -> None:
        lanes, _ = make_lanes(8)
        for number in range(backlog):
            lanes.divert(sample(number))
        in_flight = 64
        assert lanes.has_place(in_flight, places)
        assert not lanes.has_place(in_flight, places + 1)

    @pytest.mark.parametrize(("backlog", "places"), [(1, 1), (6, 3), (12, 5), (16, 7), (900, 7)])
    def test_a_wide_window_lets_no_more_pile_up(self, backlog: int, places: int) -> None:
        lanes, _ = make_lanes(8)
        for number in range(backlog):
            lanes.divert(sample(number))
        assert lanes.has_place(10**6, places)
        assert not lanes.has_place(10**6, places + 1)

    @pytest.mark.parametrize("workers", range(2, 10))
    def test_one_worker_is_left_to_the_fast_lane(self, workers: int) -> None:
        lanes, _ = make_lanes(workers)
        for number in range(100):
            lanes.divert(sample(number))
        assert lanes.has_place(100, workers - 1)
        assert not lanes.has_place(100, workers)

    def test_a_replacement_counts_among_the_workers(self) -> None:
        lanes, slots = make_lanes(2, most=4)
        for number in range(100):
            lanes.divert(sample(number))
        enter(slots, 2)
        slots.hand_off(slots.running["w0"])
        assert lanes.has_place(100, 2)
        assert not lanes.has_place(100, 3)


class TestTempQueue:
    def test_the_oldest_goes_on_first(self) -> None:
        lanes, _ = make_lanes(2)
        first, second = sample(1), sample(2)
        lanes.divert(first)
        lanes.divert(second)
        assert lanes.resume(first) is first
        assert lanes.next_due() is second
        assert lanes.resume(second) is second
        assert lanes.slow_running == 2

    def test_a_parked_worker_gives_its_slot_up_and_gets_it_back(self) -> None:
        lanes, slots = make_lanes(1)
        (worker,) = enter(slots, 1)
        lanes.slow_running = 1
        assert not slots.free
        parked = lanes.park(worker)
        assert worker.aside
        assert (slots.free, slots.active, slots.threads) == (True, 0, 2)
        assert lanes.slow_running == 0
        assert lanes.next_due() is parked
        assert lanes.resume(parked) is None
        assert parked.granted
        assert not worker.aside
        assert (slots.free, slots.active, slots.threads) == (False, 1, 1)
        assert lanes.slow_running == 1
        lanes.unpark(parked)
        assert (slots.parked, lanes.slow_running) == (0, 1)

    def test_a_parked_worker_waits_for_whoever_runs_by_its_number(self) -> None:
        lanes, slots = make_lanes(3)
        worker, other = enter(slots, 2)
        parked = lanes.park(worker)
        another = NamedWorker("w0.1", worker.number)
        slots.enter(another, NoJob())
        assert lanes.next_due() is None
        behind = sample()
        lanes.divert(behind)
        assert lanes.next_due() is behind
        slots.leave(other)
        assert lanes.next_due() is behind
        slots.leave(another)
        assert lanes.next_due() is parked

    def test_one_that_has_waited_enough_goes_on_without(self) -> None:
        lanes, slots = make_lanes(1)
        worker, _ = enter(slots, 2)
        lanes.slow_running = 1
        parked = lanes.park(worker)
        other = sample()
        lanes.divert(other)
        lanes.unpark(parked)
        assert (slots.parked, slots.active, lanes.slow_running) == (0, 2, 1)
        assert list(lanes.temp_queue) == [other]

    def test_whoever_is_parked_is_woken_at_the_end(self) -> None:
        due = DueBells()
        slots = Slots(1, 1)
        lanes = Lanes(slots, due)
        worker, _ = enter(slots, 2)
        lanes.slow_running = 1
        parked = lanes.park(worker)
        lanes.divert(sample())
        lanes.clear()
        due.ring()
        assert parked.bell.wait(0)
        assert not lanes.temp_queue
        assert slots.parked == 0


class TestSlots:
    def test_as_many_run_as_are_wanted(self) -> None:
        slots = Slots(2, 4)
        enter(slots, 1)
        assert slots.free
        enter(slots, 2)
        assert not slots.free
        assert slots.threads == 2

    def test_whoever_is_handed_off_brings_a_slot_and_takes_it_along(self) -> None:
        slots = Slots(2, 4)
        first, _ = enter(slots, 2)
        slots.hand_off(slots.running["w0"])
        assert slots.free
        assert slots.threads == 3
        slots.leave(first)
        assert (slots.handed_off, slots.threads, slots.active) == (0, 2, 1)

    def test_there_are_never_more_than_the_most(self) -> None:
        slots = Slots(2, 2)
        enter(slots, 2)
        slots.hand_off(slots.running["w0"])
        assert not slots.free
        assert slots.threads == 2

    def test_workers_are_busy_from_the_beginning_of_a_job_to_its_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        monkeypatch.setattr("minato_async.engine.slots.time.monotonic", lambda: now)
        slots = Slots(2, 4)
        first, _ = enter(slots, 2)
        now = 103.0
        slots.leave(first)
        slots.leave(first)
        assert slots.busy_seconds(104.0) == 3.0 + 4.0
        now = 110.0
        slots.enter(first, NoJob())
        assert slots.busy_seconds(111.0) == 3.0 + 11.0 + 1.0

    def test_leaving_twice_does_no_harm(self) -> None:
        slots = Slots(2, 4)
        first, _ = enter(slots, 2)
        slots.hand_off(slots.running["w0"])
        slots.leave(first)
        slots.leave(first)
        assert slots.handed_off == 0
