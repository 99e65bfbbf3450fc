"""Contexts of `multiprocessing` that are not what they seem: nothing may end the user's program."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from multiprocessing import context, resource_tracker
from multiprocessing.dummy import DummyProcess
from pathlib import Path
from typing import Any

import pytest

from minato_async import MinatoLoader
from minato_async.options import starts_processes
from tests.processes.support import PATIENCE, flat
from tests.semantics.support import iterating

BASES = (context.ForkContext, context.SpawnContext, context.ForkServerContext)


def context_of(base: Any, process: Any) -> Any:
    """As MONAI's for its `ThreadDataLoader`: a context by class, whose `Process` is another."""
    return type("Changed", (base,), {"Process": process})()


class Pretends(threading.Thread):
    """A thread that looks like a process."""

    @property
    def pid(self) -> int:
        return id(self)


def thread_name(samples: list[int]) -> tuple[str, list[int]]:
    return threading.current_thread().name, samples


@pytest.mark.parametrize("process", [threading.Thread, Pretends, DummyProcess])
@pytest.mark.parametrize("base", BASES)
def test_one_that_starts_threads_means_threads(
    base: Any, process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minato_async.options.gil_is_on", lambda: True)
    made = context_of(base, process)
    loader: Any = MinatoLoader(
        range(10), 2, num_workers=2, multiprocessing_context=made, collate_fn=thread_name
    )
    for _ in range(2):
        batches = list(loader)
        assert all(name.startswith("minato-worker") for name, _ in batches)
        assert [index for _, samples in batches for index in samples] == list(range(10))


def test_what_has_no_process_at_all_means_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minato_async.options.gil_is_on", lambda: True)
    made: Any = context.BaseContext()
    assert flat(MinatoLoader(range(10), 2, num_workers=2, multiprocessing_context=made)) == [
        *range(10)
    ]


@pytest.mark.parametrize("base", BASES)
def test_threads_are_no_processes(base: Any) -> None:
    options: dict[str, Any] = {"num_workers": 2, "executor": "process"}
    made = context_of(base, threading.Thread)
    with pytest.raises(ValueError, match='starts threads and not processes: use executor="thread"'):
        MinatoLoader(range(4), multiprocessing_context=made, **options)
    loader = MinatoLoader(range(4), **options)
    loader.multiprocessing_context = made
    with pytest.raises(ValueError, match="starts threads and not processes"):
        iter(loader)


def test_persistent_workers_follow_a_context_that_is_set_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minato_async.options.gil_is_on", lambda: True)
    loader: Any = MinatoLoader(
        range(4), 2, num_workers=1, persistent_workers=True, collate_fn=thread_name
    )
    with iterating(loader):
        assert {name for name, _ in loader} == {"MainThread"}
        loader.multiprocessing_context = context_of(context.ForkContext, threading.Thread)
        assert {name for name, _ in loader} == {"minato-worker-0"}


class Noted(context.SpawnProcess):
    """A process of a class of the user's own."""

    made = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        Noted.made += 1
        super().__init__(*args, **options)


@pytest.fixture
def resource_tracker_ends() -> Iterator[None]:
    """A process that comes with the first spawn, and stays until the program ends."""
    tracker: Any = resource_tracker
    tracker.ensure_running()
    yield
    tracker._resource_tracker._stop()


@pytest.mark.usefixtures("resource_tracker_ends")
def test_a_process_of_another_class_is_a_process() -> None:
    assert starts_processes(context_of(context.ForkContext, Noted))
    before = Noted.made
    made = context_of(context.SpawnContext, staticmethod(partial(Noted)))
    loader: Any = MinatoLoader(
        range(4), 2, num_workers=1, executor="process", multiprocessing_context=made
    )
    assert flat(loader) == [0, 1, 2, 3]
    assert Noted.made == before + 1


PROGRAM = """
    import threading
    from multiprocessing import context
    from multiprocessing.process import BaseProcess
    from minato_async import MinatoLoader

    class Inline(BaseProcess):
        def start(self):
            self.run()

    class InThread(BaseProcess):
        pid = 1
        exitcode = 1

        def start(self):
            self.thread = threading.Thread(target=self.run)
            self.thread.start()

        def kill(self):
            pass

        def join(self):
            self.thread.join()

        def close(self):
            pass

    def a_thread(**options):
        return threading.Thread(**options)

    def context_of(process):
        return type("Changed", (context.SpawnContext,), {"Process": process, "_name": "odd"})()

    if __name__ == "__main__":
        for process in Inline, InThread, staticmethod(a_thread):
            loader = MinatoLoader(
                range(4), num_workers=1, executor="process",
                multiprocessing_context=context_of(process),
            )
            try:
                list(loader)
            except Exception as error:
                print(type(error).__name__, error)
        print("the program goes on")
"""


def test_what_runs_in_the_program_itself_does_not_end_it(tmp_path: Path) -> None:
    """Not to be known before it is started. In a program of its own, which would end."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=Path(__file__).resolve().parents[2],
        env={"PYTHONPATH": "."},
    )
    inline, thread, callable_, last = done.stdout.splitlines()
    assert "what runs here, which is no process: use executor='thread'" in inline
    assert "before it had come up" in thread
    assert "which is no process: use executor='thread'" in callable_
    assert last == "the program goes on"
    assert done.returncode == 0, done.stderr


def test_what_is_no_context_is_refused_as_torch_does() -> None:
    class Duck:
        Process = multiprocessing.Process

        def get_start_method(self) -> str:
            return "spawn"

    with pytest.raises(TypeError, match="multiprocessing_context"):
        MinatoLoader(range(4), num_workers=1, multiprocessing_context=Duck())
