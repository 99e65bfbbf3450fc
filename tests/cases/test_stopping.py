"""Cases 7 to 12: stopping. Case 8, and the many ways to end an iteration: `tests/lifetime`."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset

from tests.cases.support import CHECKOUT, PATIENCE, Made, Turnstile
from tests.lifetime.support import (
    all_ours_end,
    eventually,
    no_collector,
    our_threads,
    resident,
    shared_memory,
    stays_in_shared_memory,
)
from tests.loaders import LoaderKind
from tests.semantics.support import iterating, lists


def interrupt(process: psutil.Process) -> list[psutil.Process]:
    """Press Ctrl-C, as it were, once the main thread sleeps; returns the children there were.

    Python can miss a signal that comes in the moment before a thread blocks, and sees it when the
    wait is over. That does no harm to users, but the waits in here are never over.
    """
    status = Path(f"/proc/{process.pid}/task/{process.pid}/status")
    pause = threading.Event()

    def look() -> str:
        pause.wait(0.01)
        return "".join(re.findall("(?:State|.*ctxt_switches):.*", status.read_text()))

    def sleeps_on() -> bool:
        seen = {look() for _ in range(10)}
        return len(seen) == 1 and "S (sleeping)" in seen.pop()

    assert eventually(sleeps_on)
    children: list[psutil.Process] = process.children(recursive=True)
    process.send_signal(signal.SIGINT)
    return children


WAITING = ("serial", "sync", "async")


@pytest.fixture(scope="module")
def interrupted() -> dict[str, dict[str, Any]]:
    """How each way to wait ends that is interrupted once it waits."""
    command = [sys.executable, "-m", "tests.cases.interrupted", *WAITING]
    seen: dict[str, list[str]] = {way: [] for way in WAITING}
    results: dict[str, dict[str, Any]] = {}
    program = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        for line in program.stdout:
            told = json.loads(line)
            way = told["way"]
            seen[way].append(told["event"])
            if told["event"] == "waiting" and seen[way].count("waiting") == 1:
                results[way] = {"children": interrupt(psutil.Process(told["process"]))}
            elif told["event"] == "ended":
                results[way] |= {"status": told["status"], "errors": told["errors"]}
    finally:
        for process in [*psutil.Process(program.pid).children(recursive=True), program]:
            process.kill()
        program.communicate()
    return {way: results[way] | {"events": seen[way]} for way in WAITING}


@pytest.mark.parametrize("way", WAITING)
def test_case_7_ctrl_c_while_next_waits(interrupted: dict[str, dict[str, Any]], way: str) -> None:
    """The samples never return: that the exception comes at all shows that none is waited for."""
    result = interrupted[way]
    assert result["events"] == ["waiting", "interrupted", "ended"]
    assert result["status"] == -signal.SIGINT
    # One traceback, the consumer's own.
    errors = result["errors"]
    assert errors.splitlines()[-1].startswith("KeyboardInterrupt")
    assert "in wait_for_a_batch" in errors
    assert "minato-" not in errors
    assert "Exception in" not in errors
    assert "Exception ignored" not in errors
    _, orphans = psutil.wait_procs(result["children"], PATIENCE)
    assert orphans == []


#: What case 9 has queued: so many batches, of so many samples, of so many floats.
BATCHES, SAMPLES, FLOATS = 3, 40_960, 256
QUEUED = BATCHES * SAMPLES * FLOATS * 4


@pytest.mark.parametrize("how", ["break", "raise"])
def test_case_9_leaving_with_large_batches_queued(workers: LoaderKind, how: str) -> None:
    row = torch.rand(FLOATS)
    door = Turnstile()
    queued: list[int] = []

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        batch = torch.stack(samples)
        door.come_in()
        return batch

    def train() -> None:
        loader = workers(
            Made(BATCHES * SAMPLES, lambda index: row),
            SAMPLES,
            collate_fn=collate,
            num_workers=2,
            prefetch_factor=BATCHES,
        )
        for batch in loader:
            assert batch.shape == (SAMPLES, FLOATS)
            door.wait_for(BATCHES)
            queued.append(resident() - before)
            if how == "break":
                break
            raise ZeroDivisionError

    def kept_by_training() -> int:
        try:
            train()
        except ZeroDivisionError:
            assert how == "raise"
        all_ours_end()
        return resident() - before

    # Heaps grow at first, and now and then later; batches that are kept show in every round.
    for _ in range(5):
        before = resident()
        if kept_by_training() < 0.5 * QUEUED / BATCHES:
            break
    else:
        pytest.fail(f"some {QUEUED / BATCHES:.0f} bytes are kept in every round")
    if not workers.elsewhere:  # there it lies in shared memory that nobody here has looked at
        assert max(queued) > 0.6 * QUEUED


def test_case_10_reader_that_was_dropped_reads_no_further(workers: LoaderKind) -> None:
    door = Turnstile()

    def sample(index: int) -> int:
        if index == 1:
            door.hold()
        else:
            door.come_in()
        return index

    loader = workers(Made(8, sample), num_workers=1, in_order=True)
    with no_collector():
        old = iter(loader)
        door.wait_for(2)
        del old
        new = iter(loader)
        door.wait_for(2)
        door.let_go()
        assert lists(new) == [[index] for index in range(8)]
        all_ours_end()
    # 2 to 7 of the new reader, and nothing of the old one.
    assert door.came == 6


def test_case_10_nothing_is_stolen_from_a_stream_that_both_read(any_loader: LoaderKind) -> None:
    """As with an open file or a socket: what the old reader takes, the new one does not get."""
    source = iter(range(1000))

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for _ in range(100):
                yield next(source)

    workers = 1 if any_loader.num_workers else 0
    loader = any_loader(Stream(), 4, num_workers=workers)
    with no_collector():
        old = iter(loader)
        assert next(old).tolist() == [0, 1, 2, 3]
        del old
        all_ours_end()
        taken = next(source) + 1
        ahead = 2 if workers else 0
        assert taken <= 4 + 4 * (ahead + 1) + 1
        found = [sample for batch in lists(loader) for sample in batch]
    assert found == list(range(taken, taken + 100))


def held_at(door: Turnstile, *indices: int) -> Callable[[int], int]:
    def sample(index: int) -> int:
        if index in indices:
            door.hold()
        return index

    return sample


def running_for(message: str) -> dict[int, float]:
    """The samples that a message says are running, and for how many seconds."""
    found = re.findall(r"sample index (\d+) for ([\d.]+) s on minato-worker-\d", message)
    return {int(index): float(seconds) for index, seconds in found}


def take(iterator: Iterator[Any], most: int = 1000) -> list[int]:
    """What comes up to the end, or `most` of it, however long it takes: a busy machine is no fault
    of the loader's."""
    found: list[int] = []
    while len(found) < most:
        try:
            found.append(next(iterator).item())
        except StopIteration:
            break
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
    return found


