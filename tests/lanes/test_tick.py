"""What the event loop asks of the system: nothing under the lock, nothing that nobody needs, and
without file objects."""

from __future__ import annotations

import builtins
import io
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minato_async import MinatoLoader
from minato_async.engine.batch import Batch
from minato_async.engine.counts import Counts
from minato_async.lifecycle.descriptors import KeptFile
from minato_async.scheduling import advice, cpus
from minato_async.scheduling.advice import Adviser, Observation
from minato_async.scheduling.cpus import IdleCores, idle_seconds
from minato_async.scheduling.schedulers import MEASURED, Reading, ThroughputScheduler
from tests.foreign import LockCheck, check

from .support import PATIENCE, Made, busy, flat, until, wait_for

__all__ = ["check"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells")


class Asked:
    """Counts what is asked of the system on the loop, by kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}

    def wrap(self, kind: str, function: Callable[..., Any], check: LockCheck) -> Any:
        def ask(*args: Any, **options: Any) -> Any:
            if threading.current_thread().name == "minato-loop":
                self.kinds[kind] = self.kinds.get(kind, 0) + 1
                if any(lock._is_owned() for lock in list(check._locks)):
                    check.found.append(f"{kind} under the lock")
            return function(*args, **options)

        return ask


@pytest.fixture
def asked(check: LockCheck, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    asked = Asked()
    for owner, name in (
        (os, "open"),
        (os, "read"),
        (os, "pread"),
        (os, "sched_getaffinity"),
        (time, "clock_gettime"),
        (time, "process_time"),
        (builtins, "open"),
        (io, "open"),
    ):
        kind = f"{owner.__name__}.{name}"
        monkeypatch.setattr(owner, name, asked.wrap(kind, getattr(owner, name), check))
    yield asked
    check("this test")
    files = {kind for kind in asked.kinds if kind in ("builtins.open", "io.open")}
    assert not files, "the loop has opened a file object"


def load(**options: Any) -> None:
    usual: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "collate_fn": list}
    loader = MinatoLoader(
        Made(400, lambda index: busy(0.003) or index),
        **(usual | {"timeout": PATIENCE} | options),
    )
    assert sorted(flat(loader)) == list(range(400))


class TestWhatIsAsked:
    @pytest.fixture(autouse=True)
    def advised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """There is nothing left to advise, for which idle cores would matter."""
        given = {topic: threading.Lock() for topic in advice._given}
        for lock in given.values():
            lock.acquire()
        monkeypatch.setattr(advice, "_given", given)

    def test_nothing_for_a_fixed_number_of_workers_in_order(self, asked: Asked) -> None:
        load(in_order=True)
        assert asked.kinds == {}

    def test_idle_cores_where_slow_samples_may_step_aside(self, asked: Asked) -> None:
        load(in_order=False, timeout_threshold=0.001)
        assert asked.kinds["os.pread"] >= 2

    @pytest.mark.parametrize("scheduler", ["throughput", "paper"])
    def test_for_a_scheduler_what_it_looks_at(self, asked: Asked, scheduler: str) -> None:
        load(in_order=True, scheduler=scheduler, max_workers=4)
        assert asked.kinds["time.clock_gettime"] >= 1
        reads_delays = asked.kinds.get("os.read", 0) > 0
        assert reads_delays == (scheduler == "throughput")

    def test_for_one_of_your_own_all_of_it_or_what_it_needs(self, check: LockCheck) -> None:
        check("this test")

        class Own:
            interval = 0.02

            def __init__(self) -> None:
                self.readings: list[Reading] = []

            def start(self) -> int:
                return 2

            def decide(self, reading: Reading) -> int:
                if any(lock._is_owned() for lock in check._locks):
                    check.found.append("decide under the lock")
                self.readings.append(reading)
                return 2

        class Frugal(Own):
            needs = frozenset(["cpu"])

        for scheduler, measured in ((Own(), MEASURED), (Frugal(), {"cpu"})):
            load(in_order=True, scheduler=scheduler, max_workers=2)
            last = scheduler.readings[-1]
            known = {name for name in MEASURED if not math.isnan(getattr(last, name))}
            assert known == measured


class TestHiddenProc:
    """Where /proc is not there, or not to be read."""

    @pytest.fixture(autouse=True)
    def hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: str, *args: Any, **options: Any) -> Any:
            if str(path).startswith("/proc"):
                raise PermissionError(path)
            return really(path, *args, **options)

        really = os.open
        monkeypatch.setattr(os, "open", refuse)

    @pytest.mark.parametrize("scheduler", ["fixed", "throughput", "paper"])
    @pytest.mark.parametrize("executor", ["thread", "process"])
    def test_everything_loads(self, scheduler: str, executor: str) -> None:
        load(scheduler=scheduler, max_workers=4, executor=executor, in_order=False)

    def test_idle_cores_are_not_known(self) -> None:
        cores = IdleCores()
        cores.INTERVAL = 0.0  # type: ignore[misc]
        assert [cores.look() for _ in range(3)] == [None] * 3
        cores.close()

    def test_a_reading_says_so(self) -> None:
        readings: list[Reading] = []

        class Own(ThroughputScheduler):
            needs = MEASURED

            def decide(self, reading: Reading) -> int:
                readings.append(reading)
                return super().decide(reading)

        load(scheduler=Own(2), max_workers=4)
        assert all(math.isnan(r.idle_cores) and math.isnan(r.delayed) for r in readings)
        assert any(r.cpu > 0.0 for r in readings)


class TestIdleSeconds:
    LINES = b"cpu  9 9 9 9 9\ncpu0 1 0 2 300 50 0\ncpu1 1 0 2 100 0 0\ncpu12 0 0 0 7 7 0\nintr 5\n"

    def test_of_the_cpus_that_are_allowed(self) -> None:
        tick = os.sysconf("SC_CLK_TCK")
        assert idle_seconds(self.LINES, {0}) == 350 / tick
        assert idle_seconds(self.LINES, {0, 1, 12}) == 464 / tick

    @pytest.mark.parametrize("lines", [b"", b"nonsense\n", b"cpu0 1 2\n", b"cpu1 1 0 2 100 0\n"])
    def test_unknown_where_the_counters_do_not_tell(self, lines: bytes) -> None:
        assert idle_seconds(lines, {0}) is None

    def test_a_machine_at_rest_has_idle_cores(self) -> None:
        cores = IdleCores()
        assert cores.look() is None  # too early
        until(lambda: cores.look() is not None)
        idle = cores.look()
        assert idle is not None
        assert 0.0 <= idle <= cpus.cpu_quota()
        cores.close()


def in_child(do: Callable[[], None]) -> None:
    """Fork, and have the child do it and nothing else."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class TestKeptFile:
    def test_it_is_read_anew_and_one_descriptor_is_kept(self) -> None:
        file = KeptFile("/proc/self/stat")
        before = len(os.listdir("/proc/self/fd"))
        assert file.read(100).split()[0] == str(os.getpid()).encode()
        assert file.read(7) == file.read(100)[:7]
        assert len(os.listdir("/proc/self/fd")) == before + 1
        file.close()
        file.close()
        assert len(os.listdir("/proc/self/fd")) == before
        with pytest.raises(ValueError, match="closed"):
            file.read(1)

    def test_a_fork_leaves_the_parents_and_closes_the_childs(self) -> None:
        file = KeptFile("/proc/stat")
        file.read(10)
        number = file._number

        def look() -> None:
            assert number is not None
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(number)
            reused = os.dup2(0, number)
            file.close()  # the number is somebody else's by now
            os.fstat(reused)

        in_child(look)
        assert file.read(4) == b"cpu "
        file.close()


def seen(now: float, waited: float, idle_cores: float | None = None, **other: Any) -> Observation:
    usual = {"delivered": int(now * 10), "workers": 2, "most": 2, "active": 2.0}
    nothing = {"temp_queue": 0, "in_flight": 8, "threshold": 0.1}
    return Observation(now, waited, **(usual | nothing | other), idle_cores=idle_cores)


class TestAdvice:
    @pytest.fixture(autouse=True)
    def a_new_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(advice, "_given", {topic: threading.Lock() for topic in advice._given})

    @staticmethod
    def after(observations: list[Observation]) -> list[str]:
        adviser = Adviser()
        return [a.text for o in observations for a in adviser.observe(o)]

    @pytest.mark.parametrize("consumers", [1, 2, 3])
    def test_nobody_waits_for_more_than_all_of_the_time(self, consumers: int) -> None:
        texts = self.after([seen(i / 2, consumers * i / 2, 0.0) for i in range(20)])
        assert texts
        assert all("waits for data 100% of the time" in text for text in texts)

    @pytest.mark.parametrize(
        ("idle_cores", "words"),
        [
            (None, "could not be measured"),
            (0.1, "No CPU is idle"),
            (1.3, "1.3 CPUs are idle"),
        ],
    )
    def test_it_depends_on_whether_cpus_are_idle(
        self, idle_cores: float | None, words: str
    ) -> None:
        texts = self.after([seen(i / 2, 0.9 * i / 2, idle_cores) for i in range(12)])
        assert all(words in text for text in texts)

    def test_each_kind_once_in_a_process(self, caplog: pytest.LogCaptureFixture) -> None:
        for _ in range(3):
            adviser = Adviser()
            for number in range(40):
                for found in adviser.observe(seen(number / 2, 0.9 * number / 2)):
                    found.give()
        assert len(caplog.messages) == 1

    def test_cores_are_looked_at_only_for_what_is_still_to_be_said(self) -> None:
        adviser = Adviser()
        adviser.observe(seen(0, 0))
        assert not adviser.minds_cores
        adviser.observe(seen(1, 0.9))
        assert adviser.minds_cores
        advice.Advice("loader", "said").give()
        adviser.observe(seen(2, 1.8))
        assert not adviser.minds_cores

    def test_a_wait_that_lasts_is_counted_as_it_goes(self) -> None:
        """Not with the batch that ends it, as if all of it had passed since the last look."""
        counts = Counts()
        counts.data_wait, counts.waits_since = 2.0, 10.0
        assert counts.waited(11.5) == 3.5
        counts.taken(Batch(1, 1), 1.5)
        assert counts.waited(12.0) == 3.5


def test_the_consumer_that_waits_is_seen_to() -> None:
    let_go = threading.Event()
    loader = MinatoLoader(Made(4, lambda index: wait_for(let_go) or index), num_workers=1)
    iterator: Any = iter(loader)
    thread = threading.Thread(target=lambda: next(iterator))
    thread.start()
    until(lambda: iterator._engine._counts.waits_since is not None)
    let_go.set()
    thread.join()
    assert iterator._engine._counts.waits_since is None
    iterator.close()
