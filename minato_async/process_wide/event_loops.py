"""`asyncio.get_event_loop()` on worker threads: as on the main thread of a worker process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from minato_async.process_wide.by_thread import thread
from minato_async.seeding.rebinding import redirect


def install() -> None:
    """Up to Python 3.13 a main thread that has no event loop is given one when it asks for it;
    later ones raise `RuntimeError` there, as on any thread."""
    if sys.version_info < (3, 14):
        policy: Any = asyncio.events.BaseDefaultEventLoopPolicy
        redirect(policy.get_event_loop, _for_workers)


def _for_workers(original: FunctionType) -> Any:
    local = thread

    def get_event_loop(policy: Any) -> Any:
        # As for a main thread: not again where one was set, `asyncio.run` sets None at its end.
        mine = policy._local
        if local.made_loops is not None and mine._loop is None and not mine._set_called:
            loop = policy.new_event_loop()
            local.made_loops.append(loop)
            policy.set_event_loop(loop)
        return original(policy)

    return get_event_loop


@contextlib.contextmanager
def closed_at_the_end() -> Iterator[None]:
    """Within this, the calling thread gets an event loop at the first use, which is closed at the
    end: it has descriptors."""
    loops: list[Any] = []
    thread.made_loops = loops
    try:
        yield
    finally:
        thread.made_loops = None
        for loop in loops:
            with contextlib.suppress(RuntimeError):  # a sample was interrupted, and it still runs
                loop.close()
