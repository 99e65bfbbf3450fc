"""The worker schedulers, as plain state: fed with what simulated workloads do."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from minato_async import MinatoLoader
from minato_async.engine import coordinator
from minato_async.scheduling.schedulers import (
    FixedScheduler,
    PaperScheduler,
    Reading,
    ThroughputScheduler,
    WorkerScheduler,
    make_scheduler,
)

from .support import PATIENCE, Made, Tally, until, wait_for


@dataclass
class Workload:
    """Samples that each compute for `cpu` seconds and wait for `waits`, on `quota` cores, for a
    consumer that takes `taken` a second at most. Costs have a standard deviation of `spread`
    times their mean."""

    cpu: float
    waits: float = 0.0
    quota: float = 2.0
    taken: float = float("inf")
    most: int = 32
    spread: float = 0.0

    def loaded(self, workers: int) -> float:
        """Samples a second, if all are taken."""
        by_cores = self.quota / self.cpu if self.cpu else float("inf")
        return min(workers / (self.cpu + self.waits), by_cores)

    def reading(self, workers: int, seconds: float, chance: random.Random) -> Reading:
        loaded = self.loaded(workers)
        rate = min(loaded, self.taken)
        finished = rate * seconds
        finished += chance.gauss(0.0, self.spread * finished**0.5)
        # Where cores are short, those that wait for one are inside steps too.
        active = workers * rate / loaded if rate < loaded else float(workers)
        used = rate * self.cpu
        return Reading(
            seconds=seconds,
            workers=workers,
            active=active,
            delayed=max(0.0, active - rate * (self.cpu + self.waits)),
            finished=max(0, round(finished)),
            queued=8 if rate < loaded else 0,
            queue_limit=8,
            starved=rate >= loaded,
            cpu=used,
            quota=self.quota,
            idle_cores=self.quota - used,
            most=self.most,
        )


def simulate(
    scheduler: WorkerScheduler, workload: Callable[[int], Workload], readings: int, seed: int = 0
) -> list[int]:
    """The number of workers after each reading."""
    chance = random.Random(seed)
    workers, trace = scheduler.start(), []
    for number in range(readings):
        now = workload(number)
        wanted = scheduler.decide(now.reading(workers, scheduler.interval, chance))
        workers = min(now.most, max(1, wanted))
        trace.append(workers)
    return trace


def steady(workload: Workload) -> Callable[[int], Workload]:
    return lambda number: workload


def reading(**values: float) -> Reading:
    usual: dict[str, float] = {
        "seconds": 0.5,
        "workers": 4,
        "active": 4.0,
        "delayed": 0.0,
        "finished": 100,
        "queued": 4,
        "queue_limit": 8,
        "starved": True,
        "cpu": 1.5,
        "quota": 2.0,
        "idle_cores": 0.5,
        "most": 32,
    }
    return Reading(**(usual | values))  # type: ignore[arg-type]


def computing(active: float, cpu: float = 2.0) -> Reading:
    """Two cores, the consumer waits."""
    return reading(
        seconds=0.1,
        active=active,
        delayed=active - cpu,
        finished=5,
        cpu=cpu,
        idle_cores=2.0 - cpu,
    )


class TestFixed:
    def test_it_stays(self) -> None:
        scheduler = FixedScheduler(5)
        assert scheduler.start() == 5
        for workload in (Workload(0.01), Workload(0.0, 0.1), Workload(0.01, taken=1.0)):
            assert set(simulate(scheduler, steady(workload), 20)) == {5}


class TestPaper:
    def test_the_formula(self) -> None:
        # alpha (1 - Q / Qmax) + beta (C - theta) with 1, 2 and 0.75
        assert PaperScheduler(4).decide(reading(queued=8, cpu=1.5)) == 4
        assert PaperScheduler(4).decide(reading(queued=0, cpu=1.5)) == 5
        assert PaperScheduler(10).decide(reading(queued=8, cpu=0.0)) == 8  # -1.5: 8.5 rounded

    def test_parts_of_workers_add_up(self) -> None:
        scheduler = PaperScheduler(4)
        assert [scheduler.decide(reading(queued=6)) for _ in range(4)] == [4, 4, 5, 5]

    def test_the_constants(self) -> None:
        scheduler = PaperScheduler(4, alpha=2.0, beta=0.0)
        assert scheduler.decide(reading(queued=0)) == 6
        scheduler = PaperScheduler(4, alpha=0.0, beta=2.0, theta=0.5)
        assert scheduler.decide(reading(queued=0, cpu=2.0)) == 5

    def test_it_moves_by_two_at_most(self) -> None:
        assert PaperScheduler(10, alpha=9.0).decide(reading(queued=0)) == 12
        assert PaperScheduler(10, beta=9.0).decide(reading(queued=8, cpu=0.0)) == 8

    def test_it_keeps_between_one_and_the_most(self) -> None:
        scheduler = PaperScheduler(2)
        for _ in range(10):
            assert scheduler.decide(reading(queued=8, cpu=0.0)) >= 1
        for _ in range(40):
            assert scheduler.decide(reading(queued=0, cpu=2.0, most=7)) <= 7
        # What it could not do is not remembered: it comes back at once.
        assert scheduler.decide(reading(queued=8, cpu=0.0, most=7)) < 7

    def test_no_more_than_all_cores_count(self) -> None:
        assert PaperScheduler(4).decide(reading(queued=8, cpu=1e3)) == round(4.5)

    def test_fault_full_queues_and_busy_cores_still_grow_the_pool(self) -> None:
        scheduler = PaperScheduler(4)
        for _ in range(10):
            workers = scheduler.decide(reading(queued=8, cpu=2.0))
        assert workers > 4

    def test_fault_work_that_waits_gets_no_more_workers(self) -> None:
        trace = simulate(PaperScheduler(4), steady(Workload(0.0, waits=0.1)), 50)
        assert trace[-1] <= 4


class TestThroughput:
    @pytest.mark.parametrize("start", [1, 2])
    @pytest.mark.parametrize("quota", [2.0, 4.0, 8.0])
    def test_work_that_computes_gets_about_the_quota(self, start: int, quota: float) -> None:
        self._about_the_quota(start, quota)

    @pytest.mark.parametrize(("start", "quota"), [(4, 2.0), (16, 2.0), (16, 8.0)])
    def test_also_from_above(self, start: int, quota: float) -> None:
        self._about_the_quota(start, quota)

    def _about_the_quota(self, start: int, quota: float) -> None:
        trace = simulate(ThroughputScheduler(start), steady(Workload(0.01, quota=quota)), 200)
        tail = trace[-100:]
        assert quota <= min(tail)
        assert max(tail) <= 1.5 * quota

    @pytest.mark.parametrize("start", [1, 2, 8])
    def test_work_that_waits_gets_all_there_may_be(self, start: int) -> None:
        workload = Workload(1e-5, waits=0.02)
        trace = simulate(ThroughputScheduler(start), steady(workload), 200)
        assert trace[-1] == workload.most
        assert all(later >= earlier for earlier, later in pairwise(trace))

    def test_also_on_cores_that_others_keep_busy(self) -> None:
        scheduler, workers = ThroughputScheduler(4), 4
        busy = Workload(1e-5, waits=0.02)
        for _ in range(60):
            now = busy.reading(workers, scheduler.interval, random.Random(0))
            workers = scheduler.decide(replace(now, idle_cores=0.0))
        assert workers == busy.most

    def test_within_three_seconds_it_is_there(self) -> None:
        readings = round(3.0 / ThroughputScheduler.interval)
        trace = simulate(ThroughputScheduler(4), steady(Workload(1e-5, waits=0.02)), readings)
        assert trace[-1] >= 16

    def test_work_that_does_both_fills_the_cores(self) -> None:
        # A quarter of each sample computes: eight workers keep two cores busy. Now and then
        # fewer are tried.
        for start in (2, 8, 32):
            trace = simulate(ThroughputScheduler(start), steady(Workload(0.01, waits=0.03)), 200)
            tail = trace[-100:]
            assert sum(8 <= workers <= 12 for workers in tail) >= 90
            assert min(tail) >= 5
            assert max(tail) <= 12

    @pytest.mark.parametrize("workload", [Workload(0.01, taken=50.0), Workload(1e-5, 0.02, 2, 100)])
    def test_a_slow_consumer_gets_fewer(self, workload: Workload) -> None:
        trace = simulate(ThroughputScheduler(16), steady(workload), 400)
        needed = workload.taken * (workload.cpu + workload.waits)
        tail = trace[-200:]
        assert min(tail) >= needed
        assert max(tail) <= needed + 3

    @pytest.mark.parametrize("workload", [Workload(0.01, taken=50.0), Workload(1e-5, 0.02, 2, 100)])
    def test_and_it_does_not_oscillate(self, workload: Workload) -> None:
        # It may try one more, now and then: not more than once in two seconds.
        tail = simulate(ThroughputScheduler(16), steady(workload), 400)[-200:]
        changes = sum(a != b for a, b in pairwise(tail))
        assert changes <= 2 * 200 * ThroughputScheduler.interval / 2

    @pytest.mark.parametrize("spread", [0.5, 2.0])
    @pytest.mark.parametrize(
        "workload",
        [
            Workload(0.01, quota=2.0),
            Workload(0.01, quota=8.0),
            Workload(0.01, waits=0.03),
            Workload(1e-5, waits=0.02),
            Workload(1e-5, waits=0.5),
        ],
    )
    def test_what_is_reached_where_costs_differ(self, workload: Workload, spread: float) -> None:
        """Costs as unlike as those of heavy tails: after five seconds (or as long as each worker
        needs for some twenty samples) nearly what the best number of workers would load."""
        warm = 50 if workload.waits < 0.1 else 150
        for start in (2, 4, 32):
            reached = []
            for seed in range(20):
                now = replace(workload, spread=spread)
                trace = simulate(ThroughputScheduler(start), steady(now), 300, seed)
                rates = [now.loaded(workers) for workers in trace[warm:]]
                reached.append(sum(rates) / len(rates) / now.loaded(now.most))
            assert sum(reached) / len(reached) >= 0.95

    def test_where_more_do_not_help_it_goes_back(self) -> None:
        # A disk, or a lock: 100 samples a second, whoever asks, and no core is used.
        trace, workers = [], 4
        scheduler = ThroughputScheduler(4)
        for _ in range(200):
            now = reading(
                seconds=0.1, workers=workers, active=workers, finished=10, cpu=0.01, idle_cores=1.99
            )
            workers = scheduler.decide(now)
            trace.append(workers)
        assert set(trace) == {4, 8}  # twice as many were tried
        assert trace.count(8) <= 40
        # And less and less often.
        tried = [n for n, (a, b) in enumerate(pairwise(trace)) if (a, b) == (4, 8)]
        waits = [later - earlier for earlier, later in pairwise(tried)]
        assert len(waits) >= 2
        assert all(later > 1.5 * earlier for earlier, later in pairwise(waits))

    def test_workers_that_only_wait_for_a_core_go_at_once(self) -> None:
        scheduler = ThroughputScheduler(8)
        trace = [scheduler.decide(computing(8)) for _ in range(20)]
        # For as long as they are in samples that take long, all compute.
        assert set(trace) == {8, 2}
        assert trace == sorted(trace, reverse=True)

    def test_workers_that_wait_for_something_else_stay(self) -> None:
        """They use as much of the cores, and finish as much."""
        scheduler = ThroughputScheduler(8)
        assert {scheduler.decide(replace(computing(8), delayed=0.0)) for _ in range(20)} == {8}

    def test_a_reading_in_which_the_load_changed_does_not_fail_a_step(self) -> None:
        """Two workers finish 400 samples a second that compute, then 100 that wait. A step up must
        not be held against what the former were finished at."""
        scheduler = ThroughputScheduler(2)
        waiting = reading(
            seconds=0.1, workers=2, active=2.0, finished=10, cpu=0.01, idle_cores=1.99
        )
        changing = replace(waiting, finished=34, cpu=1.6, idle_cores=0.4)
        for _ in range(10):
            assert scheduler.decide(replace(computing(2), finished=40)) == 2
        workers, trace = scheduler.decide(changing), []
        for _ in range(30):
            now = replace(waiting, workers=workers, active=workers, finished=5 * workers)
            workers = scheduler.decide(now)
            trace.append(workers)
        assert trace == sorted(trace)
        assert trace[-1] == 32

    def test_workers_let_go_too_early_are_kept_longer_each_time(self) -> None:
        """As few as were busy are not enough: the consumer waits as soon as the others are gone."""
        scheduler, workers, trace = ThroughputScheduler(8), 8, []
        for _ in range(400):
            starved = workers < 8
            now = reading(
                seconds=0.1,
                workers=workers,
                active=workers if starved else 3.0,
                starved=starved,
                cpu=0.1,
                idle_cores=1.9,
            )
            workers = scheduler.decide(now)
            trace.append(workers)
        gone = [n for n, (a, b) in enumerate(pairwise(trace)) if b < a]
        waits = [later - earlier for earlier, later in pairwise(gone)]
        assert len(waits) >= 3
        assert all(later > 1.5 * earlier for earlier, later in pairwise(waits[:3]))

    def test_no_step_up_while_the_consumer_need_not_wait(self) -> None:
        scheduler = ThroughputScheduler(4)
        for _ in range(30):
            assert scheduler.decide(reading(starved=False, idle_cores=2.0)) == 4

    def test_but_down_where_its_own_thread_may_not_get_a_core(self) -> None:
        scheduler, workers = ThroughputScheduler(32), 32
        for _ in range(60):
            workers = scheduler.decide(replace(computing(workers), starved=False))
        assert workers == 2

    def test_a_step_that_satisfies_the_consumer_is_kept(self) -> None:
        scheduler = ThroughputScheduler(4)
        hungry = reading(seconds=0.1, cpu=0.1, idle_cores=1.9)
        while scheduler.decide(hungry) == 4:
            pass
        # It takes no more than before, and does not wait for it any more.
        for _ in range(10):
            satisfied = reading(
                seconds=0.1, workers=8, active=8.0, starved=False, cpu=0.1, idle_cores=1.9
            )
            assert scheduler.decide(satisfied) == 8

    def test_a_lull_costs_no_workers_for_long(self) -> None:
        """The consumer pauses for three seconds, and goes on: all workers are back at once."""

        def workload(number: int) -> Workload:
            return Workload(1e-5, waits=0.02, taken=0.1 if 100 <= number < 130 else float("inf"))

        trace = simulate(ThroughputScheduler(4), workload, 150)
        assert trace[99] == 32
        assert trace[128] <= 2
        assert trace[131] == 32

    def test_a_load_that_begins_to_wait_is_followed(self) -> None:
        trace = simulate(ThroughputScheduler(1), self._waiting_from_200, 400)
        assert trace[199] <= 4
        assert trace[399] == 32

    def test_a_load_that_begins_to_compute_is_followed(self) -> None:
        trace = simulate(ThroughputScheduler(4), lambda n: self._waiting_from_200(399 - n), 400)
        assert trace[199] == 32
        assert trace[399] <= 4

    def test_a_consumer_that_becomes_slow_is_followed(self) -> None:
        def workload(number: int) -> Workload:
            return Workload(1e-5, waits=0.02, taken=100.0 if number >= 200 else float("inf"))

        trace = simulate(ThroughputScheduler(4), workload, 400)
        assert trace[199] == 32
        assert trace[399] <= 5

    @staticmethod
    def _waiting_from_200(number: int) -> Workload:
        return Workload(1e-5, waits=0.02) if number >= 200 else Workload(0.01)

    def test_there_is_never_less_than_one(self) -> None:
        scheduler = ThroughputScheduler(2)
        for _ in range(20):
            assert scheduler.decide(reading(active=0.0, finished=0, cpu=0.0)) >= 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fixed", FixedScheduler),
        ("paper", PaperScheduler),
        ("throughput", ThroughputScheduler),
    ],
)
def test_each_is_found_by_its_name(name: str, kind: type) -> None:
    scheduler = make_scheduler(name, 3)
    assert type(scheduler) is kind
    assert scheduler.start() == 3


class Stepwise:
    """A worker scheduler of a user's: two workers, then five."""

    interval = 0.05

    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def start(self) -> int:
        return 2

    def decide(self, reading: Reading) -> int:
        self.readings.append(reading)
        return 5


