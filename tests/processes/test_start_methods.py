"""Worker processes whose fork server is started afresh: by spawn, or by a fork server."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from minato_async import MinatoLoader
from minato_async.executors.process.transport.pickled_plan import PickledPlan
from tests.lifetime.support import all_ours_end
from tests.processes import module_level
from tests.processes.module_level import Closed, Held, Numbers, Stream
from tests.processes.support import PATIENCE, Countdown, Made, flat, processes
from tests.semantics.support import iterating, outcomes

METHODS = ("spawn", "forkserver")


@pytest.fixture(scope="module", autouse=True)
def services_of_multiprocessing() -> Iterator[None]:
    """Processes that come with the first use of these start methods, and stay until the program
    ends; here, until the last test."""
    server: Any = forkserver
    tracker: Any = resource_tracker
    multiprocessing.set_forkserver_preload(["minato_async", module_level.__name__])
    server.ensure_running()
    yield
    server._forkserver._stop()
    tracker._resource_tracker._stop()


def load(dataset: Any, **options: Any) -> list[Any]:
    """Two epochs, the second after `dataset.epoch` was set."""
    loader = processes(
        dataset,
        4,
        seed=7,
        transforms=[module_level.plus_noise],
        collate_fn=module_level.as_list,
        worker_init_fn=module_level.set_up,
        persistent_workers=True,
        **options,
    )
    with iterating(loader):
        first = list(loader)
        dataset.epoch = 1
        with torch.no_grad():
            return first + list(loader)


def plain(value: Any) -> Any:
    """What `value` is made of, but for where it was made."""
    return [
        (index, epoch, drawn[:2], drawn[2].tolist(), drawn[3], noise.tolist())
        for batch in value
        for index, epoch, drawn, _, noise in batch
    ]


@pytest.mark.parametrize("method", METHODS)
def test_all_is_as_on_threads_even_if_a_worker_is_killed(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    on_threads = load(Numbers(40), executor="thread")
    dataset = Numbers(40, Countdown(1, context))
    found = load(dataset, multiprocessing_context=context)
    assert plain(found) == plain(on_threads)
    assert [sample[1] for batch in found for sample in batch] == [0] * 40 + [1] * 40
    places = {sample[3] for batch in found for sample in batch}
    (fork_server,) = {parent for _, parent, _ in places}
    assert not {os.getpid(), fork_server} & {pid for pid, _, _ in places}
    if method == "spawn":
        # Modules are imported once, for all workers.
        assert {imported_in for _, _, imported_in in places} == {fork_server}
    # Each has its own, as when forked; what is shared already, all share.
    assert dataset.base[5] == 5.0
    assert dataset.array[0] == 0
    assert dataset.shared.tolist() == [2.0] * 40


@pytest.mark.parametrize("method", METHODS)
def test_shards(method: str) -> None:
    lives = Countdown(1, multiprocessing.get_context(method))
    loader = processes(
        Stream(40, lives), 2, multiprocessing_context=method, persistent_workers=True
    )
    with iterating(loader):
        found = outcomes(iter(loader))
        again = torch.cat(list(loader))
    (error,) = [result for result in found if isinstance(result, Exception)]
    assert "reads shard 1 was killed by SIGKILL" in str(error)
    assert sorted(again[:, 0].tolist()) == list(range(40))
    assert {shard for _, shard, _ in again.tolist()} == {0, 1}


@pytest.mark.parametrize("mode", ["sharded", "shared"])
@pytest.mark.parametrize("method", METHODS)
def test_every_sample_of_an_iterable_dataset(method: str, mode: str) -> None:
    loader = processes(
        Stream(41),
        4,
        num_workers=3,
        iterable_mode=mode,
        multiprocessing_context=method,
        transforms=[module_level.plus_ten],
        persistent_workers=True,
        max_queue_size=8,
    )
    shards = 3 if mode == "sharded" else 1
    parts = [list(range(shard, 41, shards)) for shard in range(shards)]
    batches = [[part[i : i + 4] for part in parts] for i in range(0, 41, 4)]
    expected = [[index + 10 for index in batch] for turn in batches for batch in turn if batch]
    with iterating(loader):
        for _ in range(2):
            assert [batch[:, 0].tolist() for batch in loader] == expected


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_validation_in_the_middle_of_training(method: str) -> None:
    """Where it forks, with what nobody can look up by name."""
    dataset: Any = Made(40, lambda index: index) if method == "fork" else range(40)
    options = {"multiprocessing_context": method, "persistent_workers": True}
    training, validation = processes(dataset, 4, **options), processes(dataset, 8, **options)
    with iterating(training), iterating(validation):
        for number, batch in enumerate(training):
            assert batch.tolist() == list(range(4 * number, 4 * number + 4))
            if number in (2, 5):
                assert flat(validation) == list(range(40))


def local_collate() -> Any:
    return lambda samples: samples


class Handle:
    def __init__(self) -> None:
        self.file = sys.stdout
        self.kept = 1

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class WithoutHandle(Handle):
    def __getstate__(self) -> dict[str, Any]:
        return {"kept": self.kept}


def on_error(index: int, error: BaseException) -> int:
    return index


class Local:
    """Its `__qualname__` is that of a class which nobody can look up."""

    __qualname__ = "somewhere.<locals>.Local"

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "options", "named"),
    [
        (Local(), {}, "the dataset (somewhere.<locals>.Local)"),
        (Handle(), {}, "the dataset's attribute 'file'"),
        (Made(4, lambda index: index), {}, "the dataset's attribute 'make'"),
        (WithoutHandle(), {"collate_fn": local_collate()}, "collate_fn"),
        (WithoutHandle(), {"worker_init_fn": local_collate()}, "worker_init_fn"),
        (WithoutHandle(), {"transforms": [on_error, local_collate()]}, "transforms"),
        (WithoutHandle(), {"on_error": local_collate()}, "on_error"),
    ],
    ids=["class", "file", "function", "collate_fn", "worker_init_fn", "transforms", "on_error"],
)
def test_what_cannot_be_pickled_is_named_with_what_to_do(
    dataset: Any, options: Any, named: str
) -> None:
    loader = processes(dataset, multiprocessing_context="spawn", **options)
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)) as caught:
        iter(loader)
    (note,) = caught.value.__notes__
    assert named in note
    for advice in ("top level of a module", "multiprocessing_context='fork'", "executor='thread'"):
        assert advice in note
    assert "'spawn'" in note


def test_default_is_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.14 on it is not "fork", on Linux either."""
    monkeypatch.setattr("minato_async.options.gil_is_on", lambda: True)
    assert flat(MinatoLoader(Made(4), num_workers=1)) == [0, 1, 2, 3]  # type: ignore[arg-type,var-annotated]
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: None)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "fork"])
    with pytest.raises((AttributeError, pickle.PicklingError)) as caught:
        iter(MinatoLoader(Made(4), num_workers=1))  # type: ignore[arg-type,var-annotated]
    assert "'forkserver'" in caught.value.__notes__[0]