def test_case_11_timeout_says_so(parallel: LoaderKind) -> None:
    door = Turnstile()
    loader = parallel(Made(8, held_at(door, 0)), timeout=0.3, num_workers=2)
    with iterating(loader) as iterator:
        door.wait_for(1)
        with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
            next(iterator)
        door.let_go()


@pytest.mark.parametrize("in_order", [True, False])
def test_case_11_timeout_names_what_is_running(workers: LoaderKind, in_order: bool) -> None:
    door = Turnstile()
    loader = workers(Made(8, held_at(door, 0, 1, 3)), timeout=0.3, in_order=in_order, num_workers=4)
    with iterating(loader) as iterator:
        door.wait_for(3)
        # On a busy machine it may time out before what is ready has come.
        found = [] if in_order else take(iterator, 5)
        messages = []
        for _ in range(2):
            with pytest.raises(RuntimeError) as timed_out:
                next(iterator)
            messages.append(str(timed_out.value))
        first, second = map(running_for, messages)
        assert first.keys() == second.keys() == {0, 1, 3}
        # Whoever asks again finds the clocks running on.
        assert all(first[index] < second[index] for index in first)
        assert sorted(found) == ([] if in_order else [2, 4, 5, 6, 7])
        door.let_go()
        # What was late is not lost.
        found += take(iterator)
    assert found == list(range(8)) if in_order else sorted(found) == list(range(8))


