"""The fork server: a process with one thread, from which the workers of a loader are forked.

Made at `iter()`, by the thread that calls it, before the loader has threads of its own: forked, or
started afresh (`executors/process/fresh_fork_server.py`). Workers come from it whenever they are
wanted: replacements too, while the parent is full of threads, which would make a fork of the parent
itself a hazard. It is also who waits for the workers' ends, so none is left as a zombie, and who
ends them if the parent dies.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import gc
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol

from minato_async.executors.process.channel import close_parents_end, parents_end
from minato_async.lifecycle.descriptors import above_standard

#: What a worker runs, given its number, its serial number and its end of the channel.
WorkerMain = Callable[[int, int, socket.socket], None]

_REQUEST = struct.Struct("!cqq")
_SPAWN, _KILL = b"S", b"K"
_READY, _STARTED, _ENDED, _FAILED = b"R", b"P", b"E", b"F"
_NEWS = {_READY: "ready", _STARTED: "started", _ENDED: "ended", _FAILED: "failed"}
_PR_SET_PDEATHSIG = 1


class ForkServerProcess(Protocol):
    """The process, to its parent."""

    def kill(self) -> None:
        """End it at once. Before `reap`."""

    def reap(self) -> None:
        """Wait for its end, and keep nothing of it."""

    @property
    def how(self) -> str:
        """How it has ended, after `reap`."""


class ForkServer:
    """The parent's handle, for the event loop alone once it is made.

    `end` is the parent's end of the socket; `ready`: workers can be had at once. Otherwise it says
    so when it has come up.
    """

    def __init__(self, end: socket.socket, process: ForkServerProcess, ready: bool) -> None:
        self._end = end
        self._process = process
        self.ready = ready
        self._reaped = False
        self._parent = os.getpid()

    def __del__(self) -> None:
        # Never so, unless the loader failed to start.
        if not self._reaped and os.getpid() == self._parent:
            self.end()
            self.reap()

    def fileno(self) -> int:
        return self._end.fileno()

    def spawn(self, serial: int, number: int, end: socket.socket) -> None:
        """Have a worker forked that has `end`. Raises OSError if the fork server is gone."""
        fds = array.array("i", [end.fileno()])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        self._end.sendmsg([_REQUEST.pack(_SPAWN, serial, number)], rights)

    def kill(self, serial: int) -> None:
        with contextlib.suppress(OSError):
            self._end.send(_REQUEST.pack(_KILL, serial, 0))

    def read(self) -> tuple[str, int, int] | None:
        """What has happened: ("ready", 0, 0), ("started", serial, pid), ("ended", serial, status
        as of `waitpid`), or ("failed", serial, errno) for a fork that was refused. None: the
        fork server has ended."""
        try:
            data = self._end.recv(_REQUEST.size)
        except OSError:
            return None
        if len(data) < _REQUEST.size:
            return None
        kind, serial, value = _REQUEST.unpack(data)
        self.ready = True
        return _NEWS[kind], serial, value

    def end(self) -> None:
        """Let it end; it kills what is left of its workers."""
        if not (self.ready or self._reaped):
            # It has no workers, and may not listen for seconds.
            self._process.kill()
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    def reap(self) -> str:
        """After it has ended, or was asked to: how. Idempotent."""
        if not self._reaped:
            self._reaped = True
            close_parents_end(self._end)
            self._process.reap()
        return self._process.how


def fork_from_here(worker_main: WorkerMain) -> ForkServer:
    """A fork server that is a copy of this process."""
    ours, theirs = new_ends()
    # What is still to be written would be written by the child as well.
    flush()
    # No signal may come between the fork and the moment at which the child has made its own
    # arrangements: Ctrl-C would raise there, and go on in a copy of the user's program.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        # The child keeps them: libuv makes a pipe in every child, which must not get their numbers
        # either.
        with above_standard():
            pid = os.fork()
            if pid == 0:
                run_fork_server(theirs, lambda: worker_main)
        return ForkServer(ours, _Forked(pid), ready=True)
    except BaseException:
        close_parents_end(ours)
        raise
    finally:
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def new_ends() -> tuple[socket.socket, socket.socket]:
    """A socket between parent and fork server: the parent's end, and the other."""
    with above_standard():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return parents_end(ours), theirs


class _Forked:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.how = "ended"

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def reap(self) -> None:
        # The user's own code may have waited for all children.
        with contextlib.suppress(ChildProcessError):
            self.how = described(os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]))


