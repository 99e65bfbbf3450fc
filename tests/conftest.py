"""What every test has: a check that it left nothing behind, and loaders to run against."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import psutil
import pytest
import torch
from hypothesis import settings

from minato_async.engine.event_loop import new_event_loop
from tests.loaders import ALL, IN_ORDER, OURS, PARALLEL, LoaderKind
from tests.threads import wait_for_new_threads

# The same examples in every run, so that a red run says something about the change.
settings.register_profile("reproducible", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("reproducible")

# The first event loop of a process opens a pipe that stays (libuv's lock for signals).
new_event_loop().close()


def pytest_configure(config: pytest.Config) -> None:
    """Warnings of torch's own about torch's own loader, which is here to be compared with."""
    for ignored in (
        "ignore:This DataLoader will create:UserWarning",
        r"ignore:This process \(pid=.*fork:DeprecationWarning",
    ):
        config.addinivalue_line("filterwarnings", ignored)


def pytest_collection_finish() -> None:
    """What has been imported stays, so the collector need not go through it after every test."""
    gc.collect()
    gc.freeze()


#: Seconds that what a test leaves behind gets to end by itself.
_GRACE = 30.0
#: How often the garbage is collected to see whether what is left behind goes with it.
_LOOKS = 250


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a thread, a file descriptor or a child process behind."""
    before = _left_behind()
    yield
    new = {thing: what for thing, what in _left_behind().items() if thing not in before}
    if new:
        new = _ended(before)
    assert not new, f"left behind by {request.node.name}: {sorted(new.values())}"


def _ended(before: dict[object, str]) -> dict[object, str]:
    """What is still there after the garbage is collected and what was ending has ended."""
    gc.collect()
    wait_for_new_threads(before, _GRACE)
    children = [child for child in _children() if ("process", child.pid) not in before]
    psutil.wait_procs(children, _GRACE)
    pause = threading.Event()
    # What those threads held is garbage only since; and `gc.collect` does nothing while another
    # thread collects.
    for _ in range(_LOOKS):
        new = {thing: what for thing, what in _left_behind().items() if thing not in before}
        if not new:
            break
        pause.wait(0.02)
        gc.collect()
    return new


def _children() -> list[psutil.Process]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # There is none, which psutil goes through all processes to find.
        return []
    children: list[psutil.Process] = psutil.Process().children()
    return children


def _left_behind() -> dict[object, str]:
    found: dict[object, str] = {thread: f"thread {thread.name}" for thread in threading.enumerate()}
    for child in _children():
        found["process", child.pid] = f"process {child.pid}"
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the descriptor that listed them
            continue
        if "/pym-" in target:  # the heap of `multiprocessing`, which lasts as long as the process
            continue
        found["fd", number, target] = f"fd {number} -> {target}"
    return found


@pytest.fixture(params=IN_ORDER, ids=lambda kind: kind.name)
def in_order_kind(request: pytest.FixtureRequest) -> LoaderKind:
    """Loaders whose batches come as drawn; torch's own is among them."""
    kind: LoaderKind = request.param
    return kind


@pytest.fixture(params=ALL, ids=lambda kind: kind.name)
def any_kind(request: pytest.FixtureRequest) -> LoaderKind:
    """Every loader, for what does not depend on the order; torch's own is among them."""
    kind: LoaderKind = request.param
    return kind


@pytest.fixture(params=OURS, ids=lambda kind: kind.name)
def our_kind(request: pytest.FixtureRequest) -> LoaderKind:
    """Every way of running `MinatoLoader`."""
    kind: LoaderKind = request.param
    return kind


@pytest.fixture(params=PARALLEL, ids=lambda kind: kind.name)
def parallel_kind(request: pytest.FixtureRequest) -> LoaderKind:
    """torch's worker processes, and our workers."""
    kind: LoaderKind = request.param
    return kind


@pytest.fixture
def threads_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders that are not told otherwise use threads, whatever the interpreter: the test is about
    threads, or counts what samples do."""
    monkeypatch.setattr("minato_async.options.gil_is_on", lambda: False)


@pytest.fixture(params=["thread", "process"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs with each, as the default of all loaders, whatever the interpreter."""
    monkeypatch.setattr("minato_async.options.gil_is_on", lambda: request.param == "process")
    return str(request.param)


@pytest.fixture
def unseeded() -> None:
    """torch's generator is as in a program that has not seeded it, whatever ran before."""
    torch.seed()


@pytest.fixture
def deterministic_algorithms() -> Iterator[None]:
    """Within the test, the user has asked torch for reproducibility.

    Not by `torch.use_deterministic_algorithms`, which imports triton, and that turns the GIL on.
    """
    torch._C._set_deterministic_algorithms(True)
    yield
    torch._C._set_deterministic_algorithms(False)