def test_case_11_the_clock_of_a_diverted_sample_runs_on(workers: LoaderKind) -> None:
    before = 0.5  # seconds that the sample costs before it is diverted
    door = Turnstile()
    came = multiprocessing.get_context("fork").Value("d", 0.0)

    def first(index: int) -> int:
        if index == 0:
            time.sleep(before)
        return index

    def second(index: int) -> int:
        if index == 0:
            came.value = time.monotonic()
            door.hold()
        return index

    loader = workers(
        Made(4, first),
        transforms=[second],
        timeout_threshold=1e-9,
        timeout=0.1,
        in_order=False,
        num_workers=2,
    )
    with iterating(loader) as iterator:
        door.wait_for(1)
        found = []
        while True:
            asked = time.monotonic()
            try:
                found.append(next(iterator).item())
            except RuntimeError as error:
                message = str(error)
                break
        # Rounded to tenths of a second.
        assert running_for(message)[0] >= before + (asked - came.value) - 0.05
        assert "slow sample index 0 " in message
        door.let_go()
        found += take(iterator)
    assert sorted(found) == list(range(4))


@pytest.mark.parametrize("how", ["close", "drop", "break"])
def test_case_11_closing_works_while_a_thread_is_stuck(workers: LoaderKind, how: str) -> None:
    door = Turnstile()
    loader = workers(Made(8, held_at(door, 0)), timeout=0.1, num_workers=2)
    ended = threading.Event()

    def consume() -> None:
        iterator = iter(loader)
        door.wait_for(1)
        with pytest.raises(RuntimeError, match="timed out"):
            for _ in iterator:
                pass
        if how == "close":
            iterator.close()  # type: ignore[attr-defined]
            assert list(iterator) == []
        elif how == "drop":
            del iterator
        ended.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert ended.wait(PATIENCE), "waits for the stuck thread"
    if not workers.elsewhere:  # a process that does not come back is killed
        assert our_threads(), "somebody let the sample go"
        door.let_go()
    consumer.join(PATIENCE)
    all_ours_end()


def test_case_11_timeout_of_a_coroutine(workers: LoaderKind) -> None:
    door = Turnstile()
    loader: Any = workers(Made(8, held_at(door, 0)), timeout=0.2, num_workers=2)

    async def read() -> list[Any]:
        iterator = aiter(loader)
        door.wait_for(1)
        with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds.*index 0 for"):
            await anext(iterator)
        door.let_go()
        found: list[Any] = []
        while True:
            try:
                found.append((await anext(iterator)).item())
            except StopAsyncIteration:
                return found
            except RuntimeError as error:  # it may be late again
                if "timed out" not in str(error):
                    raise

    assert asyncio.run(read()) == list(range(8))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def things_in_use() -> dict[str, int]:
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(psutil.Process().children(recursive=True)),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def test_case_12_a_hundred_loaders_made_and_dropped(workers: LoaderKind) -> None:
    """Of each kind of dataset, with persistent workers and without."""
    datasets: list[Any] = [list(range(20)), Stream()]

    def make_and_drop(number: int) -> None:
        dataset, persistent = datasets[number % 2], number // 2 % 2 == 1
        iterator = iter(workers(dataset, 2, num_workers=2, persistent_workers=persistent))
        for _ in range(number % 5):
            next(iterator)

    with no_collector():
        for number in range(4):
            make_and_drop(number)
        all_ours_end()
        before, shared = things_in_use(), shared_memory()
        for number in range(100):
            make_and_drop(number)
        all_ours_end()
        # Of the end of threads the kernel knows after a moment.
        assert eventually(
            lambda: all(now <= before[thing] for thing, now in things_in_use().items())
        ), (before, things_in_use())
    assert not stays_in_shared_memory(shared)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("in_order", [True, False])
def test_case_12_memory_is_flat_over_epochs(
    workers: LoaderKind, persistent: bool, in_order: bool
) -> None:
    samples, side = 64, 128
    batch = 8 * 3 * side * side * 4  # bytes: 1.5 MB
    loader = workers(
        Made(
            samples, lambda index: {"image": torch.rand(3, side, side), "name": f"sample {index}"}
        ),
        8,
        shuffle=True,
        num_workers=2,
        persistent_workers=persistent,
        in_order=in_order,
    )

    def run(epochs: int) -> int:
        for _ in range(epochs):
            assert sum(len(found["name"]) for found in loader) == samples
        return resident()

    before, between, after = run(5), run(20), run(20)
    # Half of what it would be if one batch were left behind in every epoch. Allocators take
    # their time to settle; a leak would show in both.
    assert min(between - before, after - between) < 10 * batch
