"""Case 13: workers, or those who look after them, are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset

from tests.cases.support import CHECKOUT
from tests.lanes.support import until
from tests.processes.support import (
    PATIENCE,
    Countdown,
    Made,
    Turnstile,
    flat,
    fork,
    kill_me,
    once_each,
    pause,
    processes,
)
from tests.semantics.support import iterating, outcomes


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_killed_worker_is_replaced_and_its_tickets_run_again(
    in_order: bool, batch_size: int
) -> None:
    lives = Countdown(1)

    def sample(index: int) -> int:
        if index == 13 and lives.take():
            kill_me()
        return index

    found = flat(processes(Made(40, sample), batch_size, in_order=in_order))
    once_each(found, 40)
    if in_order:
        assert found == list(range(40))


def test_a_replacement_knows_all_that_was_changed_since_the_first_epoch() -> None:
    lives = Countdown(1)

    class Marked:
        first = second = killing = 0

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 4 and self.killing and lives.take():
                kill_me()
            return torch.tensor([self.first, self.second])

    dataset = Marked()
    loader = processes(dataset, 1, num_workers=1, persistent_workers=True)
    with iterating(loader):
        list(loader)
        dataset.first = 1
        list(loader)
        dataset.second, dataset.killing = 2, True
        assert [batch.tolist() for batch in loader] == [[[1, 2]]] * 8
    assert not lives.take()


class Part:
    mark = 7

    def __init__(self, **attributes: Any) -> None:
        self.__dict__ |= attributes


def test_a_replacement_knows_of_nothing_that_is_no_more() -> None:
    """What was set inside an object that has been replaced since is not set inside the new one."""
    lives = Countdown(1)

    class Marked:
        def __init__(self) -> None:
            self.part = Part(mark=0)
            self.killing = False

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if index == 2 and self.killing and lives.take():
                kill_me()
            return self.part.mark

    dataset = Marked()
    loader = processes(dataset, 1, num_workers=1, persistent_workers=True)
    with iterating(loader):
        assert flat(loader) == [0] * 4
        dataset.part = Part(mark=1)
        assert flat(loader) == [1] * 4
        dataset.part = Part()
        assert flat(loader) == [7] * 4
        dataset.killing = True
        assert flat(loader) == [7] * 4
    assert not lives.take()


made_anew = fork.Value("i", 0)


class Large:
    """Counts how often it is unpickled: a worker is told of a change once."""

    def __init__(self, mark: int) -> None:
        self.mark = mark

    def __setstate__(self, state: dict[str, Any]) -> None:
        with made_anew.get_lock():
            made_anew.value += 1
        self.__dict__ |= state


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_a_worker_is_told_of_a_change_once_and_so_is_its_replacement(kind: str) -> None:
    lives = Countdown(1)

    class Marked:
        def __init__(self) -> None:
            self.large = Large(0)
            self.epoch = 0

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> list[int]:
            if index == 2 and self.epoch == 5 and lives.take():
                kill_me()
            return [self.large.mark, self.epoch]

    class MarkedStream(Marked, IterableDataset[Any]):
        def __iter__(self) -> Any:
            return (self[index] for index in range(4))

    dataset: Any = Marked() if kind == "map" else MarkedStream()
    loader = processes(
        dataset, None, num_workers=1, persistent_workers=True, scheduler="fixed", collate_fn=list
    )
    made_anew.value = 0
    told = []
    with iterating(loader):
        for dataset.epoch in range(7):
            if dataset.epoch == 1:
                dataset.large = Large(1)
            found = [result for result in outcomes(iter(loader)) if isinstance(result, list)]
            assert {tuple(sample) for sample in found} == {(dataset.epoch > 0, dataset.epoch)}
            told.append(made_anew.value)
    assert not lives.take()
    before, after = told[1], told[-1]
    assert 0 < before < after
    # Killed in the middle of epoch 5, an iterator is not begun anew before the next one.
    assert told == [0, *[before] * 4, after if kind == "map" else before, after]


def test_worker_that_nobody_replaces_leaves_its_slot_to_others() -> None:
    """One is enough now, and the one too many is killed in what was to be its last sample."""
    came, door = fork.Semaphore(0), Countdown(0)

    class Falling:
        interval = 0.01
        wanted = 2

        def start(self) -> int:
            return self.wanted

        def decide(self, reading: Any) -> int:
            return self.wanted

    def sample(index: int) -> int:
        if index < 2:
            came.release()
            assert door.wait()
        return index

    scheduler = Falling()
    with iterating(processes(Made(12, sample), scheduler=scheduler, timeout=PATIENCE)) as iterator:
        for _ in range(2):
            assert came.acquire(timeout=PATIENCE)
        scheduler.wanted = 1
        until(lambda: iterator.stats.threads == 1)
        # The one that was started last is to go.
        _, last = sorted(psutil.Process().children()[0].children(), key=lambda p: p.create_time())
        last.kill()
        until(lambda: not last.is_running())
        for _ in range(2):
            door.add()
        assert flat(iterator) == list(range(12))


def test_every_worker_is_killed_again_and_again() -> None:
    # Never twice over one index: that would be its fault.
    lives = {index: Countdown(1) for index in range(3, 120, 10)}

    def sample(index: int) -> torch.Tensor:
        if index in lives and lives[index].take():
            kill_me()
        return torch.full((2000,), index)

    batches = list(processes(Made(120, sample), 5, num_workers=3, in_order=False))
    once_each((row[0].item() for batch in batches for row in batch), 120)
    assert all((row == row[0]).all() for batch in batches for row in batch)


@pytest.mark.parametrize(
    ("end", "how"),
    [(kill_me, "killed by SIGKILL"), (lambda: os._exit(7), "exited with status 7")],
    ids=["signal", "exit"],
)
def test_repeated_deaths_over_one_index_are_its_failure(end: Any, how: str) -> None:
    def sample(index: int) -> int:
        if index == 5:
            end()
        return index

    with iterating(processes(Made(12, sample), 2)) as iterator:
        *found, _ = results = outcomes(iterator)
        errors = [result for result in results if isinstance(result, Exception)]
        assert len(errors) == 1
        assert how in str(errors[0])
        assert "sample index 5" in str(errors[0])
        rest = flat(batch for batch in results if not isinstance(batch, Exception))
        assert rest == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
        assert len(found) == 5


def test_index_that_kills_can_be_skipped() -> None:
    def sample(index: int) -> int:
        if index == 5:
            kill_me()
        return index

    loader = processes(Made(12, sample), 2, on_error="skip")
    iterator = iter(loader)
    found = flat(iterator)
    assert found == [index for index in range(12) if index != 5]
    ((index, error),) = iterator.stats.skipped
    assert index == 5
    assert "SIGKILL" in str(error)


def test_child_that_a_sample_forks_and_lets_return_does_not_go_on_as_the_worker() -> None:
    child = fork.Value("i", 0)

    def sample(index: int) -> tuple[int, int]:
        if index == 5:
            pid = os.fork()
            if pid:
                child.value = pid
                os.waitpid(pid, 0)
        return index, os.getpid()

    with iterating(processes(Made(12, sample), None)) as iterator:
        found = list(iterator)
    assert [index for index, _ in found] == list(range(12))
    assert child.value
    assert child.value not in {pid for _, pid in found}


def test_worker_dies_while_it_collates() -> None:
    lives = Countdown(1)

    def collate(samples: list[int]) -> list[int]:
        if 4 in samples and lives.take():
            kill_me()
        return samples

    assert list(processes(Made(8), 2, collate_fn=collate)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("options", [{}, {"in_order": False}, {"on_error": "skip"}], ids=str)
def test_collate_that_always_kills_fails_its_batch_alone(options: dict[str, Any]) -> None:
    def collate(samples: list[int]) -> list[int]:
        if 4 in samples:
            kill_me()
        return samples

    with iterating(processes(Made(8), 2, collate_fn=collate, num_workers=1, **options)) as iterator:
        found = outcomes(iterator)
        assert not iterator.stats.skipped
    made = [result for result in found if isinstance(result, list)]
    assert sorted(made) == [[0, 1], [2, 3], [6, 7]]
    (error,) = [result for result in found if not isinstance(result, list)]
    # None of its samples is at fault.
    assert str(error) == (
        "a worker process was killed by SIGKILL, 3 times, over collating samples [4, 5]"
    )


def test_diverted_sample_outlives_the_worker_that_began_it() -> None:
    lives, first_step = Countdown(1), Countdown(1)
    began = Countdown(1)

    def slow(value: torch.Tensor) -> torch.Tensor:
        if value[0] == 3 and first_step.take():
            pause(0.05)
        return value

    def deadly(value: torch.Tensor) -> torch.Tensor:
        if value[0] == 3 and lives.take():
            kill_me()
        return value + 1000

    def sample(index: int) -> torch.Tensor:
        if index == 3:
            assert began.take(), "its first step ran again although it was finished"
        return torch.full((4000,), index)

    loader = processes(
        Made(20, sample),
        1,
        in_order=False,
        transforms=[slow, deadly],
        timeout_threshold=0.02,
    )
    iterator = iter(loader)
    found = [int(batch[0, 0]) - 1000 for batch in iterator]
    once_each(found, 20)
    assert iterator.stats.diverted >= 1


def test_worker_that_is_woken_when_all_has_ended_disturbs_nobody() -> None:
    """By a consumer, say, who was about to when another closed the loader."""
    with iterating(processes(Made(4))) as iterator:
        assert flat([next(iterator)]) == [0]
        worker = next(iter(iterator._engine.executor._workers.values()))
    assert iterator._engine.join(PATIENCE)
    worker.ring()


def test_nobody_left_to_start_workers_is_an_error_and_no_hang() -> None:
    door = Turnstile()

    def sample(index: int) -> int:
        door.hold()
        return index

    with iterating(processes(Made(8, sample), num_workers=2, scheduler="fixed")) as iterator:
        door.wait_for(2)
        (fork_server,) = psutil.Process().children()
        workers = fork_server.children()
        assert len(workers) == 2
        fork_server.kill()
        with pytest.raises(RuntimeError, match="engine has failed") as caught:
            next(iterator)
        assert "workers are started has ended" in str(caught.value.__cause__)
        # The workers do not outlive it.
        psutil.wait_procs(workers, PATIENCE)
        assert not any(worker.is_running() for worker in workers)


PARENT = """
    import os, sys, threading
    from minato_async import MinatoLoader

    class Data:
        def __len__(self):
            return 100
        def __getitem__(self, index):
            os.write(1, b"held\\n")
            threading.Event().wait(1000)

    if __name__ == "__main__":
        iterator = iter(MinatoLoader(Data(), num_workers=2, executor="process", in_order=True))
        sys.stdin.readline()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