def test_error_of_unpickling_is_raised_as_it_is() -> None:
    loader = processes(Closed(), multiprocessing_context="forkserver")
    with iterating(loader) as iterator:
        with pytest.raises(ValueError, match="has moved") as caught:
            next(iterator)
        all_ours_end()
    assert "unpickled the dataset" in caught.value.__notes__[0]


@pytest.mark.parametrize("method", METHODS)
def test_closed_while_it_starts(method: str) -> None:
    before = psutil.Process().children()
    iterator = iter(processes(Numbers(4), multiprocessing_context=method))
    iterator.close()
    assert psutil.Process().children() == before
    with pytest.raises(StopIteration):
        next(iterator)


def test_killed_while_it_starts() -> None:
    before = psutil.Process().children()
    with iterating(processes(Numbers(4), multiprocessing_context="spawn")) as iterator:
        (fork_server,) = (child for child in psutil.Process().children() if child not in before)
        fork_server.suspend()  # it is not to come up first
        fork_server.kill()
        with pytest.raises(RuntimeError, match="was killed by SIGKILL before it had come up"):
            next(iterator)
        # Though the iterator lives, as it does with an error that somebody keeps.
        all_ours_end()


def test_timeout_while_it_starts_says_so() -> None:
    """First the fork server, then the workers, which unpickle the dataset."""
    before = psutil.Process().children()
    loader = processes(Held(), multiprocessing_context="spawn", timeout=0.02)
    with iterating(loader) as iterator:
        (fork_server,) = (child for child in psutil.Process().children() if child not in before)
        fork_server.suspend()
        with pytest.raises(RuntimeError, match="Running: the start of the process"):
            next(iterator)
        fork_server.resume()
        while True:
            with pytest.raises(RuntimeError, match="Running: the start of") as caught:
                next(iterator)
            if "the start of minato-worker-1" in str(caught.value):
                break


