"""How many threads one operator may use, set for the calling thread alone."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from minato_async.lifecycle.descriptors import read_file

_OPENMP_NAMES = ("libgomp", "libiomp5", "libomp")
_MKL_NAMES = ("libtorch_cpu", "libmkl_rt")

#: Has the attribute `alone` in threads that called `use_one_thread_here`.
_this_thread = threading.local()


def use_one_thread_here() -> None:
    """Let torch's operators in the calling thread run on this thread alone.

    Workers already are as many as there are cores to use: each of them with a team of OpenMP
    threads would have them all fight. `torch.set_num_threads` would do it, but it also changes
    what threads started later begin with, and what MKL does in all of them. OpenMP's own setting
    belongs to the thread that makes it (OpenMP 5.0, section 2.5.2, nthreads-var), and MKL has one
    that does, so the training thread keeps its own.
    """
    # The first call in a thread makes torch apply its own setting, which would undo ours later.
    torch.get_num_threads()
    _this_thread.alone = True
    _set_here(1)


def find_libraries() -> None:
    """Look for what sets the number of threads: it takes milliseconds, and workers that start
    together, or are forked, would each look for themselves."""
    _setters()


def _set_here(number: int) -> None:
    for set_here in _setters():
        set_here(number)


_found: list[Callable[[int], object]] | None = None


def _setters() -> list[Callable[[int], object]]:
    # Not by `functools.cache`: on free-threaded Python it holds a lock meanwhile, which a process
    # that another thread forks would find locked for ever.
    global _found
    if _found is None:
        openmp = _libraries(_OPENMP_NAMES, "omp_set_num_threads")
        # Once `torch.set_num_threads` has been called, MKL looks at OpenMP's setting no more.
        mkl = _libraries(_MKL_NAMES, "MKL_Set_Num_Threads_Local")
        _found = [
            *(library.omp_set_num_threads for library in openmp),
            *(library.MKL_Set_Num_Threads_Local for library in mkl),
        ]
    return _found


def _libraries(names: tuple[str, ...], function: str) -> list[ctypes.CDLL]:
    """The libraries of these names that are loaded into this process, if they have `function`.
    There may be several: more than one package brings an OpenMP runtime."""
    try:
        maps = os.fsdecode(read_file("/proc/self/maps"))
    except OSError:  # not Linux, or hidden
        paths = {str(path) for path in Path(torch.__file__).parent.glob("lib/lib*")}
    else:
        paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/" in line}
    libraries = []
    for path in sorted(paths):
        if os.path.basename(path).startswith(names):
            # One whose file is gone since, by an upgrade, cannot be named; another that has come
            # in its place must not be loaded beside it.
            with contextlib.suppress(OSError):
                library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
                if hasattr(library, function):
                    libraries.append(library)
    return libraries


_set_num_threads = torch.set_num_threads


@functools.wraps(_set_num_threads)
def _set_num_threads_of_worker(number: int) -> None:
    if getattr(_this_thread, "alone", False) and type(number) is int and number > 0:
        _set_here(number)
    else:
        _set_num_threads(number)


# A `worker_init_fn` that calls it means its own worker, not the training thread.
torch.set_num_threads = _set_num_threads_of_worker  # type: ignore[assignment]
