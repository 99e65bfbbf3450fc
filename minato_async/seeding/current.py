"""Which streams this thread draws from."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from minato_async.seeding.streams import SampleStreams
    from minato_async.seeding.torch_random import TorchStream


class _Current(threading.local):
    """The streams of this thread; None on every thread that runs no samples.

    A thread-local and not a context variable: a thread that a transform starts may inherit its
    context, and two threads must never draw from one stream.
    """

    streams: SampleStreams | None = None
    #: Where torch's functions are to draw from, on this thread, instead of the global generator.
    #: None in a worker process too, whose global generator is the sample's.
    torch: TorchStream | None = None


# Kept outside this package: if it is imported anew, the functions that the first import has
# replaced and the loaders that it has made go on with the same threads.
current: _Current = vars(torch.random).setdefault("_minato_async_current", _Current())
#: Unlike every ticket.
NO_SAMPLE: object = vars(torch.random).setdefault("_minato_async_no_sample", object())
