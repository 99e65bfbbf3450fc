"""Resident memory of a process, and of it with its children. All results in bytes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import psutil

MB = 1_000_000
"""One megabyte, in bytes."""

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


@dataclass(frozen=True)
class Memory:
    """``rss``: resident set; ``pss``: the same with shared pages divided among their users, of
    which ``anonymous`` are no file's and ``shared`` lie in shared memory and tmpfs; ``files``: what
    of the resident set is mapped from files."""

    rss: int
    pss: int
    anonymous: int
    shared: int
    files: int

    @property
    def unshared(self) -> int:
        """``pss`` without what lies in shared memory and tmpfs."""
        return self.pss - self.shared


def of_process(pid: int) -> Memory:
    """The memory of one process, from the kernel's own sums; `OSError` if it has ended."""
    rollup = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    return Memory(
        rss=rollup["Rss"],
        pss=rollup["Pss"],
        anonymous=rollup.get("Pss_Anon", 0),
        shared=rollup.get("Pss_Shmem", 0),
        files=_fields(Path(f"/proc/{pid}/status")).get("RssFile", 0),
    )


def of_tree() -> Memory:
    """The sums over this process and its worker processes; meaningful for ``pss`` above all."""
    parts = [astuple(of_process(pid)) for pid in _tree(psutil.Process())]
    return Memory(*map(sum, zip(*parts, strict=True)))


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
    """The most bytes that a process and its descendants use at one moment, in ``peak``."""

    def __init__(self) -> None:
        self.peak = 0

    @contextlib.contextmanager
    def watch(self, pid: int) -> Iterator[None]:
        """Within this a thread looks at the process now and then, and at least once."""
        ended = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(pid, ended), name="peak memory", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _watch(self, pid: int, ended: threading.Event) -> None:
        look = _together if can_see_shared_memory() else _unique
        last = False
        while not last:
            begin = time.thread_time()
            try:
                pids = _tree(psutil.Process(pid))
            except psutil.NoSuchProcess:
                return
            self.peak = max(self.peak, look(pids))
            pause = max(_LEAST_PAUSE, (time.thread_time() - begin) / _LOOKING_SHARE)
            last = ended.wait(pause)


def _tree(root: Any) -> list[int]:
    return [root.pid, *(child.pid for child in root.children(recursive=True))]


def _together(pids: Iterable[int]) -> int:
    """Bytes that some processes use together.

    Private and shared memory by PSS, whose shares add up to the truth, for nobody outside has
    part in them. Not so mapped files: any other process that runs torch, this one too, takes a
    share of its libraries, and the more so the fewer processes a loader has. So the files count
    as much as the one that maps most has in memory; the others map the same.
    """
    memory, files = 0, 0
    for pid in pids:
        # It may have ended meanwhile.
        with contextlib.suppress(OSError):
            found = of_process(pid)
            memory += found.anonymous + found.shared
            files = max(files, found.files)
    return memory + files


def _unique(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        # It may have ended meanwhile, or not be ours to see.
        with contextlib.suppress(psutil.Error):
            total += int(psutil.Process(pid).memory_full_info().uss)
    return total


def _fields(path: Path) -> dict[str, int]:
    """The fields of a file of /proc that are given in kB, in bytes."""
    fields: dict[str, int] = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if unit == "kB" and number.isdigit():
            fields[name] = int(number) * 1024
    return fields
