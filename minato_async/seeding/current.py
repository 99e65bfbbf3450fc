"""Which streams this thread draws from."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minato_async.seeding.streams import SampleStreams


class _Current(threading.local):
    """The streams of this thread; None on every thread that runs no samples.

    A thread-local and not a context variable: a thread that a transform starts may inherit its
    context, and two threads must never draw from one stream.
    """

    streams: SampleStreams | None = None


current = _Current()
#: Unlike every ticket.
NO_SAMPLE = object()
