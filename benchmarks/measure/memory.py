"""Resident memory of this process, and of it with its children. All results in bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

MB = 1_000_000
"""One megabyte, in bytes."""


@dataclass(frozen=True)
class Memory:
    """``rss``: resident set; ``pss``: the same with shared pages divided among their users;
    ``unshared``: that without what lies in shared memory and tmpfs."""

    rss: int
    pss: int
    unshared: int


def of_process(pid: int) -> Memory:
    """The memory of one process, from the kernel's own sums."""
    values = {"Rss": 0, "Pss": 0, "Pss_Shmem": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in values:
            values[key] = int(rest.split()[0]) * 1024
    return Memory(values["Rss"], values["Pss"], values["Pss"] - values["Pss_Shmem"])


def of_tree() -> Memory:
    """The sums over this process and its worker processes; meaningful for ``pss`` above all."""
    pids = [os.getpid()]
    pids += [child.pid for child in psutil.Process().children(recursive=True)]
    parts = [of_process(pid) for pid in pids]
    return Memory(
        sum(part.rss for part in parts),
        sum(part.pss for part in parts),
        sum(part.unshared for part in parts),
    )
