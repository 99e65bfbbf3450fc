"""Brings the process to the same quiet state before every run.

A process that forks while threads run is a hazard, and a loader that still closes steals time from
the next one. So before each run the garbage is collected, and threads and child processes of the
run before are waited for, in bounded time. What does not end is reported, not hidden. torch's own
intra-operator threads are no Python threads and stay, as in any training script; its worker
processes never use them.
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time

import torch

PATIENCE = 2.0
"""Seconds to wait in all for threads and processes that are ending."""


class Settler:
    """Remembers what was there at the start, and what would not end."""

    def __init__(self) -> None:
        self._tolerated: set[threading.Thread] = set(threading.enumerate())
        # torchdata.nodes calls torch.set_num_threads(1) in its workers, which is also what new
        # threads start with from then on: put back what the user had.
        self._torch_threads = torch.get_num_threads()

    def settle(self) -> list[str]:
        """Wait for what is ending; returns the names of threads and processes that stay.

        Each is named once: from then on it counts as being there.
        """
        gc.collect()
        torch.set_num_threads(self._torch_threads)
        deadline = time.monotonic() + PATIENCE
        stay: list[str] = []
        for thread in threading.enumerate():
            if thread in self._tolerated or thread is threading.current_thread():
                continue
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._tolerated.add(thread)
                stay.append(f"thread {thread.name}")
        for process in multiprocessing.active_children():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                stay.append(f"process {process.name}")
        return stay
