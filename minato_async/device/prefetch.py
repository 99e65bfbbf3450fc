"""The prefetch: moves batches to one device, on a stream of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minato_async.device.backend import Backend, Mark
from minato_async.device.structure import moved, tensors_in


@dataclass(frozen=True)
class Copies:
    """What a prefetch has copied so far."""

    #: Batches, and bytes of their tensors.
    batches: int = 0
    nbytes: int = 0
    #: Seconds that the device spent copying, and copying and `device_transform` together.
    seconds: float = 0.0
    busy: float = 0.0
    #: Batches that were not on the device yet when the consumer took them, and seconds for which
    #: the consumer's stream had to wait for those.
    waits: int = 0
    waited: float = 0.0


@dataclass(frozen=True)
class _Marks:
    """In the prefetch's stream: the copy of a batch begins, is made, the batch is ready."""

    begun: Mark
    copied: Mark
    ready: Mark


class OnDevice:
    """A batch on its way to the device. Whoever drops it without having taken it need not wait:
    its memory belongs to the prefetch's stream."""

    def __init__(self, content: Any, copied: int, marks: _Marks, prefetch: Prefetch) -> None:
        self._content = content
        #: Bytes of its tensors.
        self.nbytes = _nbytes(content)
        self._copied = copied
        self._marks = marks
        self._prefetch = prefetch

    def take(self) -> Any:
        """The batch, for the calling thread: what it has the device do from now on finds the batch
        there."""
        content, self._content = self._content, None
        late = not self._marks.ready.reached()
        asked = self._prefetch.backend.hand_over(self._marks.ready, tensors_in(content))
        self._prefetch.taken(self._copied, late, self._marks, asked)
        return content


class Prefetch:
    """Moves batches to the device of `backend`.

    `put` and `rest` are for one thread. The source of a copy is kept until the device has passed
    the mark behind the copy. So it may be pinned, or lie in shared memory that a worker process
    will write to again.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        #: What is being copied, and where the copy will have been made. The one thread's.
        self._sources: deque[tuple[Mark, Any]] = deque()
        # Guards the two below: the consumer adds, and whoever asks for statistics reads.
        self._lock = threading.Lock()
        self._copies = Copies()
        #: Batches whose times are not read yet, and where the consumer's stream was.
        self._untimed: deque[tuple[_Marks, Mark]] = deque()

    def put(self, content: Any, transform: Callable[[Any], Any] | None = None) -> OnDevice:
        """Begin to move `content` and to run `transform` on what it has become; returns before the
        device has done so. Raises what they raise."""
        backend = self.backend
        self._drop_copied()
        with backend.prefetching():
            begun = backend.mark()
            try:
                there = moved(content, backend.copy, backend.device)
            finally:
                # Some of it may be on its way even if the rest has failed.
                copied = backend.mark()
                self._sources.append((copied, content))
            size = 0 if backend.device.type == "cpu" else _nbytes(there)
            ready = copied
            if transform is not None:
                there = transform(there)
                ready = backend.mark()
        return OnDevice(there, size, _Marks(begun, copied, ready), self)

    def rest(self) -> None:
        """There is nothing else to be put for the moment: keep no source longer than its copy
        takes."""
        while self._sources:
            self._sources[0][0].wait()
            self._sources.popleft()

    def _drop_copied(self) -> None:
        while self._sources and self._sources[0][0].reached():
            self._sources.popleft()

    # What it tells of itself

    def taken(self, copied: int, late: bool, marks: _Marks, asked: Mark) -> None:
        """The consumer has taken a batch, of which so many bytes were copied; `late`: it was not
        ready."""
        with self._lock:
            before = self._copies
            self._copies = Copies(
                before.batches + 1,
                before.nbytes + copied,
                before.seconds,
                before.busy,
                before.waits + late,
                before.waited,
            )
            self._untimed.append((marks, asked))
            self._time()

    def _time(self) -> None:
        """Under the lock: read the clock of the batches whose marks are reached by now."""
        while self._untimed:
            times, asked = self._untimed[0]
            if not (times.ready.reached() and asked.reached()):
                return
            self._untimed.popleft()
            before = self._copies
            self._copies = Copies(
                before.batches,
                before.nbytes,
                before.seconds + times.copied.seconds_since(times.begun),
                before.busy + times.ready.seconds_since(times.begun),
                before.waits,
                before.waited + max(0.0, times.ready.seconds_since(asked)),
            )

    @property
    def copies(self) -> Copies:
        """What has been copied and taken so far. Any thread."""
        with self._lock:
            self._time()
            return self._copies


def _nbytes(content: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(content))
