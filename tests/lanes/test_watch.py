"""The deadline watch alone: when it looks, and what it needs to have seen."""

from __future__ import annotations

from typing import Any

import pytest

from minato_async.engine.deadline_watch import DeadlineWatch
from minato_async.engine.slots import Slots

from .test_lane_state import NamedWorker, NoJob


class Job(NoJob):
    """It has been inside one step for `elapsed` seconds."""

    def __init__(self, elapsed: float) -> None:
        self.elapsed = elapsed
        self.given = 0

    def hand_off(self) -> bool:
        self.given += 1
        return True


class StuckAfter:
    stuck_after = 0.1
    parks = False


LOADING: Any = StuckAfter()


class Watch(DeadlineWatch):
    """Looks at threads whose CPU clocks stand still, unless told otherwise."""

    def look_at(self, now: float, used: float = 1.0) -> list[Any]:
        suspects = self.suspects(LOADING)
        return self.look(LOADING, now, {worker.name: used for worker in suspects})


def watch_over(*elapsed: float, cores_idle: bool = False) -> tuple[Watch, list[Job]]:
    slots, jobs = Slots(len(elapsed), 8), [Job(seconds) for seconds in elapsed]
    slots.cores_idle = cores_idle
    for number, job in enumerate(jobs):
        slots.enter(NamedWorker(f"w{number}"), job)
    return Watch(slots, None), jobs


class TestWhenItLooks:
    @pytest.mark.parametrize("elapsed", [(), (0.0,), (0.02, 0.04)])
    def test_now_and_then(self, elapsed: tuple[float, ...]) -> None:
        watch, _ = watch_over(*elapsed)
        watch.look_at(1.0)
        assert watch.next_look == 0.02

    @pytest.mark.parametrize(("timeout", "seconds"), [(None, 0.05), (5.0, 0.02)])
    def test_rarely_where_nobody_could_take_a_place(
        self, timeout: float | None, seconds: float
    ) -> None:
        watch = Watch(Slots(8, 8), timeout)
        watch.look_at(1.0)
        assert watch.next_look == seconds

    def test_when_the_first_may_be_stuck(self) -> None:
        watch, _ = watch_over(0.06, 0.095, 0.085)
        watch.look_at(1.0)
        assert watch.next_look == pytest.approx(0.005)

    def test_but_not_without_a_pause(self) -> None:
        watch, _ = watch_over(0.09999)
        watch.look_at(1.0)
        assert watch.next_look == 0.002

    def test_one_that_was_handed_off_is_not_looked_for(self) -> None:
        watch, jobs = watch_over(0.09)
        watch.look_at(1.0)
        jobs[0].elapsed = 0.1
        watch.look_at(1.01)
        assert (jobs[0].given, watch.next_look) == (1, 0.02)


class TestWhatItHasSeen:
    def test_that_a_worker_waits_is_known_when_it_is_stuck(self) -> None:
        """Its clock was read before, so the first look after the deadline hands it off."""
        watch, (job,) = watch_over(0.06)
        watch.look_at(1.0)
        assert job.given == 0
        job.elapsed = 0.1
        watch.look_at(1.04)
        assert job.given == 1

    def test_without_an_earlier_look_it_is_not(self) -> None:
        watch, (job,) = watch_over(0.2)
        watch.look_at(1.0)
        assert job.given == 0
        watch.look_at(1.02)
        assert job.given == 1

    def test_one_that_computes_is_left_alone(self) -> None:
        watch, (job,) = watch_over(0.2)
        for look in range(10):
            watch.look_at(1.0 + 0.02 * look, used=0.02 * look)
        assert job.given == 0

    def test_one_that_must_be_asked_first_is_looked_at_soon(self) -> None:
        watch, (job,) = watch_over(0.2, cores_idle=True)
        job.hand_off = lambda: False  # type: ignore[method-assign]
        watch.look_at(1.0)
        assert watch.next_look == 0.002


class TestWhatIsAskedOfTheSystem:
    def test_with_an_idle_core_nothing_needs_to_be_known(self) -> None:
        watch, (job,) = watch_over(0.2, cores_idle=True)
        assert not watch.suspects(LOADING)
        watch.look_at(1.0)
        assert job.given == 1

    def test_nothing_where_nobody_could_take_a_place(self) -> None:
        slots = Slots(1, 1)
        slots.enter(NamedWorker("w0"), Job(0.2))
        watch = Watch(slots, None)
        assert not watch.suspects(LOADING)
        assert not watch.minds_cores(LOADING)

    def test_the_clocks_of_those_alone_who_may_be_stuck(self) -> None:
        watch, _ = watch_over(0.0, 0.2, 0.01)
        assert [worker.name for worker in watch.suspects(LOADING)] == ["w1"]
