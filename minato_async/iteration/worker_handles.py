"""What stands for a worker where libraries ask torch's iterator for its processes."""

from __future__ import annotations

from typing import Protocol


class Workers(Protocol):
    """The workers of one iterator, all together."""

    def process_id(self, number: int) -> int | None: ...

    def terminate(self) -> None: ...

    def join(self, timeout: float | None = None) -> bool: ...


class WorkerHandle:
    """Worker `number` of an iterator, as a `multiprocessing.Process` or so.

    Workers come and go while a loader loads, so a handle stands for a place that one of them has.
    They end all together: a worker that alone has died is replaced.
    """

    def __init__(self, workers: Workers, number: int) -> None:
        self._workers = workers
        self.name = f"minato-worker-{number}"
        self._number = number

    @property
    def pid(self) -> int | None:
        """The worker's process, None before it was started; for a thread None, since nothing may
        be done to it that is done to processes."""
        return self._workers.process_id(self._number)

    def is_alive(self) -> bool:
        """Whether workers may still run."""
        return not self._workers.join(0)

    def terminate(self) -> None:
        """Ask all workers of the iterator to end. `next()` then raises RuntimeError."""
        self._workers.terminate()

    kill = terminate

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of all workers, up to `timeout` seconds; None: as long as it takes."""
        self._workers.join(timeout)