def test_workers_end_with_the_parent(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=CHECKOUT,
    )
    with parent:
        assert parent.stdout is not None
        # Either worker has begun: the second is forked when the first is already at work.
        for _ in range(2):
            assert parent.stdout.readline() == b"held\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) == 3
        parent.send_signal(how)
        parent.wait(PATIENCE)
        _, alive = psutil.wait_procs(family, PATIENCE)
        assert not alive


LAST = """
    import os, select, signal
    from minato_async import MinatoLoader

    parent = os.getpid()

    class Data:
        def __len__(self):
            return 1
        def __getitem__(self, index):
            os.kill(os.getppid(), signal.SIGSTOP)  # it would kill this worker
            end = os.pidfd_open(parent)
            os.kill(parent, signal.SIGKILL)
            select.select([end], [], [])
            print(os.getppid(), os.getpid(), flush=True)
            return index

    if __name__ == "__main__":
        list(MinatoLoader(Data(), num_workers=1, executor="process"))
"""


def test_a_worker_that_has_outlived_the_parent_says_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LAST)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    ) as parent:
        assert parent.stdout is not None
        fork_server, worker = map(psutil.Process, map(int, parent.stdout.readline().split()))
        until(lambda: worker.status() == psutil.STATUS_ZOMBIE)
        fork_server.kill()
        assert parent.communicate(timeout=PATIENCE) == ("", "")


