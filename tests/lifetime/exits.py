"""A program for `test_interpreter_exit`: it ends with an iterator left open, in one of many ways.

    python exits.py CASE                          ends so itself
    python exits.py --each N --at-once M --folder DIR CASE...
                                                  forks N children for each case, M at a time, and
                                                  prints a JSON line for each: how it ended

Forking spares each child the seconds that the import of torch takes, so that races show: nothing
has started a thread before. With `--no-uvloop` the loader does without uvloop.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

if "--no-uvloop" in sys.argv:
    sys.modules["uvloop"] = None  # type: ignore[assignment]

import torch

from minato_async import MinatoLoader

#: Seconds that a child may live.
_LIFETIME = 120.0


class Steps:
    """Sample 0 is quick. From sample 1 on each runs one of `steps`, in turn, and never returns
    unless the step does."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self.steps = steps
        self.running = threading.Semaphore(0)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        if index:
            self.running.release()
            self.steps[(index - 1) % len(self.steps)]()
        return index

    def wait_until_all_run(self) -> None:
        for _ in self.steps:
            assert self.running.acquire(timeout=_LIFETIME)


def sleep() -> None:
    time.sleep(1000)


def operators_without_end() -> None:
    matrix = torch.rand(96, 96)
    while True:
        matrix = (matrix @ matrix).softmax(-1).sort(-1).values


def new_tensors_without_end() -> None:
    while True:
        torch.rand(50_000).reshape(100, 500).mean(0)


def long_operators_without_end() -> None:
    matrix = torch.rand(1500, 1500)
    while True:
        matrix = matrix @ matrix


def comes_back_after(seconds: float) -> Callable[[], None]:
    """A call into torch that holds no GIL and comes back after `seconds`."""
    store = torch.distributed.TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False, multi_tenant=True
    )

    def wait() -> None:
        store.wait(["what nobody sets"], datetime.timedelta(seconds=seconds))

    return wait


def comes_back_when_python_is_gone() -> Callable[[], None]:
    """As above, some time between the end of Python's clean-up and the end of the process."""
    return comes_back_after(2.0 + int.from_bytes(os.urandom(2), "big") / 2**16)


def left_open(*steps: Callable[[], None], **options: Any) -> Any:
    """An iterator whose workers are all stuck in `steps`, after its first batch."""
    dataset = Steps(*(steps or (sleep, new_tensors_without_end)))
    options = {"num_workers": len(dataset.steps)} | options
    iterator = iter(MinatoLoader(dataset, executor="thread", **options))  # type: ignore[arg-type]
    assert next(iterator).tolist() == [0]
    dataset.wait_until_all_run()
    return iterator


# The cases. What they return stays referred to by the main module until the end.


def at_module_level() -> Any:
    return left_open(
        sleep, operators_without_end, new_tensors_without_end, long_operators_without_end
    )


def any_order() -> Any:
    return left_open(in_order=False)


def persistent() -> Any:
    return left_open(persistent_workers=True)


def several() -> Any:
    return [left_open() for _ in range(3)]


def long_operators() -> Any:
    return left_open(*(comes_back_when_python_is_gone() for _ in range(3)))


def cleans_up() -> Any:
    def step() -> None:
        try:
            operators_without_end()
        finally:
            print("cleaned up", flush=True)

    return left_open(step)


def idle() -> Any:
    iterator = iter(MinatoLoader(range(100), num_workers=3, executor="thread"))  # type: ignore[arg-type]
    next(iterator)
    return iterator


def just_started() -> Any:
    return iter(MinatoLoader(range(100), num_workers=3, executor="thread"))  # type: ignore[arg-type]


def dropped() -> Any:
    left_open()
    return None


def closed() -> Any:
    iterator = left_open()
    iterator.close()
    return iterator


def daemon_thread() -> Any:
    return _in_thread(daemon=True)


def other_thread() -> Any:
    return _in_thread(daemon=False)


def _in_thread(daemon: bool) -> list[Any]:
    kept: list[Any] = []
    thread = threading.Thread(target=lambda: kept.append(left_open()), daemon=daemon)
    thread.start()
    thread.join()
    return kept


