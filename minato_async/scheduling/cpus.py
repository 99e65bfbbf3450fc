"""How many CPUs this process may use."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from minato_async.lifecycle.descriptors import KeptFile, read_file


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


def cpu_share() -> float:
    """CPUs that this process may count on: its quota, or its share of it where a launcher says in
    `LOCAL_WORLD_SIZE`, as torchrun does, that several ranks run on this machine. An affinity mask
    that is no larger than an equal share is taken for the rank's own."""
    try:
        ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except ValueError:
        ranks = 1
    cpus = min(float(usable_cpus()), (os.cpu_count() or 1) / ranks)
    return min([cpus, *(quota / ranks for quota in _cgroup_quotas())])


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
        lines = read_file("/proc/self/cgroup").decode(errors="replace").splitlines()
    except OSError:
        return set()
    return {line.split(":", 2)[2] for line in lines if line.startswith("0::") or ":cpu" in line}


def _quota(folder: Path) -> list[float]:
    """The quota that `folder` sets, in CPUs, if it sets one."""
    try:
        limit, period = read_file(f"{folder}/cpu.max").split()
    except (OSError, ValueError):
        try:
            limit = read_file(f"{folder}/cpu.cfs_quota_us").strip()
            period = read_file(f"{folder}/cpu.cfs_period_us").strip()
        except OSError:
            return []
    if limit in (b"max", b"-1"):
        return []
    return [int(limit) / int(period)]


#: The kinds of clock that hold what the scheduler counts, by Linux's own numbers.
_OF_THREAD, _OF_PROCESS = 6, 2


class IdleCores:
    """Estimates how many of the CPUs that this process may use have nothing to do.

    Made for the event loop, which asks while it holds no lock: it reads from a descriptor that it
    keeps from the first `look` to `close`.
    """

    #: Seconds between two readings of the counters, which tick every 10 ms.
    INTERVAL = 0.2
    #: Seconds after which what was read last tells nothing of now.
    _STALE = 2.0

    def __init__(self) -> None:
        self._quota = cpu_quota()
        self._stat = KeptFile("/proc/stat")
        #: When it was read last, the CPU seconds of this process then, and the idle ones of all.
        self._last: tuple[float, float, float | None] | None = None
        #: None where it is not known: too early, or the counters cannot be read here.
        self.idle: float | None = None

    def look(self) -> float | None:
        """CPUs idle over the last interval: no more than the machine left idle, and no more than
        the quota leaves to this process."""
        now = time.monotonic()
        if self._last is not None and now - self._last[0] < self.INTERVAL:
            return self.idle
        before, self._last = self._last, (now, time.process_time(), self._idle_seconds())
        self.idle = None if before is None else self._between(before, self._last)
        return self.idle

    def _between(
        self, before: tuple[float, float, float | None], after: tuple[float, float, float | None]
    ) -> float | None:
        seconds = after[0] - before[0]
        if before[2] is None or after[2] is None or seconds > self._STALE:
            return None
        unused = self._quota - (after[1] - before[1]) / seconds
        return max(0.0, min(unused, (after[2] - before[2]) / seconds))

    def _idle_seconds(self) -> float | None:
        """Seconds that the allowed CPUs have been idle, all together; None where nobody tells."""
        try:
            allowed = os.sched_getaffinity(0)
            # A line for each CPU comes first, none of them longer.
            counters = self._stat.read((max(allowed) + 2) * 256)
            return idle_seconds(counters, allowed)
        except (AttributeError, OSError):
            return None

    def close(self) -> None:
        self._stat.close()


def idle_seconds(counters: bytes, allowed: set[int]) -> float | None:
    """Seconds that the `allowed` CPUs have been idle, all together, by what the kernel counts in
    /proc/stat; None if it does not tell of each of them, as in some containers."""
    found, ticks = 0, 0
    for line in counters.splitlines():
        name, *fields = line.split()[:6] or [b""]
        if name.startswith(b"cpu") and name[3:].isdigit() and int(name[3:]) in allowed:
            if len(fields) < 5:
                return None
            found += 1
            # user nice system idle iowait ...: a CPU that waits for I/O can do other work.
            ticks += int(fields[3]) + int(fields[4])
    return ticks / os.sysconf("SC_CLK_TCK") if found and found == len(allowed) else None


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


def worker_delay_seconds(native_id: int) -> float | None:
    """Seconds that a worker, by its kernel id, was ready to run and had no core; None if it has
    ended, or where Linux does not tell."""
    try:
        # Nanoseconds on a core, nanoseconds ready, turns.
        return int(read_file(f"/proc/{native_id}/schedstat").split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return None
