"""Cases 31, 33, 34 and 36: what workers share. Case 35 is in `test_gil_watch`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import minato_async
from tests.cases.support import CHECKOUT, PATIENCE, Made
from tests.lifetime.support import all_ours_end
from tests.loaders import LoaderKind
from tests.semantics.support import InThread, iterating, lists, once_each, samples_in

# Case 31

RECORD = 100


def record(index: int) -> bytes:
    return bytes([index]) * RECORD


class Records:
    """Reads fixed-size records by `seek` and `read`. `open_file` is called for every sample.

    The first two samples meet: sample 1 seeks after sample 0 has, and reads after it. So two
    readers of one handle are sure to be in each other's way, and it is no matter of luck.
    """

    def __init__(self, open_file: Callable[[], Any]) -> None:
        self.open_file = open_file
        self.meeting = multiprocessing.get_context("fork").Barrier(2)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> bytes:
        file = self.open_file()
        if index == 1:
            self._meet()
        file.seek(index * RECORD)
        if index == 0:
            self._meet()
        if index < 2:
            self._meet()
        if index == 1:
            self._meet()
        found: bytes = file.read(RECORD)
        if index == 0:
            self._meet()
        return found

    def _meet(self) -> None:
        self.meeting.wait(PATIENCE)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "records.zip"
    with zipfile.ZipFile(path, "w") as new:
        new.writestr("records", b"".join(map(record, range(20))))
    return path


@pytest.fixture
def plain_file(tmp_path: Path) -> Path:
    path = tmp_path / "records"
    path.write_bytes(b"".join(map(record, range(20))))
    return path


def corrupt(loader: Any) -> list[int]:
    """The indices of the samples that are not what they should be."""
    found = list(loader)
    assert len(found) == 20
    return [index for index, sample in enumerate(found) if sample != record(index)]


@pytest.mark.parametrize("kind", ["zip", "file"])
def test_case_31_shared_handle_is_corrupt_and_one_per_worker_is_not(
    workers: LoaderKind, kind: str, archive: Path, plain_file: Path
) -> None:
    def open_handle() -> Any:
        if kind == "file":
            return plain_file.open("rb", buffering=0)
        with zipfile.ZipFile(archive) as opened:  # the member keeps the file open
            return opened.open("records")

    options = {"batch_size": None, "num_workers": 2, "in_order": True}
    if getattr(workers, "executor", "thread") == "thread":
        with open_handle() as shared:
            assert corrupt(workers(Records(lambda: shared), **options))
    own = minato_async.per_worker(open_handle)
    for _ in range(3):
        assert corrupt(workers(Records(own), **options)) == []


def test_case_31_handles_last_as_long_as_their_workers(
    workers: LoaderKind, plain_file: Path
) -> None:
    opened = []

    def open_file() -> Any:
        opened.append(threading.current_thread())
        return plain_file.open("rb", buffering=0)

    data = Records(minato_async.per_worker(open_file))
    loader = workers(data, None, num_workers=2, persistent_workers=True)
    with iterating(loader):
        for _ in range(3):
            assert corrupt(loader) == []
        if not workers.elsewhere:
            # One worker may have been fast enough to leave nothing to the other.
            assert 1 <= len(set(opened)) == len(opened) <= 2
    all_ours_end()
    assert not [fd for fd in descriptors() if fd == str(plain_file)]


def descriptors() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue


def test_case_31_database_connection(workers: LoaderKind, tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with sqlite3.connect(path) as new:
        new.execute("create table record (name integer primary key, value blob)")
        new.executemany("insert into record values (?, ?)", [(i, record(i)) for i in range(20)])
    new.close()

    def reader(connect: Callable[[], sqlite3.Connection]) -> Made:
        def read(index: int) -> bytes:
            rows = connect().execute("select value from record where name = ?", [index])
            value: bytes = rows.fetchone()[0]
            return value

        return Made(20, read)

    if getattr(workers, "executor", "thread") == "thread":
        shared = sqlite3.connect(path)
        with (
            iterating(workers(reader(lambda: shared), None)) as iterator,
            pytest.raises(sqlite3.ProgrammingError, match="thread"),
        ):
            next(iterator)
        shared.close()
    own = minato_async.per_worker(lambda: sqlite3.connect(path))
    assert corrupt(workers(reader(own), None, in_order=True)) == []


# Case 33


@pytest.fixture(params=[1, 2, 5])
def training_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many threads torch uses in the training thread, by the user's choice."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class Stream(IterableDataset[Any]):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, range(4))


@pytest.mark.parametrize("dataset", ["map", "iterable"])
def test_case_33_one_thread_in_workers_and_the_users_number_outside(
    parallel: LoaderKind, training_threads: int, dataset: str
) -> None:
    def sample(index: int) -> int:
        torch.rand(100, 100) @ torch.rand(100, 100)
        return torch.get_num_threads()

    data: Any = Made(8, sample) if dataset == "map" else Stream(sample)
    with iterating(parallel(data, None)) as iterator:
        assert next(iterator) == 1
        assert torch.get_num_threads() == training_threads
        assert set(iterator) == {1}
    assert torch.get_num_threads() == training_threads


def test_case_33_the_users_number_holds_without_workers(
    any_loader: LoaderKind, training_threads: int
) -> None:
    loader = any_loader(Made(4, lambda index: torch.get_num_threads()), None, num_workers=0)
    assert list(loader) == [training_threads] * 4


def test_case_33_what_a_worker_sets_stays_with_it(
    parallel: LoaderKind, training_threads: int
) -> None:
    def init(worker_id: int) -> None:
        torch.set_num_threads(3)

    loader = parallel(
        Made(8, lambda index: torch.get_num_threads()), None, worker_init_fn=init, num_workers=2
    )
    before = thread_settings()
    assert str(training_threads) in before[0]
    with iterating(loader) as iterator:
        assert set(iterator) == {3}
        assert thread_settings() == before
    assert InThread(torch.get_num_threads).result() == training_threads


def thread_settings() -> list[str]:
    """What torch, OpenMP and MKL do in the calling thread."""
    lines = torch.__config__.parallel_info().splitlines()
    return [line for line in lines if "threads() :" in line]


REPLACED_LIBRARY = """
    import ctypes, os, shutil, sys
    import torch
    from minato_async import MinatoLoader

    with open("/proc/self/maps") as maps:
        (original,) = {line.split()[-1] for line in maps if "libgomp" in line}
    ours = ctypes.CDLL(shutil.copy(original, os.path.join(sys.argv[1], "libgomp.so.1.old")))
    os.remove(ours._name)
    torch.set_num_threads(2)
    print(list(MinatoLoader(range(2), None, num_workers=1, executor="thread")))