def daemon_thread_waits() -> Any:
    """The consumer is inside `next()` when the interpreter exits."""
    dataset = Steps(sleep, sleep)
    thread = threading.Thread(
        target=lambda: list(MinatoLoader(dataset, num_workers=2, executor="thread")),  # type: ignore[arg-type]
        daemon=True,
    )
    thread.start()
    dataset.wait_until_all_run()
    return thread


def other_thread_trains_on() -> Any:
    """A thread that is no daemon outlives the main program, and gets its whole epoch."""
    main = threading.main_thread()

    class AfterMain:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            main.join()  # returns as soon as the interpreter has begun to exit
            time.sleep(0.02)
            return index

    def train() -> None:
        loader = MinatoLoader(AfterMain(), num_workers=3, executor="thread")  # type: ignore[arg-type]
        assert len(list(loader)) == 40
        assert len(list(loader)) == 40
        print("trained", flush=True)

    threading.Thread(target=train).start()


def exit_code() -> NoReturn:
    global kept
    kept = left_open()
    sys.exit(3)


def uncaught() -> NoReturn:
    iterator = left_open()
    raise ZeroDivisionError(f"with {iterator}")


def generator() -> Any:
    def batches() -> Iterator[Any]:
        iterator = left_open()
        yield 0
        yield from iterator

    running = batches()
    next(running)
    return running


def inside_asyncio() -> Any:
    async def train() -> Any:
        iterator = left_open()
        waiting = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0)
        assert not waiting.done()
        return iterator

    return asyncio.run(train())


def inside_asyncio_for() -> Any:
    async def train() -> None:
        dataset = Steps(sleep, operators_without_end)
        async for _ in MinatoLoader(dataset, num_workers=2, executor="thread"):  # type: ignore[arg-type]
            await asyncio.to_thread(dataset.wait_until_all_run)
            sys.exit(4)

    asyncio.run(train())


CASES: dict[str, Callable[[], Any]] = {
    case.__name__: case
    for case in (
        at_module_level,
        any_order,
        persistent,
        several,
        long_operators,
        cleans_up,
        idle,
        just_started,
        dropped,
        closed,
        daemon_thread,
        other_thread,
        daemon_thread_waits,
        other_thread_trains_on,
        exit_code,
        uncaught,
        generator,
        inside_asyncio,
        inside_asyncio_for,
    )
}


# The parent of many


@dataclass
class Child:
    """A forked child: its case and the folder that tells how it fared."""

    case: str
    folder: Path

    def become(self) -> None:
        """Turn this fresh process into the child. It is killed when it lives too long."""
        signal.setitimer(signal.ITIMER_REAL, _LIFETIME)
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, number)
            os.close(file)

    def leaves(self) -> None:
        """The main program has done what it had to; the rest is Python's."""
        (self.folder / "left").write_text(str(time.monotonic()))

    def result(self, status: int) -> dict[str, Any]:
        return {
            "case": self.case,
            "code": os.waitstatus_to_exitcode(status),
            "seconds": time.monotonic() - float((self.folder / "left").read_text()),
            "stdout": (self.folder / "stdout").read_text(),
            "stderr": (self.folder / "stderr").read_text(),
        }


def run_all(cases: list[str], each: int, at_once: int, folder: Path) -> Child | None:
    """Fork `each` children for each case; returns one in a child, and None in the end."""
    waiting = [Child(case, folder / f"{case}-{n}") for n in range(each) for case in cases]
    running: dict[int, Child] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            child = waiting.pop()
            child.folder.mkdir()
            if (pid := os.fork()) == 0:
                child.become()
                return child
            running[pid] = child
        pid, status = os.wait()
        print(json.dumps(running.pop(pid).result(status)), flush=True)
    return None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--each", type=int)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-uvloop", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse()
    if arguments.each is None:
        kept = CASES[arguments.cases[0]]()
    elif child := run_all(arguments.cases, arguments.each, arguments.at_once, arguments.folder):
        try:
            kept = CASES[child.case]()
        finally:
            child.leaves()
