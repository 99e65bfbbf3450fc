"""The peak memory of a process and all its descendants, watched from outside."""

import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

METHOD = (
    "PSS summed over all processes of the loader and its training, so that a page shared "
    "between them counts once"
)
FALLBACK_METHOD = (
    "USS summed over all processes of the loader and its training, so that memory shared "
    "between them is left out"
)

# Looking at a process makes the kernel walk its pages and hold up its page faults. At most this
# share of a CPU's time goes into it, however much memory there is to look at.
_LOOKING_SHARE = 0.02
_LEAST_PAUSE = 0.05  # Seconds.


def can_see_shared_memory() -> bool:
    """Say whether this system tells how pages are shared; else `FALLBACK_METHOD` is used."""
    try:
        return "Pss_Anon:" in Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return False


def method() -> str:
    """Say for people what `PeakMemory` measures on this system."""
    return METHOD if can_see_shared_memory() else FALLBACK_METHOD


class PeakMemory:
    """Watches a process and its descendants in a thread of its own, between enter and exit."""

    def __init__(self, pid: int) -> None:
        """Watch a process.

        Args:
            pid: The root of the processes to watch.
        """
        self._root = psutil.Process(pid)
        self._look = _tree_pss if can_see_shared_memory() else _tree_uss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)
        self.peak = 0
        """Most bytes seen at one moment."""

    def __enter__(self) -> "PeakMemory":
        """Start to watch."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to watch, having looked at least once."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        ended = False
        while not ended:
            begin = time.thread_time()
            try:
                pids = [self._root.pid, *(p.pid for p in self._root.children(recursive=True))]
            except psutil.NoSuchProcess:
                return
            self.peak = max(self.peak, self._look(pids))
            pause = max(_LEAST_PAUSE, (time.thread_time() - begin) / _LOOKING_SHARE)
            ended = self._ended.wait(pause)


def _tree_pss(pids: Iterable[int]) -> int:
    """Return the bytes that some processes use together.

    Private and shared memory by PSS, whose shares add up to the truth, for nobody outside has
    part in them. Not so mapped files: any other process that runs torch, this one too, takes a
    share of its libraries, and the more so the fewer processes a loader has. So the files count
    as much as the one that maps most has in memory; the others map the same.
    """
    memory, files = 0, 0
    for pid in pids:
        try:
            rollup = _fields(Path(f"/proc/{pid}/smaps_rollup"))
            status = _fields(Path(f"/proc/{pid}/status"))
        except OSError:
            continue  # It has ended meanwhile.
        memory += rollup.get("Pss_Anon", 0) + rollup.get("Pss_Shmem", 0)
        files = max(files, status.get("RssFile", 0))
    return memory + files


def _fields(path: Path) -> dict[str, int]:
    """Return the fields of a file of /proc that are given in kB, in bytes."""
    fields: dict[str, int] = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if unit == "kB" and number.isdigit():
            fields[name] = int(number) * 1024
    return fields


def _tree_uss(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        try:
            total += int(psutil.Process(pid).memory_full_info().uss)
        except psutil.Error:
            continue  # It has ended meanwhile, or is not ours to see.
    return total
