"""Shared memory, descriptors and processes: what is used, what is given back, what is too small."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from minato_async.executors.process.transport.own_blocks import OwnBlocks
from minato_async.executors.process.transport.packing import pack
from minato_async.executors.process.transport.shared_memory import SharedMemory
from tests.cases.support import CHECKOUT
from tests.lifetime.support import eventually, shared_memory, stays_in_shared_memory
from tests.processes.support import PATIENCE, Made, pause, processes
from tests.semantics.support import iterating


def filled(index: int) -> torch.Tensor:
    return torch.full((3, 64, 64), float(index))


def test_batches_keep_their_values_as_long_as_they_are_referred_to() -> None:
    """Blocks are used again, but not those of batches that somebody still has."""
    loader = processes(Made(400, filled), 4, persistent_workers=True)
    kept = []
    with iterating(loader):
        for _ in range(3):
            for number, batch in enumerate(loader):
                if number % 7 == 0:
                    kept.append((number, batch[1:3, 0].T))  # a view is enough
    for number, view in kept:
        assert torch.unique(view).tolist() == [4 * number + 1, 4 * number + 2]


def test_batches_outlive_their_loader() -> None:
    batches = list(processes(Made(12, filled), 4))
    assert [batch[:, 0, 0, 0].tolist() for batch in batches] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]


def test_what_a_worker_keeps_of_a_batch_is_its_own() -> None:
    """A collate function may keep the batch: its memory is not used for another one."""
    kept: list[torch.Tensor] = []

    def collate(samples: list[torch.Tensor]) -> Any:
        batch = default_collate(samples)
        kept.append(batch)
        return batch, [old[0, 0, 0, 0].item() for old in kept]

    batches: list[Any] = []
    for batch, old in processes(Made(160, filled), 4, num_workers=1, collate_fn=collate):
        batches.append(batch[0, 0, 0, 0].item())
        assert old == batches


def test_samples_from_other_workers_may_be_kept() -> None:
    """A collate function may keep samples, for the next batch, say, whoever loaded them: memory
    that they came in is used for others."""
    kept: list[torch.Tensor] = []
    expected: list[float] = []

    def slow(index: int) -> torch.Tensor:
        pause(0.02)  # so that batches are shared out among the workers
        return filled(index)

    def collate(samples: list[torch.Tensor]) -> Any:
        kept.extend(samples)
        expected.extend(sample[0, 0, 0].item() for sample in samples)
        return [torch.unique(sample).tolist() for sample in kept], [[it] for it in expected]

    for found, wanted in processes(Made(64, slow), 4, num_workers=3, collate_fn=collate):
        assert found == wanted


def test_a_step_may_keep_what_it_is_given() -> None:
    kept: list[torch.Tensor] = []
    expected: list[float] = []

    def remember(sample: torch.Tensor) -> Any:
        kept.append(sample)
        expected.append(sample[0, 0, 0].item())
        return [torch.unique(sample).tolist() for sample in kept], [[it] for it in expected]

    loader = processes(
        Made(64, filled),
        None,
        in_order=False,
        transforms=[lambda sample: pause(0.01) or sample, remember],
        timeout_threshold=1e-3,
        collate_fn=as_it_is,
    )
    diverted = 0
    for found, wanted in loader:
        assert found == wanted
        diverted = loader.stats.diverted
    assert diverted


def test_memory_of_a_batch_is_given_back_while_the_workers_idle() -> None:
    """The window is full, so no order will come with the news that the last batch was dropped."""
    size = 1 << 20

    def sample(_: int) -> Any:
        return torch.ones(size, dtype=torch.uint8), os.getpid()

    loader = processes(Made(16, sample), 1, num_workers=1, scheduler="fixed")
    with iterating(loader) as iterator:
        batch, (worker,) = next(iterator)
        assert eventually(lambda: iterator.stats.ready_batches == loader.prefetch_factor)
        del batch
        window = loader.prefetch_factor * size
        assert eventually(lambda: window <= _written(int(worker)) < window + size // 2)


def _written(worker: int) -> int:
    """Bytes of shared memory that `worker` has written to and not given back."""
    maps = psutil.Process(worker).memory_maps(grouped=False)
    return sum(part.rss for part in maps if "minato-async" in part.path)


def add_up(loader: Any) -> int:
    return sum(int(batch.sum()) for batch in loader)


def test_loaders_inside_of_a_dataset() -> None:
    """Whatever is forked by a worker leaves that worker's memory alone."""

    def outer(index: int) -> Any:
        sums = {add_up(DataLoader(Made(8, filled), 2, num_workers=2)) for _ in range(4)}
        return sums | {add_up(processes(Made(8, filled), 2, in_order=False))}

    for sums in processes(Made(2, outer), None):
        assert sums == {sum(range(8)) * 3 * 64 * 64}


def test_threads_of_a_dataset_collate_in_memory_of_their_own() -> None:
    """A worker's blocks are for its own thread, whatever else calls `default_collate`."""

    def sample(index: int) -> Any:
        with ThreadPoolExecutor(1) as pool:
            batch = pool.submit(default_collate, [filled(index)] * 2).result()
        # One that lies in the worker's blocks lies in memory that is mapped by all.
        return in_shared_memory(batch), in_shared_memory(default_collate([filled(index)] * 2))

    assert list(processes(Made(1, sample), None)) == [[False, True]]


