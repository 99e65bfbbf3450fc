"""The worker schedulers, as plain state: fed with what simulated workloads do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest

from minato_async.engine.scheduler import (
    FixedScheduler,
    PaperScheduler,
    Reading,
    ThroughputScheduler,
    WorkerScheduler,
    make_scheduler,
)


@dataclass
class Workload:
    """Samples that each compute for `cpu` seconds and wait for `waits`, on `quota` cores, for a
    consumer that takes `taken` a second at most."""

    cpu: float
    waits: float = 0.0
    quota: float = 2.0
    taken: float = float("inf")
    most: int = 32

    def reading(self, workers: int, seconds: float) -> Reading:
        by_workers = workers / (self.cpu + self.waits)
        by_cores = self.quota / self.cpu if self.cpu else float("inf")
        loaded = min(by_workers, by_cores)
        rate = min(loaded, self.taken)
        # Where cores are short, those that wait for one are inside steps too.
        active = workers * rate / loaded if rate < loaded else float(workers)
        used = rate * self.cpu
        return Reading(
            seconds=seconds,
            workers=workers,
            active=active,
            finished=round(rate * seconds),
            queued=8 if rate < loaded else 0,
            queue_limit=8,
            cpu=used,
            quota=self.quota,
            idle_cores=self.quota - used,
            most=self.most,
        )


def simulate(
    scheduler: WorkerScheduler, workload: Callable[[int], Workload], readings: int
) -> list[int]:
    """The number of workers after each reading."""
    workers, trace = scheduler.start(), []
    for number in range(readings):
        now = workload(number)
        wanted = scheduler.decide(now.reading(workers, scheduler.interval))
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
        "finished": 100,
        "queued": 4,
        "queue_limit": 8,
        "cpu": 1.5,
        "quota": 2.0,
        "idle_cores": 0.5,
        "most": 32,
    }
    return Reading(**(usual | values))  # type: ignore[arg-type]


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


#: Workers that share a core look like workers that wait: each uses a part of a core only.
never_below = pytest.mark.xfail(
    reason="with more workers than cores computing, the share of a core that each uses tells the "
    "number that there is, and the scheduler never goes back to the quota",
)


class TestThroughput:
    @pytest.mark.parametrize("start", [1, 2])
    @pytest.mark.parametrize("quota", [2.0, 4.0, 8.0])
    def test_work_that_computes_gets_about_the_quota(self, start: int, quota: float) -> None:
        self._about_the_quota(start, quota)

    @never_below
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

    def test_within_three_seconds_it_is_there(self) -> None:
        readings = round(3.0 / ThroughputScheduler.interval)
        trace = simulate(ThroughputScheduler(4), steady(Workload(1e-5, waits=0.02)), readings)
        assert trace[-1] >= 16

    def test_work_that_does_both_fills_the_cores(self) -> None:
        # A quarter of each sample computes: eight workers keep two cores busy.
        trace = simulate(ThroughputScheduler(2), steady(Workload(0.01, waits=0.03)), 200)
        assert all(7 <= workers <= 12 for workers in trace[-100:])

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

    def test_where_more_do_not_help_it_goes_back(self) -> None:
        # A disk, or a lock: 100 samples a second, whoever asks, and no core is used.
        trace, workers = [], 4
        scheduler = ThroughputScheduler(4)
        for _ in range(60):
            now = reading(seconds=0.1, workers=workers, active=workers, finished=10, cpu=0.01)
            workers = scheduler.decide(now)
            trace.append(workers)
        assert max(trace) == 5  # a third more was tried
        assert trace.count(5) <= 6
        assert trace[-1] == 4

    def test_a_load_that_begins_to_wait_is_followed(self) -> None:
        trace = simulate(ThroughputScheduler(1), self._waiting_from_200, 400)
        assert trace[199] <= 4
        assert trace[399] == 32

    @never_below
    def test_a_load_that_begins_to_compute_is_followed(self) -> None:
        trace = simulate(ThroughputScheduler(4), lambda n: self._waiting_from_200(200 - n), 400)
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
