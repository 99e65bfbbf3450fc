"""Which worker thread has which replica, and when `worker_init_fn` has run for it."""

from __future__ import annotations

import threading
from typing import Any

from minato_async.replicas.replica import Code, Replica


class ReplicaPool:
    """The replicas of one loader that no worker has, one for each number of a worker.

    They outlive the workers: what a worker has cached is there in the next epoch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, Replica] = {}

    def take(self, number: int) -> Replica | None:
        with self._lock:
            return self._free.pop(number, None)

    def put_back(self, number: int, replica: Replica) -> None:
        with self._lock:
            self._free.setdefault(number, replica)

    def __reduce__(self) -> tuple[Any, ...]:
        # A loader that is copied or pickled gets replicas of its own.
        return ReplicaPool, ()


class WorkerReplicas:
    """The replicas of the workers of one iterator. `worker_init_fn` runs once for each number of a
    worker, also where threads come and go and several have one number in turn."""

    def __init__(self, pool: ReplicaPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._begun: set[int] = set()
        #: By the number of a worker: its replica as `worker_init_fn` left it.
        self._initialised: dict[int, Replica] = {}

    def take(self, number: int, code: Code) -> tuple[Replica, bool]:
        """A replica for the calling thread, the worker of that `number`, and whether
        `worker_init_fn` is to run: then `initialised` must follow."""
        with self._lock:
            first = number not in self._begun
            self._begun.add(number)
            initialised = self._initialised.get(number)
        replica = self._pool.take(number)
        if replica is not None and replica.is_of(code):
            replica.let_go_of_thread()
            replica.refresh()
        elif initialised is None or not initialised.is_of(code):
            replica = Replica(code, number)
        else:
            # The first one is in the hands of a thread that is parked or stuck.
            with self._lock:
                initialised.refresh()
                replica = initialised.fork()
        return replica, first and code.worker_init_fn is not None

    def initialised(self, number: int, replica: Replica) -> None:
        """`worker_init_fn` has run in `replica`, and no sample yet."""
        copy = replica.fork()
        with self._lock:
            self._initialised[number] = copy

    def failed(self, number: int) -> None:
        """`worker_init_fn` has raised: the next to come runs it again."""
        with self._lock:
            self._begun.discard(number)

    def put_back(self, number: int, replica: Replica) -> None:
        """The worker of that `number` has ended."""
        self._pool.put_back(number, replica)