def described(code: int) -> str:
    """How a process has ended whose exit code, as Python has it, is `code`."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def run_fork_server(
    end: socket.socket, prepare: Callable[[], WorkerMain], handled: Iterable[int] = ()
) -> NoReturn:
    """The life of the fork server's process. `handled`: signals that the user's program handles, if
    that is not to be seen here."""
    status = 1
    try:
        _own_signals(handled)
        _serve(end, prepare())
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def tell_ready(end: socket.socket) -> None:
    """Tell the parent that it can have workers."""
    _tell(end, _READY, 0, 0)


def _tell(end: socket.socket, kind: bytes, serial: int, value: int) -> None:
    with contextlib.suppress(OSError):  # the parent has gone meanwhile, which is noticed elsewhere
        end.send(_REQUEST.pack(kind, serial, value))


def handled_signals() -> list[int]:
    """Those that the user's program handles in Python."""
    return [number for number in signal.valid_signals() if callable(signal.getsignal(number))]


def _own_signals(handled: Iterable[int]) -> None:
    """Undo what the user's program has arranged for itself."""
    signal.set_wakeup_fd(-1)
    for number in {*handled, *handled_signals()}:
        # Handlers written in Python belong to the program that we are a copy of. It lives through
        # such a signal, which a batch system sends to all of its processes, and so do we. Not by
        # ignoring it: that, programs started by the dataset would inherit.
        signal.signal(number, _left_to_the_parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ctrl-C reaches the whole group of processes; what it means is the parent's to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _left_to_the_parent(*_: object) -> None:
    """Handles a signal that the user's program handles."""


def _serve(end: socket.socket, worker_main: WorkerMain) -> None:
    # What there is now is shared with the workers as long as nobody touches it: the collector
    # would, which writes into every object that it looks at.
    gc.freeze()
    wakeup, waker = socket.socketpair()
    wakeup.setblocking(False)
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    children: dict[int, int] = {}
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == wakeup.fileno():
                with contextlib.suppress(BlockingIOError):
                    wakeup.recv(4096)
                _reap(end, children)
            elif not _obey(end, (wakeup, waker), children, worker_main):
                _kill_all(children)
                # `python -X dev` and pytest tell of sockets that are left open.
                signal.set_wakeup_fd(-1)
                wakeup.close()
                waker.close()
                return


def _obey(
    end: socket.socket,
    sockets: tuple[socket.socket, ...],
    children: dict[int, int],
    worker_main: WorkerMain,
) -> bool:
    """Do what the parent asks for next; False if it has gone."""
    try:
        data, ancillary, _, _ = end.recvmsg(_REQUEST.size, socket.CMSG_SPACE(4))
    except OSError:
        return False
    if len(data) < _REQUEST.size:
        return False
    kind, serial, number = _REQUEST.unpack(data)
    if kind == _KILL:
        for pid, other in children.items():
            if other == serial:
                os.kill(pid, signal.SIGKILL)
        return True
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
    if not fds:  # the table of descriptors is full
        _tell(end, _FAILED, serial, errno.EMFILE)
        return True
    theirs = socket.socket(fileno=fds[0])
    me, blocked = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
        _tell(end, _FAILED, serial, error.errno or 0)
        return True
    if pid == 0:
        _worker(me, (end, *sockets), worker_main, serial, number, theirs)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    theirs.close()
    children[pid] = serial
    _tell(end, _STARTED, serial, pid)
    return True


def _worker(
    fork_server: int,
    sockets: tuple[socket.socket, ...],
    worker_main: WorkerMain,
    serial: int,
    number: int,
    theirs: socket.socket,
) -> NoReturn:
    status = 1
    try:
        _die_with_parent()
        if os.getppid() != fork_server:  # it died before it could be asked for
            os._exit(1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for mine in sockets:
            mine.close()
        # As with torch: what is typed there is for the parent.
        sys.stdin = open(os.devnull)  # noqa: SIM115 - for as long as the process lives
        worker_main(serial, number, theirs)
        status = 0
    except ConnectionError:
        pass  # the parent is gone: nobody is to be told
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        flush()
        os._exit(status)


def flush() -> None:
    """Write what is still to be written to standard output and error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # there may be none, or a closed one
            stream.flush()


def _reap(end: socket.socket, children: dict[int, int]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        serial = children.pop(pid, None)
        if serial is not None:
            _tell(end, _ENDED, serial, status)


def _kill_all(children: dict[int, int]) -> None:
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however it does."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