def test_one_of_your_own_is_asked_and_obeyed() -> None:
    scheduler, let_go, tally = Stepwise(), threading.Event(), Tally()

    def load(index: int) -> int:
        with tally.inside():
            wait_for(let_go)
        return index

    assert isinstance(scheduler, WorkerScheduler)
    loader = MinatoLoader(
        Made(40, load), num_workers=3, max_workers=5, scheduler=scheduler, collate_fn=list
    )
    iterator = iter(loader)
    until(lambda: tally.most_inside == 5)
    assert (iterator.stats.workers, iterator.stats.active) == (5, 5)
    (_, first), *_ = iterator.stats.worker_history
    assert first == 5
    let_go.set()
    assert len(list(iterator)) == 40
    assert tally.most_inside == 5
    reading = scheduler.readings[0]
    assert (reading.workers, reading.most, reading.starved) == (2, 5, True)
    assert 0 < reading.active <= 2


def test_it_is_told_how_many_workers_wait_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each of them, all the time.
    monkeypatch.setattr(coordinator, "worker_delay_seconds", lambda native_id: time.monotonic())
    scheduler, let_go = Stepwise(), threading.Event()
    loader = MinatoLoader(
        Made(40, lambda index: wait_for(let_go)),
        num_workers=2,
        max_workers=2,
        scheduler=scheduler,
        collate_fn=list,
    )
    iterator = iter(loader)

    def is_told(reading: Reading) -> bool:
        return [reading.active, reading.delayed] == pytest.approx([2.0, 2.0], abs=0.1)

    # Not every time: the clocks of workers are read one after the other.
    until(lambda: any(map(is_told, list(scheduler.readings))))
    let_go.set()
    assert len(list(iterator)) == 40


def test_what_it_raises_reaches_the_consumer() -> None:
    class Broken(Stepwise):
        def decide(self, reading: Reading) -> int:
            raise ValueError("no idea")

    let_go = threading.Event()
    loader = MinatoLoader(
        Made(40, lambda index: wait_for(let_go)),
        num_workers=2,
        scheduler=Broken(),
        timeout=PATIENCE,
    )
    with pytest.raises(RuntimeError, match="engine has failed") as caught:
        next(iter(loader))
    assert str(caught.value.__cause__) == "no idea"
    let_go.set()