def opened(value: Any) -> Any:
    pickled_plan = PickledPlan(value)
    try:
        return pickled_plan.open()
    finally:
        pickled_plan.close()


def test_pickled_plan_takes_more_tensors_than_there_may_be_descriptors() -> None:
    tensors = [torch.full((1000,), float(number)) for number in range(2000)]
    assert all(map(torch.equal, opened(tensors), tensors))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6000.0),
        lambda: torch.arange(6000.0)[10:20],
        lambda: torch.arange(12).view(3, 4).t(),
        lambda: torch.ones(3000, dtype=torch.bfloat16),
        lambda: torch.zeros(0, 3),
        lambda: torch.tensor(3),
        lambda: torch.zeros(100, 100).expand(5, 100, 100),
        lambda: torch.zeros(1000, requires_grad=True),
        lambda: torch.nn.Parameter(torch.ones(1000)),
    ],
)
def test_pickled_plan_brings_tensors_as_they_are(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    found = opened(tensor)
    assert type(found) is type(tensor)
    assert torch.equal(found, tensor)
    assert found.dtype == tensor.dtype
    assert found.stride() == tensor.stride()
    assert found.requires_grad == tensor.requires_grad


def test_pickled_plan_keeps_what_is_shared_within_it() -> None:
    base, shared = torch.zeros(5000), torch.zeros(5).share_memory_()
    array = np.zeros(5000)
    part, whole = opened((torch.from_numpy(array[:1000]), torch.from_numpy(array)))
    assert (len(part), len(whole)) == (1000, 5000)
    a, b, c, d, e, f = opened((base, base[5:], shared, shared[1:], array, array))
    b[0] = 1
    d[0] = 2
    e[0] = 3
    assert (a[5], c[1], f[0]) == (1, 2, 3)
    assert (base[5], shared[1], array[0]) == (0, 2, 0)


# In programs of their own


def start(program: Path, body: str, *arguments: str) -> subprocess.Popen[str]:
    program.write_text(textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        start_new_session=True,
    )


MAIN = """
    import multiprocessing, os, sys
    import torch
    from minato_async import MinatoLoader

    class Odd(Exception):
        def __init__(self, index, *, why):
            super().__init__(index, why)

    class Data:
        def __len__(self):
            return 12
        def __getitem__(self, index):
            if index == 5:
                raise Odd(index, why="odd")
            return index, os.getpid()

    print("imported")
    if __name__ == "__main__":
        loader = MinatoLoader(Data(), 2, num_workers=2, executor="process", collate_fn=list)
        # Having made a loader settles nothing.
        multiprocessing.set_start_method(sys.argv[1])
        found = []
        iterator = iter(loader)
        while True:
            try:
                found += next(iterator)
            except Odd as error:
                print(error.args)
            except StopIteration:
                break
        assert os.getpid() not in {pid for _, pid in found}
        print(sorted(index for index, _ in found))
"""


@pytest.mark.parametrize("method", METHODS)
def test_classes_of_the_main_module(method: str, tmp_path: Path) -> None:
    with start(tmp_path / "program.py", MAIN, method) as program:
        printed, errors = program.communicate(timeout=4 * PATIENCE)
    assert (program.returncode, errors) == (0, "")
    *imported, odd, found = printed.splitlines()
    # By this process, and by the fork server for all workers.
    assert imported == ["imported"] * 2
    assert odd == "(5, 'odd')"
    assert found == str([index for index in range(12) if index not in (4, 5)])


AT_ONCE = """
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier
    from minato_async import MinatoLoader

    def load(_):
        loader = MinatoLoader(
            range(8), num_workers=2, executor="process", multiprocessing_context="fork", timeout=20
        )
        together.wait()
        return sum(map(int, loader))

    together = Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(load, range(6))) == [28] * 6
"""


def test_first_loaders_of_several_threads_at_once(tmp_path: Path) -> None:
    """What one of them holds while another forks, nobody lets go in the forked process."""
    with start(tmp_path / "program.py", AT_ONCE) as program:
        _, errors = program.communicate(timeout=4 * PATIENCE)
    assert program.returncode == 0, errors


def test_main_module_without_a_guard(tmp_path: Path) -> None:
    body = """
    from minato_async import MinatoLoader
    list(MinatoLoader(range(4), num_workers=2, executor="process", multiprocessing_context="spawn"))
    """
    with start(tmp_path / "program.py", body) as program:
        _, errors = program.communicate(timeout=4 * PATIENCE)
    assert program.returncode == 1
    assert "freeze_support" in errors  # printed by the new process
    last = errors.splitlines()[-1]
    assert last.startswith("RuntimeError: the process from which workers are started exited with")
    assert '`if __name__ == "__main__":`' in last


HELD = """
    import signal, sys
    from minato_async import MinatoLoader
    if __name__ == "__main__":
        for number in map(int, sys.argv[1:]):
            signal.signal(number, lambda *_: None)
        iterator = iter(
            MinatoLoader(
                range(4), num_workers=2, executor="process", multiprocessing_context="spawn"
            )
        )
        next(iterator)
    else:
        print("coming up", flush=True)
        sys.stdin.readline()
"""


def interrupt(program: subprocess.Popen[str]) -> None:
    os.killpg(program.pid, signal.SIGINT)  # as the terminal does


def signal_and_go_on(program: subprocess.Popen[str]) -> None:
    os.killpg(program.pid, signal.SIGINT)
    os.killpg(program.pid, signal.SIGUSR1)
    go_on(program)


def kill(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.wait(PATIENCE)
    go_on(program)


def go_on(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.write("go on\n")
    program.stdin.flush()


@pytest.mark.parametrize(
    ("end", "handled", "code", "last"),
    [
        (interrupt, (), -signal.SIGINT, "KeyboardInterrupt"),
        (kill, (), -signal.SIGKILL, None),
        (signal_and_go_on, (signal.SIGINT, signal.SIGUSR1), 0, None),
    ],
    ids=["interrupted", "killed", "lives on"],
)
def test_signals_come_while_the_fork_server_comes_up(
    end: Callable[[Any], None],
    handled: tuple[signal.Signals, ...],
    code: int,
    last: str | None,
    tmp_path: Path,
) -> None:
    arguments = [str(int(number)) for number in handled]
    with start(tmp_path / "program.py", HELD, *arguments) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "coming up\n"
        end(program)
        # It comes to the end of what they print when all processes have ended.
        _, errors = program.communicate(timeout=4 * PATIENCE)
    assert program.returncode == code
    lines = errors.splitlines()
    assert (lines[-1] if lines else None) == last
    assert errors.count("Traceback") == (last is not None)