def test_ctrl_c_in_the_terminal_is_the_parents_alone() -> None:
    """The terminal sends it to every process of the group; so the workers must not take it."""
    door = Turnstile()

    def sample(index: int) -> int:
        door.hold()
        return index

    with iterating(processes(Made(4, sample), num_workers=2)) as iterator:
        door.wait_for(2)
        for process in psutil.Process().children(recursive=True):
            process.send_signal(signal.SIGINT)
        door.let_go()
        assert flat(iterator) == list(range(4))


def test_signals_that_the_program_handles_are_left_to_it() -> None:
    """A batch system, say, sends a warning to every process of a job."""
    door = Turnstile()

    def sample(index: int) -> int:
        door.hold()
        return index

    came = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: came.set())
    try:
        with iterating(processes(Made(4, sample), num_workers=2)) as iterator:
            door.wait_for(2)
            family = psutil.Process().children(recursive=True)
            for process in (*family, psutil.Process()):
                process.send_signal(signal.SIGUSR1)
            door.let_go()
            assert flat(iterator) == list(range(4))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came.is_set()


PRINTS = """
    import sys
    from minato_async import MinatoLoader

    class Data:
        def __len__(self):
            return 4
        def __getitem__(self, index):
            print("sample", index)
            assert sys.stdin.read() == ""
            return index

    if __name__ == "__main__":
        print("begin")
        list(MinatoLoader(Data(), num_workers=2, executor="process"))
        print("end")
"""


def test_what_is_printed_is_printed_once() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PRINTS)],
        env=buffered,
        input="for the parent",
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    first, *samples, last = done.stdout.splitlines()
    assert (first, last) == ("begin", "end")
    assert sorted(samples) == [f"sample {index}" for index in range(4)]
