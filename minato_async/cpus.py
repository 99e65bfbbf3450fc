"""How many CPUs this process may use."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path


def usable_cpus() -> int:
    """CPUs on which this process may run, by its affinity mask."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def cpu_quota() -> float:
    """CPUs that this process may use: what its affinity mask and its cgroup allow, not what the
    machine has.

    The cgroup's quota is the smallest along the path from its group to the root (Linux control
    groups v2, `cpu.max`: microseconds of CPU in each period of microseconds), or that of v1.
    """
    return min([float(usable_cpus()), *_cgroup_quotas()])


def _cgroup_quotas(root: Path = Path("/sys/fs/cgroup")) -> list[float]:
    # A set, for most controllers have the same groups, and this is part of what the user waits for
    # when an epoch begins.
    folders = {root}
    for relative in _cgroup_paths():
        group = root / relative.lstrip("/")
        folders.update(folder for folder in group.parents if folder.is_relative_to(root))
        folders.add(group)
    return [quota for folder in folders for quota in _quota(folder)]


def _cgroup_paths() -> set[str]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return set()
    return {line.split(":", 2)[2] for line in lines if line.startswith("0::") or ":cpu" in line}


def _quota(folder: Path) -> list[float]:
    """The quota that `folder` sets, in CPUs, if it sets one."""
    try:
        limit, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return []
    if limit in ("max", "-1"):
        return []
    return [int(limit) / int(period)]


#: The kinds of clock that hold what the scheduler counts, by Linux's own numbers.
_OF_THREAD, _OF_PROCESS = 6, 2


class IdleCores:
    """Estimates how many of the CPUs that this process may use have nothing to do."""

    #: Seconds between two readings of the counters, which tick every 10 ms.
    INTERVAL = 0.2

    def __init__(self) -> None:
        self.quota = cpu_quota()
        self._last = (time.monotonic(), time.process_time(), _idle_seconds())
        self.idle = 0.0

    def look(self) -> float:
        """CPUs idle over the last interval: no more than the machine left idle, and no more than
        the quota leaves to this process."""
        before, used_before, idle_before = self._last
        now = time.monotonic()
        seconds = now - before
        if seconds >= self.INTERVAL:
            used, idle = time.process_time(), _idle_seconds()
            self._last = (now, used, idle)
            unused = self.quota - (used - used_before) / seconds
            if idle is not None and idle_before is not None:
                unused = min(unused, (idle - idle_before) / seconds)
            self.idle = max(0.0, unused)
        return self.idle


def _idle_seconds() -> float | None:
    """Seconds that the allowed CPUs have been idle, all together; None where nobody counts."""
    try:
        allowed = os.sched_getaffinity(0)
        lines = Path("/proc/stat").read_text().splitlines()
    except (AttributeError, OSError):
        return None
    ticks = 0
    for line in lines:
        name, _, counters = line.partition(" ")
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed:
            # user nice system idle iowait ...: a CPU that waits for I/O can do other work.
            fields = counters.split()
            ticks += int(fields[3]) + int(fields[4])
    return ticks / os.sysconf("SC_CLK_TCK")


def worker_cpu_seconds(native_id: int) -> float | None:
    """CPU time of a worker by its kernel id: of a thread of this process, or of another process;
    None if it has ended, or elsewhere than on Linux.

    The clock's number is made of the thread's id as Linux defines it (posix-timers.h: the
    complement of the id, shifted by three, with the bits for "per thread" and "scheduler's own
    clock"). `time.pthread_getcpuclockid` would read freed memory for a thread that has ended.
    """
    if sys.platform != "linux":
        return None
    for kind in (_OF_THREAD, _OF_PROCESS):
        with contextlib.suppress(OSError):
            return time.clock_gettime((~native_id << 3) | kind)
    return None
