"""A recorder is told of the whole life of each sample, and in order, whoever loads it."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from minato_async import MinatoLoader, checkpoint
from minato_async.engine.recorder import Outcome
from minato_async.scheduling.cpus import IdleCores
from tests.cases.support import PATIENCE, Made, Turnstile
from tests.lanes.support import until
from tests.life import Life, Lives
from tests.loaders import on_each_executor


def loader_of(dataset: Any, **options: Any) -> tuple[MinatoLoader[Any], Lives]:
    usual = {"batch_size": 4, "num_workers": 2, "collate_fn": list, "timeout": PATIENCE}
    loader = MinatoLoader(dataset, **(usual | options))
    loader._recorder = lives = Lives()
    return loader, lives


def drain(loader: Any) -> tuple[list[Any], list[BaseException]]:
    """Everything that is delivered, and everything that is raised."""
    found, errors, iterator = [], [], iter(loader)
    while True:
        try:
            found += next(iterator)
        except StopIteration:
            return found, errors
        except Exception as error:
            errors.append(error)


def same(value: Any) -> Any:
    return value


def waits(seconds: float) -> None:
    threading.Event().wait(seconds)


def outcomes(lives: dict[int, Life], outcome: Outcome) -> list[int]:
    return sorted(position for position, life in lives.items() if life.outcome is outcome)


@on_each_executor
class TestOnEachExecutor:
    @pytest.mark.parametrize("steps", [1, 3])
    @pytest.mark.parametrize("in_order", [True, False])
    def test_every_step_of_every_sample(self, steps: int, in_order: bool) -> None:
        transforms = [same] * (steps - 1)
        loader, lives = loader_of(Made(203), in_order=in_order, transforms=transforms)
        found, errors = drain(loader)
        assert (sorted(found), errors) == (list(range(203)), [])
        known = lives.check(steps)
        assert sorted(known) == list(range(203))
        assert all(life.steps == list(range(steps)) for life in known.values())
        assert lives.count("collated") == lives.count("taken") == 51

    def test_batches_that_belong_to_workers(self) -> None:
        loader, lives = loader_of(Made(203), assignment="batch")
        assert drain(loader) == (list(range(203)), [])
        known = lives.check(1)
        for first in range(0, 203, 4):
            batch = [known[position].worker for position in range(first, min(first + 4, 203))]
            assert batch == [f"minato-worker-{first // 4 % 2}"] * len(batch)

    def test_slow_samples_go_through_the_temp_queue(self) -> None:
        slow = {3, 17, 18, 40}
        dataset = Made(60, lambda index: waits(0.02 * (index in slow)) or index)
        loader, lives = loader_of(
            dataset, in_order=False, transforms=[same, same], timeout_threshold=0.01
        )
        assert drain(loader) == (pytest.approx(range(60), abs=60), [])
        known = lives.check(3)
        for position in slow:  # a busy machine makes others slow too
            told = [what for what in known[position].told if what not in ("began", "ended")]
            assert told == ["claimed", "diverted", "resumed", "settled"]
            assert known[position].steps == [0, 1, 2]
        assert loader.stats.diverted == lives.count("diverted")

    @pytest.mark.parametrize("steps", [1, 2])
    @pytest.mark.parametrize(
        ("on_error", "outcome"),
        [
            ("raise", Outcome.FAILED),
            ("skip", Outcome.SKIPPED),
            (lambda index, error: -index, Outcome.FINISHED),
        ],
        ids=["raise", "skip", "replace"],
    )
    def test_failing_ones(self, steps: int, on_error: Any, outcome: Outcome) -> None:
        def load(index: int) -> int:
            if index % 10 == 3:
                raise ValueError
            return index

        transforms = [same] * (steps - 1)
        loader, lives = loader_of(
            Made(60, load), in_order=False, on_error=on_error, transforms=transforms
        )
        found, errors = drain(loader)
        assert len(errors) == 6 * (on_error == "raise")
        assert len(found) == (60 if callable(on_error) else 54)
        known = lives.check(steps)
        bad = list(range(3, 60, 10))
        assert set(bad) <= set(outcomes(known, outcome))
        assert all(known[position].steps == [0] for position in bad)
        assert loader.stats.failed == 6 * (not callable(on_error))

    def test_those_that_nobody_waits_for(self) -> None:
        go_on = threading.Event()  # on processes it never comes
        dataset = Made(24, lambda index: go_on.wait(PATIENCE) if index == 5 else index)
        loader, lives = loader_of(dataset, in_order=False, sample_timeout=0.2, on_error="skip")
        found, errors = drain(loader)
        go_on.set()
        assert (len(found), errors) == (23, [])
        known = lives.check(1)
        assert outcomes(known, Outcome.SKIPPED) == [5]
        assert "expired" in known[5].told

    def test_stuck_ones_are_handed_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(IdleCores, "look", lambda self: 1.0)
        name = "minato_async.scheduling.schedulers.ThroughputScheduler.decide"
        monkeypatch.setattr(name, lambda self, reading: self.start())
        gate = Turnstile()
        dataset = Made(64, lambda index: gate.hold() if index < 2 else index)
        loader, lives = loader_of(
            dataset,
            in_order=False,
            scheduler="throughput",
            max_workers=4,
            timeout_threshold=0.01,
            collate_fn=len,
        )
        iterator = iter(loader)
        try:
            gate.wait_for(2)
            assert sum(next(iterator) for _ in range(15)) == 60
            until(lambda: loader.stats.handed_off >= 2)
        finally:
            gate.let_go()
        assert sum(iterator) == 4
        assert loader.stats.handed_off == lives.count("handed_off")
        known = lives.check(1)
        assert all("handed_off" in known[position].told for position in (0, 1))

    def test_a_second_epoch_is_counted_anew(self) -> None:
        def load(index: int) -> int:
            if index == 3:
                raise ValueError
            return index

        loader, lives = loader_of(Made(24, load), persistent_workers=True, on_error="skip")
        for _ in range(2):
            drain(loader)
            assert (loader.stats.failed, loader.stats.delivered) == (1, 6)
            assert sorted(lives.check(1)) == list(range(24))
            lives.events.clear()


@pytest.mark.usefixtures("threads_by_default")
def test_workers_that_step_aside_in_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IdleCores, "look", lambda self: 0.0)

    def load(index: int) -> int:
        if index % 6 == 0:
            for _ in range(10):
                waits(0.002)
                checkpoint()
        return index

    loader, lives = loader_of(Made(240, load), in_order=False, timeout_threshold=0.005)
    assert len(drain(loader)[0]) == 240
    known = lives.check(1)
    assert lives.count("parked") == lives.count("unparked") >= 1
    assert all(life.told.count("parked") <= 1 for life in known.values())


@pytest.mark.parametrize("steps", [1, 2])
def test_workers_that_die(steps: int) -> None:
    gate = Turnstile()

    def load(index: int) -> int:
        if index in (7, 30) and gate.came < index // 7:
            gate.come_in()
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    loader, lives = loader_of(
        Made(60, load), executor="process", transforms=[same] * (steps - 1), in_order=False
    )
    found, errors = drain(loader)
    # The first costs one worker, the second three: then it has failed.
    assert (len(found), len(errors)) == (59, 1)
    known = lives.check(steps)
    assert known[7].told.count("returned") == 1
    assert known[30].told.count("returned") == 2
    assert outcomes(known, Outcome.FAILED) == [30]
    assert "expired" in known[30].told


def test_workers_that_die_over_what_was_diverted() -> None:
    gate = Turnstile()

    def finish(index: int) -> int:
        if index == 7 and gate.came < 2:
            gate.come_in()
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    dataset = Made(60, lambda index: waits(0.02 * (index == 7)) or index)
    loader, lives = loader_of(
        dataset,
        executor="process",
        transforms=[finish],
        in_order=False,
        timeout_threshold=0.01,
        collate_fn=None,
    )
    assert sorted(int(index) for batch in loader for index in batch) == list(range(60))
    told = [what for what in lives.check(2)[7].told if what not in ("began", "ended")]
    assert told == ["claimed", "diverted", *["resumed", "returned"] * 2, "resumed", "settled"]


@on_each_executor
def test_without_a_recorder_nobody_is_told_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*args: Any) -> None:
        raise AssertionError("called")

    for name in ("claimed", "began", "ended", "collated"):
        monkeypatch.setattr(f"minato_async.engine.counts.Counts.{name}", called)
    loader = MinatoLoader(Made(60), batch_size=4, num_workers=2, transforms=[same])
    assert len(list(loader)) == 15
