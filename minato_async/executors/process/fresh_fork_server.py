"""Fork servers that are started afresh, in the way that `multiprocessing` starts processes.

They have nothing of the parent but what is pickled, and of the user's program what importing its
main module does. From there on they fork like any other: a process with one thread that has
imported everything and made nothing yet, as `multiprocessing`'s own fork server is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from minato_async.executors.process.channel import close_parents_end, parents_end
from minato_async.executors.process.fork_server import (
    ForkServer,
    WorkerMain,
    described,
    flush,
    handled_signals,
    new_ends,
    run_fork_server,
    tell_ready,
)


def start_afresh(context: Any, prepare: Callable[[], WorkerMain]) -> ForkServer:
    """A fork server started by `context`, of `multiprocessing`; `prepare` goes there, pickled, and
    runs before it has workers. Raises RuntimeError if the main module is being imported for such a
    process, or if the fork server has ended; TypeError if `context` makes no processes.
    """
    ours, theirs = new_ends()
    # Another thread may fork meanwhile.
    parents_end(theirs)
    handled = handled_signals()
    process = context.Process(
        target=_arrive,
        args=(theirs, prepare, handled, os.getpid()),
        name="minato-fork-server",
        daemon=True,
    )
    if not isinstance(process, BaseProcess):
        close_parents_end(ours)
        close_parents_end(theirs)
        raise TypeError(f"multiprocessing_context has made {process!r}, {NO_PROCESS}")
    fork_server = ForkServer(ours, _Started(process), ready=False)
    try:
        with _held(handled, context):
            process.start()
    except BaseException as error:
        fork_server.end()
        fork_server.reap()
        if isinstance(error, (EOFError, ConnectionError)):
            raise RuntimeError(
                "the fork server of multiprocessing, which is to start worker processes, has "
                f"ended; what it has printed says why. {GUARD}"
            ) from error
        raise
    finally:
        close_parents_end(theirs)
    return fork_server


#: What helps where a new process has failed.
GUARD = (
    "New processes import the main module: let it do nothing then but define and import, and the "
    "rest under `if __name__ == \"__main__\":`. Or use multiprocessing_context='fork', or "
    "executor='thread'"
)


#: What helps where a context does not start processes.
NO_PROCESS = "which is no process: use executor='thread', or another context"


@contextlib.contextmanager
def _held(signals: list[int], context: Any) -> Iterator[None]:
    """Have a new process begin with `signals` held back, until it has made its own arrangements:
    Ctrl-C and the like reach it too, and would end it. The fork server sees to Ctrl-C itself."""
    if context.get_start_method() != "spawn":
        yield
        return
    # It is started with the first process, and is not to hold them back for ever.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Started:
    """A process that `multiprocessing` has started, or could not start."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.how = "ended"

    def kill(self) -> None:
        if self._process.pid is not None:
            self._process.kill()

    def reap(self) -> None:
        process = self._process
        if process.pid is None:
            return
        process.join()
        if process.exitcode is not None:
            self.how = described(process.exitcode)
        # The user's own code may have waited for all children: to `multiprocessing` it still runs.
        with contextlib.suppress(ValueError):
            process.close()


def _arrive(
    end: socket.socket, prepare: Callable[[], WorkerMain], handled: list[int], parent: int
) -> None:
    """What the new process runs."""
    if os.getpid() == parent:
        # To go on would be to take over, and in the end to exit, the user's own program.
        raise RuntimeError(f"multiprocessing_context has started what runs here, {NO_PROCESS}")
    # Programs that the dataset starts are not to have it.
    end.set_inheritable(False)
    # Datasets may start processes: `multiprocessing` forbids it to daemons.
    multiprocessing.current_process().daemon = False

    def come_up() -> WorkerMain:
        try:
            worker_main = prepare()
        finally:
            # What importing has printed, workers would print again.
            flush()
        tell_ready(end)
        return worker_main

    run_fork_server(end, come_up, handled)
