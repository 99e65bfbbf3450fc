"""How many threads one operator may use, set for the calling thread alone."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import torch

_OPENMP_NAMES = ("libgomp", "libiomp5", "libomp")


def use_one_thread_here() -> None:
    """Let torch's operators in the calling thread run on this thread alone.

    Workers already are as many as there are cores to use: each of them with a team of OpenMP
    threads would have them all fight. `torch.set_num_threads` would do it, but it also changes
    what threads started later begin with; OpenMP's own setting belongs to the thread that makes
    it (OpenMP 5.0, section 2.5.2, nthreads-var), so the training thread keeps its own.
    """
    # The first call in a thread makes torch apply its own setting, which would undo ours later.
    torch.get_num_threads()
    for library in _openmp_libraries():
        library.omp_set_num_threads(1)


@cache
def _openmp_libraries() -> list[ctypes.CDLL]:
    """The OpenMP runtimes loaded into this process: several packages bring one."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # not Linux
        candidates = Path(torch.__file__).parent.glob("lib/lib*omp*")
        paths = {str(path) for path in candidates}
    else:
        paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/" in line}
    libraries = []
    for path in sorted(paths):
        if os.path.basename(path).startswith(_OPENMP_NAMES):
            library = ctypes.CDLL(path)
            if hasattr(library, "omp_set_num_threads"):
                libraries.append(library)
    return libraries
