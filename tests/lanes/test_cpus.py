"""What is known of the CPUs, and of the workers on them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from minato_async.scheduling import cpus
from minato_async.scheduling.cpus import cpu_quota, cpu_share, worker_delay_seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """64 CPUs, all of them usable."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(cpus, "usable_cpus", lambda: 64)
    monkeypatch.setattr(cpus, "_cgroup_quotas", list)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return monkeypatch


def test_one_process_has_all_that_it_may_use(machine: pytest.MonkeyPatch) -> None:
    assert cpu_share() == cpu_quota() == 64
    machine.setattr(cpus, "_cgroup_quotas", lambda: [12.0])
    assert cpu_share() == cpu_quota() == 12


@pytest.mark.parametrize(
    ("usable", "quotas", "share"),
    [
        (64, [], 16),  # nobody has divided them
        (64, [12.0], 3),  # a container with all ranks in it
        (16, [], 16),  # bound to cores of its own
        (10, [], 10),
        (40, [], 16),
    ],
)
def test_each_of_four_ranks_has_its_share(
    machine: pytest.MonkeyPatch, usable: int, quotas: list[float], share: float
) -> None:
    machine.setenv("LOCAL_WORLD_SIZE", "4")
    machine.setattr(cpus, "usable_cpus", lambda: usable)
    machine.setattr(cpus, "_cgroup_quotas", lambda: quotas)
    assert cpu_share() == share


@pytest.mark.parametrize("nonsense", ["", "many", "0", "-2"])
def test_what_is_no_number_of_ranks_is_one(machine: pytest.MonkeyPatch, nonsense: str) -> None:
    machine.setenv("LOCAL_WORLD_SIZE", nonsense)
    assert cpu_share() == 64


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells")
class TestDelay:
    def test_of_a_thread_that_shares_one_core(self) -> None:
        """Two threads that take turns on one core: each waits for it about as long as it runs."""
        found: list[float | None] = []

        def spin() -> None:
            core = min(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {core})  # of this thread
            both.wait()
            while (delay := worker_delay_seconds(threading.get_native_id())) == 0.0:
                sum(range(10_000))
            found.append(delay)

        both = threading.Barrier(2)
        threads = [threading.Thread(target=spin) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(delay is not None and delay > 0.0 for delay in found)

    def test_of_a_worker_that_has_ended(self) -> None:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        assert worker_delay_seconds(ended.pid) is None
