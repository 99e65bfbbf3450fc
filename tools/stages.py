"""Runs the slow commands of the set-up: each timed, logged, alive on screen, under one lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ALIVE_EVERY = 15.0
TAIL_LINES = 25
MARKER = ".complete"


class SetupError(Exception):
    """A set-up step failed: one line for the user, and perhaps the end of a log."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def say(text: str) -> None:
    """Print one line at once, so that it also shows in a CI log while the work goes on."""
    print(text, flush=True)


def default_cache() -> Path:
    """The folder that outlives checkouts: ``MINATO_CACHE``, or the user's cache folder."""
    if given := os.environ.get("MINATO_CACHE"):
        return Path(given).expanduser().absolute()
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user_cache).expanduser().absolute() / "minato_async"


class Cache:
    """The cache folder. Its entries are only to be made or changed while `locked`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._lock_fd: int | None = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cache's lock; a second set-up waits here for the first."""
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock_aloud(descriptor)
            self._lock_fd = descriptor
            yield
        finally:
            self._lock_fd = None
            os.close(descriptor)

    @contextlib.contextmanager
    def entry(self, path: Path, made_from: object) -> Iterator[bool]:
        """Yield whether `path` must be built; mark it complete if the block succeeds.

        A virtual environment cannot be renamed after it is built, so a half-built entry is told
        from a whole one by a marker file, written last. What has no marker is built afresh.
        """
        if (path / MARKER).exists():
            yield False
            return
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        yield True
        partial = path / (MARKER + ".partial")
        partial.write_text(json.dumps(made_from, indent=1) + "\n")
        partial.rename(path / MARKER)

    def run(
        self,
        title: str,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Run one long command: its output to a log, its life signs and its time to the screen."""
        log = self.logs / (re.sub(r"\W+", "-", title).strip("-") + ".log")
        say(f"env: {title} ...")
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                list(command),
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A command that outlives us (kill -9) keeps the lock until it is gone, so that
                # nobody rebuilds a folder it still writes to.
                pass_fds=() if self._lock_fd is None else (self._lock_fd,),
            )
            try:
                code = _wait_aloud(process, log, started, timeout)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        seconds = time.monotonic() - started
        if code != 0:
            raise SetupError(f"{title}: failed after {seconds:.0f} s, see {log}", _tail(log))
        say(f"env: {title}: {seconds:.1f} s")


def _lock_aloud(descriptor: int) -> None:
    """Take the lock; while another set-up has it, say so now and then."""
    started = time.monotonic()
    said = -ALIVE_EVERY
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - started
            if waited - said >= ALIVE_EVERY:
                said = waited
                say(f"env: waiting for another set-up that uses the cache ({waited:.0f} s)")
            time.sleep(0.2)


def _wait_aloud(
    process: subprocess.Popen[bytes], log: Path, started: float, timeout: float | None
) -> int:
    """Wait for the process and show now and then that it is alive, with its last line of output."""
    pause = ALIVE_EVERY if timeout is None else min(ALIVE_EVERY, timeout)
    while True:
        try:
            return process.wait(pause)
        except subprocess.TimeoutExpired:
            seconds = time.monotonic() - started
            if timeout is not None and seconds >= timeout:
                return 124
            say(f"env:   ... {seconds:.0f} s, at: {_tail(log, 1)[-70:].strip()}")


def _tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log that say something."""
    text = log.read_text(errors="replace")[-20_000:]
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
