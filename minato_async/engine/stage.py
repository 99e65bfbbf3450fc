"""The stage between collating and delivering: what else is done with a batch, such as pinning it,
before the consumer gets it.

Batches enter when they are collated and keep the turns that they have in the batch queue. A thread
of the stage's own works on one at a time: not a worker, whose next sample would have to wait, nor
the event loop, nor the consumer.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable
from typing import Any, Protocol

from minato_async.checkpoint import SampleCancelled
from minato_async.engine.batch import Batch
from minato_async.engine.bell import Bell, DueBells
from minato_async.engine.sizes import nbytes
from minato_async.errors import name_batch
from minato_async.lifecycle.interrupt import interrupt

NAME = "minato-stage"

#: As workers do, see `engine.engine`: else batches that this thread has made stay in memory.
_BREATH = 0.5 if sysconfig.get_config_var("Py_GIL_DISABLED") else None


class StageWork(Protocol):
    """What is done with each batch. Called by one thread at a time."""

    @property
    def doing(self) -> str:
        """What is being done, or was done last, for error messages: "pinning", say."""

    def __call__(self, batch: Batch, content: Any) -> Any:
        """What the consumer gets for the `content` of `batch`. What this raises is the batch's
        failure."""

    def rest(self) -> None:
        """For the moment there is no other batch to be worked on; or there will be none any more.
        Called by the same thread, which may be made to wait."""


class Stage:
    """The batches of one epoch that are in the stage, as plain state: the caller of every method
    holds the engine's lock.

    `bound`: a batch is begun only if fewer than so many others, begun or not, come to the consumer
    before it. So what is done and not taken is bounded, and the batch that is due always has its
    place. None: there is no bound but the window. Each of several consumers has a bound of its own.
    """

    def __init__(self, work: StageWork, bound: int | None, wake: Callable[[], None]) -> None:
        self.work = work
        self._bound = sys.maxsize if bound is None else bound
        self._wake = wake
        self._waiting: list[Batch] = []
        #: Batches begun and not taken by the consumer: the bytes of what they have become, None as
        #: long as they are worked on.
        self._begun: dict[Batch, int | None] = {}

    def enter(self, batch: Batch) -> None:
        """`batch` is collated."""
        self._waiting.append(batch)
        self._wake()

    def next(self, ahead_of: Callable[[Batch, int], int]) -> Batch | None:
        """The batch to work on now; None: none may be begun. `ahead_of`: see `Loading`."""
        begun = len(self._begun)
        ahead = [ahead_of(batch, begun) for batch in self._waiting]
        if not ahead or min(ahead) >= self._bound:
            return None
        # Of several, the one that entered first.
        batch = self._waiting.pop(ahead.index(min(ahead)))
        self._begun[batch] = None
        return batch

    def done(self, batch: Batch, size: int) -> None:
        """`batch` has been worked on, and holds `size` bytes."""
        if batch in self._begun:  # else nobody waits for it any more
            self._begun[batch] = size

    def taken(self, batch: Batch) -> None:
        """The consumer has taken `batch`: another may have its place."""
        self._begun.pop(batch, None)
        if self._waiting:
            self._wake()

    @property
    def pending(self) -> int:
        """Batches that are yet to be worked on, or being worked on."""
        return len(self._waiting) + sum(size is None for size in self._begun.values())

    @property
    def begun(self) -> int:
        """Batches begun and not taken."""
        return len(self._begun)

    @property
    def worked_on(self) -> Batch | None:
        """The batch that is being worked on."""
        return next((batch for batch, size in self._begun.items() if size is None), None)

    def begun_for(self, consumer: int) -> int:
        """Batches begun for this one of several consumers, and not taken."""
        return sum(batch.consumer == consumer for batch in self._begun)

    @property
    def nbytes(self) -> int:
        """Bytes of those that are done and not taken."""
        return sum(size or 0 for size in self._begun.values())

    def clear(self) -> list[Batch]:
        """Forget what waits, and return it."""
        waiting, self._waiting = self._waiting, []
        self._begun.clear()
        return waiting


class Staging(Protocol):
    """What the stage's thread has to know of an epoch. Under the engine's lock."""

    @property
    def stage(self) -> Stage | None: ...

    def ahead_of(self, batch: Batch, begun: int) -> int: ...

    def stage_begins(self, batch: Batch) -> None: ...

    def staged(self, batch: Batch, content: Any, failure: BaseException | None) -> None: ...


class StageThread:
    """Works on the batches of one epoch after the other, from the engine's start to its end."""

    def __init__(
        self,
        lock: threading.RLock,
        due: DueBells,
        on_failed: Callable[[BaseException], None],
        on_ended: Callable[[], None],
    ) -> None:
        # The engine's lock, which guards `_loading`, `_idle` and `_closed`.
        self._lock = lock
        self._due = due
        self._bell = Bell()
        self._loading: Staging | None = None
        self._idle = False
        self._closed = False
        #: What has worked since it was last told to rest. The thread's own.
        self._working: StageWork | None = None
        self._on_failed, self._on_ended = on_failed, on_ended
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def start(self) -> None:
        """Raises RuntimeError where no thread can be started."""
        self._thread.start()

    def work_for(self, loading: Staging | None) -> None:
        """From now on, work on the batches of `loading`. The caller holds the lock."""
        self._due.drop(self._loading)
        self._loading = loading
        self.wake()

    def wake(self) -> None:
        """There may be something to do. The caller holds the lock."""
        if self._idle:
            self._idle = False
            self._due.add(self._bell)

    def close(self) -> None:
        """End after the batch that is being worked on. The caller holds the lock."""
        self._closed = True
        self.work_for(None)

    def join(self, timeout: float) -> bool:
        """After it was started: wait up to `timeout` seconds for its end."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def interrupt(self) -> None:
        """As `Executor.interrupt`."""
        interrupt(self._thread)

    def _run(self) -> None:
        try:
            while self._work():
                while not self._bell.wait(_BREATH):
                    pass
        except SampleCancelled:
            pass  # interrupted at interpreter exit
        except BaseException as error:
            self._on_failed(error)
        finally:
            ended = self._on_ended
            # They refer to the engine: without the circle both are freed together.
            del self._on_ended, self._on_failed
            ended()

    def _work(self) -> bool:
        """Work on all that there is. False: the engine is closed."""
        while True:
            with self._lock:
                loading, batch = self._loading, None
                stage = None if loading is None else loading.stage
                if loading is not None and stage is not None:
                    batch = stage.next(loading.ahead_of)
                    if batch is not None:
                        loading.stage_begins(batch)
                    content = None if batch is None else batch.take_content()
                self._idle = batch is None
                closed = self._closed
            working = self._working
            if working is not None and (
                batch is None or stage is None or stage.work is not working
            ):
                working.rest()
                self._working = working = None
                if batch is None:
                    continue  # another may have come meanwhile
            if batch is None or loading is None or stage is None:
                # Whoever holds the lock frees nothing, nor does the loop.
                self._due.free()
                return not closed
            self._working = stage.work
            self._finish(loading, stage, batch, content)
            del loading, stage, batch, content, working

    def _finish(self, loading: Staging, stage: Stage, batch: Batch, content: Any) -> None:
        result: Any = None
        failure: BaseException | None = None
        size = 0
        try:
            result = stage.work(batch, content)
            size = nbytes(result)
        except BaseException as error:
            if isinstance(error, SampleCancelled) and self._closed:
                raise
            failure = name_batch(error, batch.indices, (), NAME, stage.work.doing)
        with self._lock:
            stage.done(batch, size)
            loading.staged(batch, result, failure)
        self._due.ring()
        # Its traceback refers to this frame.
        del failure