"""


def test_case_33_library_whose_file_was_replaced_meanwhile(tmp_path: Path) -> None:
    """By an upgrade of its package, say, while the program runs."""
    command = [sys.executable, "-c", textwrap.dedent(REPLACED_LIBRARY), str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "[0, 1]\n", done.stderr


@pytest.mark.parametrize(
    "operator",
    [lambda: torch.ones(1 << 20).add_(1), lambda: torch.ones(400, 400) @ torch.ones(400, 400)],
    ids=["OpenMP", "MKL"],
)
def test_case_33_operators_start_no_threads_in_workers(
    workers: LoaderKind, operator: Callable[[], Any]
) -> None:
    """With a team for each of three workers there would be nine more."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        operator()  # the team of this thread
        at_rest = len(os.listdir("/proc/self/task"))

        def sample(index: int) -> int:
            operator()
            return len(os.listdir("/proc/self/task"))

        # The workers, their event loop, and one that may be about to end.
        assert max(workers(Made(24, sample), None, scheduler="fixed")) <= at_rest + 3 + 2
    finally:
        torch.set_num_threads(before)


# Case 34


def test_case_34_loaders_in_several_threads(any_loader: LoaderKind) -> None:
    """One loader used by all of them, and one of each thread's own."""
    shared = any_loader(range(60), 7, shuffle=True)

    def consume() -> None:
        for _ in range(3):
            own = any_loader(range(30), 4)
            assert samples_in(own) == once_each(range(30))
            assert samples_in(shared) == once_each(range(60))

    for consumer in [InThread(consume) for _ in range(6)]:
        consumer.result()


