"""Which row of a claim fails, or is given away, when a worker process is stuck in it: what it tells
of itself may have changed between any two looks."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from minato_async.engine.bell import DueBells
from minato_async.engine.epoch import Order
from minato_async.engine.loading import Sync
from minato_async.engine.slots import Slots
from minato_async.executors.process import jobs as remote_jobs
from minato_async.executors.process.map_epoch import ProcessMapEpoch
from minato_async.executors.process.messages import Slow
from minato_async.executors.process.progress import RECORD, Status
from minato_async.scheduling.threshold import Threshold


class Context:
    number = 1

    def abandon(self, number: int) -> None: ...

    def finished(self, batch: Any, content: Any, failure: Any, sync: Sync, done: Any) -> None:
        done(batch, content, failure)


class Recipe:
    on_error = "raise"
    step_name = staticmethod(str)


class Worker:
    name, number, native_id, retiring, aside, shares = "w", 0, 0, False, False, False


class Progress:
    """A worker that is in one row after the other, each for a number of looks, and for ten seconds
    in each by its own account."""

    def __init__(self, *looks: int, stale_row: bool = False) -> None:
        self.rows = [row for row, count in enumerate(looks) for _ in range(count)]
        self.looks = 0
        self.asked = 0
        self.began = 0.0

    @property
    def row(self) -> int:
        self.looks += 1
        return self.rows[min(self.looks, len(self.rows)) - 1]

    @property
    def elapsed(self) -> float:
        return 10.0

    def stop(self) -> None:
        self.asked += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(remote_jobs, "perf_counter", lambda: now[0])
    return now


def job_of(progress: Any, keys: int = 4) -> tuple[Any, ProcessMapEpoch]:
    sync = Sync(threading.RLock(), DueBells(), *[lambda _: None] * 2, Slots(1, 1), lambda: None)
    epoch = ProcessMapEpoch(
        Recipe(),  # type: ignore[arg-type]
        Order(True, True),
        None,
        Threshold(75, 0),
        Context(),  # type: ignore[arg-type]
        sync,
    )
    epoch.draw([f"key {number}" for number in range(keys)])
    epoch._claim_size._cost = 0.0
    job: Any = epoch.next_job(Worker())
    job.request(progress)
    return job, epoch


def failed(epoch: ProcessMapEpoch) -> list[int]:
    return [row for _, row, _ in epoch._failed]


def test_the_row_that_it_stays_in_fails_and_those_behind_it_are_given_away(
    clock: list[float],
) -> None:
    job, epoch = job_of(Progress(2, 100))
    looks = 0
    while not job.expire(5.0):
        clock[0] += 0.002
        looks += 1
        assert looks < 10
    assert failed(epoch) == [1]
    assert "'key 1' took longer than sample_timeout=5.0" in str(epoch._failed[0][2].unpack())
    # What it had finished and not told of is run again, and what it had not begun.
    returned = [(start, stop) for _, start, stop in epoch.feed._returned]
    assert sorted(returned) == [(0, 1), (2, 4)]


@pytest.mark.parametrize("looks", [(1, 1, 1, 1), (1, 2, 1, 100), (2, 2, 2, 2)])
def test_a_row_that_has_just_begun_does_not_fail_for_the_one_before(
    clock: list[float], looks: tuple[int, ...]
) -> None:
    progress = Progress(*looks)
    job, epoch = job_of(progress)
    for _ in range(3):
        before = progress.looks
        if job.expire(5.0):
            break
        clock[0] += 0.002
        assert progress.looks > before
    # If one has failed, it is one that was seen at least twice, with time in between. In the last
    # it stays.
    assert all(looks[row] >= 2 or row == len(looks) - 1 for row in failed(epoch))


def test_collating_is_no_row(clock: list[float]) -> None:
    job, epoch = job_of(Progress(0, 0, 0, 0, 100))
    for _ in range(5):
        assert not job.expire(5.0)
        assert not job.hand_off() or not failed(epoch)
        clock[0] += 0.002
    assert failed(epoch) == []


def test_it_is_not_believed_before_it_can_have_seen_the_request(clock: list[float]) -> None:
    progress = Progress(100)
    job, epoch = job_of(progress)
    assert not job.expire(5.0)
    clock[0] += 0.0005
    assert not job.expire(5.0)
    assert progress.asked == 1
    clock[0] += 0.0006
    assert job.expire(5.0)
    assert failed(epoch) == [0]


def test_a_hand_off_gives_away_what_is_behind_the_row(clock: list[float]) -> None:
    job, epoch = job_of(Progress(0, 100))
    assert not job.hand_off()
    clock[0] += 0.002
    assert job.hand_off()
    assert [(start, stop) for _, start, stop in epoch.feed._returned] == [(2, 4)]
    assert epoch.lanes.slow_running == 1


def test_one_that_says_it_is_slow_begins_no_other(clock: list[float]) -> None:
    """It has asked itself: the parent believes it at once."""
    progress = Progress(0, 100)
    job, epoch = job_of(progress)
    job.reply(Worker(), [Slow(1)])
    assert [(start, stop) for _, start, stop in epoch.feed._returned] == [(2, 4)]
    assert progress.asked == 0


class SlowRecord:
    """A worker's numbers; writing one of them takes as long as the test wants."""

    def __init__(self) -> None:
        self.numbers = [0.0] * (2 * RECORD)
        self.hold: threading.Event | None = None
        self.entered = threading.Event()

    def __getitem__(self, place: Any) -> Any:
        return self if isinstance(place, slice) else self.numbers[place]

    def __setitem__(self, place: int, value: float) -> None:
        self.numbers[place] = value
        if self.hold is not None:
            self.entered.set()
            assert self.hold.wait(30)


def test_a_fork_while_another_loader_asks_leaves_the_child_nothing_locked() -> None:
    record = SlowRecord()
    progress = Status(record, 0).expect(1)  # type: ignore[arg-type]
    record.hold = threading.Event()
    asks = threading.Thread(target=progress.stop)
    asks.start()
    assert record.entered.wait(30)
    pid = os.fork()
    if pid == 0:
        try:
            mine = Status(memoryview(bytearray(16 * RECORD)).cast("d"), 0)
            begun = mine.begin_row(0)
            mine.stop()
            os._exit(0 if begun and not mine.begin_row(1) else 2)
        finally:
            os._exit(1)
    ended = threading.Event()

    def wait() -> None:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        ended.set()

    waits = threading.Thread(target=wait)
    waits.start()
    try:
        assert ended.wait(30)
    finally:
        record.hold.set()
        if not ended.is_set():
            os.kill(pid, 9)
        waits.join()
        asks.join()