def in_shared_memory(tensor: torch.Tensor) -> bool:
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(part, 16) for part in line.split(maxsplit=1)[0].split("-"))
        if start <= address < stop:
            return "minato-async" in line
    return False


def as_it_is(sample: Any) -> Any:
    return sample


class Mixed:
    """Something of each kind that travels."""

    def __init__(self, index: int) -> None:
        self.parts: dict[str, Any] = {
            "tensor": torch.arange(3000) + index,
            "channels last": torch.rand(2, 3, 32, 32).to(memory_format=torch.channels_last),
            "transposed": torch.rand(40, 50).T,
            "slice": torch.rand(100, 100)[10:90, ::2],
            "expanded": torch.rand(1, 100).expand(100, 100),
            "half": torch.rand(3000).to(torch.bfloat16),
            "flags": torch.rand(5000) > 0.5,
            "complex": torch.rand(2000, dtype=torch.complex64),
            "conjugate": torch.rand(2000, dtype=torch.complex64).conj(),
            "small channels last": torch.rand(1, 3, 4, 5).to(memory_format=torch.channels_last),
            "small slice": torch.arange(20)[::2],
            "small column": torch.rand(5, 4)[:, 0],
            "small expanded": torch.rand(1).expand(3, 4),
            "empty": torch.empty(0, 7),
            "scalar": torch.tensor(index),
            "sparse": torch.eye(50).to_sparse(),
            "parameter": torch.nn.Parameter(torch.rand(3000)),
            "array": np.arange(3000) * index,
            "read-only": np.frombuffer(bytes([index]) * 30, np.uint8),
            "columns": np.asfortranarray(np.random.rand(50, 60)),
            "strided": np.random.rand(100, 100)[::2, ::3],
            "records": np.zeros(500, dtype=[("a", "i4"), ("b", "f8")]),
            "objects": np.array([None, "x", 3] * 1000, dtype=object),
            "storage": torch.arange(3000).untyped_storage(),
            "small storage": torch.arange(3).untyped_storage(),
            "names": [f"sample {index}"] * 3,
            "nothing": None,
        }


def test_everything_arrives_as_it_was() -> None:
    def sample(index: int) -> Any:
        return Mixed(index).parts

    options: dict[str, Any] = {"batch_size": None, "seed": 3, "collate_fn": as_it_is}
    ours = list(processes(Made(6, sample), **options))
    threads = list(processes(Made(6, sample), executor="thread", **options))
    for mine, theirs in zip(ours, threads, strict=True):
        assert mine.keys() == theirs.keys()
        for name, expected in theirs.items():
            found = mine[name]
            assert type(found) is type(expected), name
            if isinstance(expected, torch.Tensor):
                assert found.dtype == expected.dtype, name
                assert found.layout == expected.layout, name
                assert found.requires_grad == expected.requires_grad, name
                assert torch.equal(found.to_dense(), expected.to_dense()), name
                if name in ("channels last", "small channels last", "transposed"):
                    assert found.stride() == expected.stride(), name
            elif isinstance(expected, np.ndarray):
                assert found.dtype == expected.dtype, name
                assert np.array_equal(found, expected), name
                assert found.flags.writeable
            elif isinstance(expected, torch.UntypedStorage):
                assert found.tolist() == expected.tolist(), name
            else:
                assert found == expected, name


def test_what_is_long_takes_no_socket() -> None:
    """Photos that are not decoded yet, say."""
    memory = SharedMemory()
    try:
        packed = pack([b"x" * 50_000, np.arange(5000), "y" * 50_000], OwnBlocks(memory, 0))
        packed.memory = memory
        assert len(pickle.dumps(packed)) < 1000
        assert packed.copy(memory)[0] == b"x" * 50_000
        photo, array, text = packed.unpack()
        assert (photo, array.sum(), text) == (b"x" * 50_000, 4999 * 2500, "y" * 50_000)
        # They were copied, the array was not.
        assert [size >= 100_000 for _, size in memory.take_freed(0)] == [True]
        del array
        assert [size for _, size in memory.take_freed(0)] == [40_000]
    finally:
        memory.close_file()


def test_samples_that_cannot_be_pickled_need_only_be_collated() -> None:
    class Local:
        def __init__(self, index: int) -> None:
            self.function = lambda: index

    def collate(samples: list[Local]) -> torch.Tensor:
        return torch.tensor([sample.function() for sample in samples])

    def slow(index: int) -> Local:
        os.sched_yield()
        return Local(index)

    batches = list(processes(Made(50, slow), 8, collate_fn=collate, num_workers=3))
    assert [i for batch in batches for i in batch.tolist()] == list(range(50))


def test_batch_that_cannot_be_pickled_says_so() -> None:
    loader = processes(Made(4), 2, collate_fn=lambda samples: lambda: samples)
    with iterating(loader) as iterator, pytest.raises(Exception, match="pickle"):
        next(iterator)