def test_case_34_event_loops_in_several_threads(ours: LoaderKind) -> None:
    loader: Any = ours(range(60), 7)

    async def consume() -> int:
        return sum([len(batch) async for batch in loader])

    consumers = [InThread(lambda: asyncio.run(consume())) for _ in range(6)]
    assert [consumer.result() for consumer in consumers] == [60] * 6


def test_case_34_iterator_begun_in_one_thread_and_ended_in_another(workers: LoaderKind) -> None:
    iterator = InThread(lambda: iter(workers(range(8), 2, in_order=True))).result()
    assert next(iterator).tolist() == [0, 1]
    assert InThread(lambda: next(iterator)).result().tolist() == [2, 3]
    assert InThread(lambda: lists(iterator)).result() == [[4, 5], [6, 7]]


SIGNALS = """
    import re, signal, threading
    import torch
    from minato_async import MinatoLoader
    from tests.cases.kinds import WORKERS

    def handlers():
        caught = re.findall("Sig(?:Cgt|Ign):.*", open("/proc/self/status").read())
        return caught, [signal.getsignal(number) for number in signal.valid_signals()]

    def load():
        for kind in WORKERS:
            iterator = iter(kind(list(range(8))))
            next(iterator)
            during.append(handlers())
            assert len(list(iterator)) == 7

    before, during = handlers(), []
    load()
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert len(during) == 2 * len(WORKERS)
    assert all(seen == before for seen in during), (before, during)
    assert handlers() == before
    assert signal.set_wakeup_fd(-1) == -1
    print("as before")
"""


def test_case_34_no_signal_handler_is_installed() -> None:
    """In a process of its own, which has not had torch's workers, for those install one."""
    assert run(SIGNALS) == "as before\n"


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "if True:\n" + script],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr}"
    return done.stdout


# Case 36

STRESS = """
    import gc, random, threading, weakref
    import numpy as np
    import torch
    from tests.cases.kinds import WORKERS
    from tests.cases.support import Made

    class Node:
        pass

    def ring(tensor):
        first, second = Node(), Node()
        first.other, second.other = second, first
        first.tensor = second.view = tensor
        second.watched = weakref.ref(tensor)
        return first

    kept = {}

    def sample(index):
        size = 1 + index * 37 % 3000
        tensor = torch.full((size,), float(index))
        ring(tensor)                                 # garbage that only the collector frees
        array = np.full(size, index)
        shared = torch.from_numpy(array)             # memory of one library owned by the other
        parts = [part.clone() for part in tensor.split(max(1, size // 7))]
        kept[index % 16] = tensor, shared, parts     # freed by whichever thread comes next
        if index % 50 == 0:
            gc.collect(random.choice([0, 1, 2]))
        grown = torch.cat(parts).requires_grad_()
        (grown * 2).sum().backward()
        return index, grown.detach().mean().item(), int(shared.sum()) == index * size, ring(tensor)

    def collate(samples):
        indices, means, right, rings = zip(*samples)
        assert all(right)
        return torch.tensor(indices), torch.tensor(means), rings

    def consume(kind):
        loader = kind(
            Made(400, sample), 16, num_workers=8, shuffle=True, collate_fn=collate,
            persistent_workers=True,
        )
        for epoch in range(2):
            seen = []
            for number, (indices, means, rings) in enumerate(loader):
                assert torch.equal(indices.float(), means)
                seen += indices.tolist()
                if number % 20 == 0:
                    gc.collect()
            assert sorted(seen) == list(range(400))

    torch.set_num_threads(1)
    gc.set_threshold(50, 2, 2)
    for kind in WORKERS:
        consumers = [threading.Thread(target=consume, args=(kind,)) for _ in range(2)]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join()
    print("survived")
"""


def test_case_36_allocation_and_collection_at_once() -> None:
    """In a process of its own, for what goes wrong here crashes it."""
    assert run(STRESS) == "survived\n"
