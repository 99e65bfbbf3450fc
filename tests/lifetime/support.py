"""Datasets that hold their samples back, and ways to look at what a loader leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import psutil

from minato_async import share
from tests.threads import wait_for_threads

#: Seconds after which a wait that should have ended long ago fails its test.
PATIENCE = 30.0


class Gate:
    """Makes samples, each its own index, of which only those that were let go are returned.

    Counts the calls that began and those that are inside, and waits for either.
    """

    #: The gates of the running test, which lets all go in the end, even if it has failed.
    made: ClassVar[list[Gate]] = []

    def __init__(self, free: Iterable[int] = ()) -> None:
        share(self)
        self.made.append(self)
        self.calls: Counter[int] = Counter()
        self.inside = 0
        self._free = set(free)
        self._all_free = False
        self._changed = threading.Condition()

    def __call__(self, index: int) -> int:
        with self._changed:
            self.calls[index] += 1
            self.inside += 1
            self._changed.notify_all()
            let_go = self._changed.wait_for(lambda: self._all_free or index in self._free, PATIENCE)
            self.inside -= 1
            self._changed.notify_all()
        assert let_go, f"nobody let go of {index}"
        return index

    @property
    def started(self) -> int:
        """Calls so far, for whatever index."""
        with self._changed:
            return self.calls.total()

    def let_go(self, *indices: int) -> None:
        """Return the samples of `indices`, now or when they are asked for; none given: all."""
        with self._changed:
            self._free.update(indices)
            self._all_free = self._all_free or not indices
            self._changed.notify_all()

    def wait_until(self, what: Callable[[Gate], bool]) -> None:
        """Wait for `what` to be true; it is asked anew whenever a call begins or returns."""
        with self._changed:
            assert self._changed.wait_for(lambda: what(self), PATIENCE), dict(self.calls)

    def wait_for_calls(self, *indices: int) -> None:
        self.wait_until(lambda self: self.calls.keys() >= set(indices))


class Samples:
    """A dataset of `n` samples, each what `make` returns for its index.

    Each worker has a shallow copy of it, so what is counted belongs into `make`.
    """

    def __init__(self, n: int, make: Callable[[int], Any] = lambda index: index) -> None:
        self.n = n
        self.make = make

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("minato-")]


def started_threads(count: int) -> list[threading.Thread]:
    """Our threads, once there are `count` of them: workers start after `iter()` has returned."""
    assert eventually(lambda: len(our_threads()) >= count), our_threads()
    threads = our_threads()
    assert len(threads) == count
    return threads


def wait_for_end(threads: Iterable[threading.Thread]) -> None:
    """Wait for `threads` to end by themselves."""
    assert wait_for_threads(threads, PATIENCE) == []


def all_ours_end() -> None:
    """Wait for all of our threads to end, those included that are yet to start."""
    assert eventually(lambda: not our_threads()), our_threads()


def eventually(what: Callable[[], bool]) -> bool:
    """Whether `what` comes true. For what gives no event to wait for."""
    pause = threading.Event()
    # Looks are counted, and not seconds, which pass for processes that are stopped, too.
    return any(what() or pause.wait(0.001) for _ in range(round(PATIENCE / 0.001)))


def eventually_collected(what: Callable[[], bool]) -> bool:
    """As `eventually`, for what the collector brings about: a thread that is at work may keep for
    a moment what is garbage after it."""
    pause = threading.Event()
    return any((gc.collect() >= 0 and what()) or pause.wait(0.05) for _ in range(200))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared_memory() -> set[str]:
    """What lies in shared memory, put there by any process of the machine: but for semaphores,
    which `multiprocessing` has there as long as a process that others spawned has use for them."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def stays_in_shared_memory(before: set[str]) -> set[str]:
    """What was not there `before` and does not go by itself, as what others put there does."""
    new = shared_memory() - before
    eventually(lambda: not new & shared_memory())
    return new & shared_memory()


def child_processes() -> int:
    return len(psutil.Process().children(recursive=True))


def resident() -> int:
    """Bytes of memory that this process holds, without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rss: int = psutil.Process().memory_info().rss
    return rss


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Within this, only reference counts free memory."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_thread(function: Callable[[], Any], name: str = "helper") -> threading.Thread:
    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    return thread


def as_list(samples: list[Any]) -> list[Any]:
    """A collate function that leaves the samples as they are."""
    return list(samples)