def in_use() -> dict[str, int]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(psutil.Process().children(recursive=True)),
        "mappings": sum("memfd:minato" in line for line in open("/proc/self/maps")),
    }


def no_more_than(before: dict[str, int]) -> bool:
    """Whether it comes to that: a thread that has ended is listed for a moment, one of ours or one
    from before, and a file that is read in passing is open for one."""
    return eventually(lambda: all(now <= before[what] for what, now in in_use().items()))


def test_a_thousand_epochs_of_a_tiny_dataset() -> None:
    loader = processes(Made(4, filled), 2, persistent_workers=True, scheduler="fixed")
    with iterating(loader):
        # A forked process has its own of what it writes to: the first collection of garbage is a
        # lot of that.
        for _ in range(200):
            list(loader)
        # One may have done all that there was before the other was forked.
        assert eventually(lambda: len(psutil.Process().children(recursive=True)) == 3)
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        before, own, shared = in_use(), list(map(_own, family)), shared_memory()
        for _ in range(1000):
            assert len(list(loader)) == 2
        assert no_more_than(before), (before, in_use())
        assert not stays_in_shared_memory(shared)
        assert psutil.Process().children(recursive=True) == family[1:]
        grown = [after - was for was, after in zip(own, map(_own, family), strict=True)]
        # Samples that are kept would be 190 MiB.
        assert max(grown) < 32 << 20


def _own(process: psutil.Process) -> int:
    """Bytes of memory that `process` has made: what it has read of files, libraries above all, the
    kernel drops and brings back as it likes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * sum(map(int, re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", status)))


def test_many_loaders_leave_nothing() -> None:
    before, shared = in_use(), shared_memory()
    for _ in range(10):
        assert len(list(processes(Made(4, filled), 2))) == 2
    assert no_more_than(before), (before, in_use())
    assert not stays_in_shared_memory(shared)


def script(body: str) -> str:
    head = """
    import os, sys, torch
    from minato_async import MinatoLoader

    class Data:
        def __init__(self, n, size):
            self.n, self.size = n, size
        def __len__(self):
            return self.n
        def __getitem__(self, index):
            return torch.full((self.size,), float(index))

    if __name__ == "__main__":
    """
    return textwrap.dedent(head) + textwrap.indent(textwrap.dedent(body), "    ")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        timeout=4 * PATIENCE,
    )


def test_case_32_few_descriptors(tmp_path: Path) -> None:
    """One for each worker, and a handful; torch needs one for each tensor."""
    program = tmp_path / "program.py"
    program.write_text(
        script("""
        kept = []
        for batch in MinatoLoader(Data(600, 5000), 2, num_workers=4, executor="process"):
            kept.append(batch)
        print(sum(int(batch.sum()) for batch in kept))
        """)
    )
    done = run("bash", "-c", f"ulimit -n 40; exec {sys.executable} {program}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{5000 * sum(range(600))}\n"


def test_case_32_too_few_descriptors_is_an_error_that_says_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        script("""
        import resource
        used = len(os.listdir("/proc/self/fd"))
        loader = MinatoLoader(Data(60, 5000), 2, num_workers=8, executor="process")
        iterator = iter(MinatoLoader(Data(4, 4), num_workers=1, executor="process"))
        list(iterator)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, 100))
        try:
            list(loader)
        except (RuntimeError, OSError) as error:
            cause = error.__cause__ or error
            print(cause.errno, "ulimit -n" in "".join(cause.__notes__))
        """)
    )
    done = run(sys.executable, str(program))
    assert done.stdout == "24 True\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_case_32_small_dev_shm(tmp_path: Path) -> None:
    """Batches do not lie there, so its size is no matter: a container's 64 MB, or less."""
    program = tmp_path / "program.py"
    program.write_text(
        script("""
        import shutil, warnings
        warnings.simplefilter("error")
        assert shutil.disk_usage("/dev/shm").total <= 1 << 20
        loader = MinatoLoader(Data(60, 500_000), 4, num_workers=2, executor="process")
        print(sum(int(batch[:, 0].sum()) for batch in loader))
        """)
    )
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    done = run("unshare", "-m", "bash", "-c", f"{mount} && exec {sys.executable} {program}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{sum(range(60))}\n"


def test_little_address_space_is_made_do_with_and_told_of(tmp_path: Path) -> None:
    """`ulimit -v`: what does not fit into the shared memory goes through the sockets."""
    program = tmp_path / "program.py"
    program.write_text(
        script("""
        import resource, warnings
        MinatoLoader(Data(1, 1))
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20), -1))
        loader = MinatoLoader(Data(60, 500_000), 4, num_workers=2, executor="process")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            print(sum(int(batch[:, 0].sum()) for batch in loader))
        print([str(w.message) for w in caught if "ulimit -v" in str(w.message)] != [])
        """)
    )
    done = run(sys.executable, str(program))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{sum(range(60))}\nTrue\n"


def test_no_warning_where_there_is_nothing_to_warn_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded")
        list(processes(Made(8, filled), 2))
