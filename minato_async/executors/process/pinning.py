"""The thread that copies batches of worker processes to pinned memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from minato_async.engine.batch import Batch
from minato_async.errors import name_batch
from minato_async.executors.process.epoch_state import Done
from minato_async.sample.openmp import use_one_thread_here

_NAME = "minato-pin"


class PinThread:
    """Pins one batch after the other, in the process that has the accelerator and while its
    consumer is busy with others. Begins with the first batch; all of it is for the event loop."""

    def __init__(self, pin: Callable[[Any], Any]) -> None:
        self._pin = pin
        self._waiting: SimpleQueue[tuple[Batch, Any, Done] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._on_ended: Callable[[], None] | None = None

    def put(self, batch: Batch, content: Any, done: Done) -> None:
        """Have the packed `content` of `batch` unpacked and pinned, and `done` told in the end."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=_NAME, daemon=True)
            thread.start()
            # Not before: `end` would wait for a thread that could not be started.
            self._thread = thread
        self._waiting.put((batch, content, done))

    def end(self, on_ended: Callable[[], None]) -> None:
        """End after the batch that is being pinned; then `on_ended` is called, by any thread."""
        if self._thread is None:
            on_ended()
            return
        self._on_ended = on_ended
        self._waiting.put(None)

    def _run(self) -> None:
        use_one_thread_here()
        while (item := self._waiting.get()) is not None:
            if self._on_ended is None:  # else nobody waits for it
                self._finish(*item)
            del item
        assert self._on_ended is not None
        self._on_ended()

    def _finish(self, batch: Batch, content: Any, done: Done) -> None:
        pinned: Any = None
        failure: BaseException | None = None
        try:
            pinned = self._pin(content.unpack())
        except BaseException as error:
            failure = name_batch(error, batch.indices, (), _NAME)
        done(batch, pinned, failure)
        # Its traceback refers to this frame.
        del failure
