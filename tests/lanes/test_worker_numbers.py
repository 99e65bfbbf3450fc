"""Numbers of workers, which user code is told: less than `num_workers`, and of those that run at
once no two have the same."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from minato_async import MinatoLoader, checkpoint, share
from minato_async.executors.thread import jobs as thread_jobs
from minato_async.executors.thread.executor import ThreadExecutor

from .support import PATIENCE, Made, Tally, busy, flat, until, wait_for


class Inside:
    """Who is where no worker steps aside, by number."""

    def __init__(self) -> None:
        share(self)  # or each worker would have its own
        self._lock = threading.Lock()
        self._inside: Counter[int] = Counter()
        self.seen: set[int] = set()
        self.together: list[int] = []
        self.threads: dict[int, set[int]] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        info: Any = get_worker_info()
        number = info.id
        with self._lock:
            self.seen.add(number)
            self.threads.setdefault(number, set()).add(threading.get_ident())
            self._inside[number] += 1
            if self._inside[number] > 1:
                self.together.append(number)
        try:
            yield
        finally:
            with self._lock:
                self._inside[number] -= 1


@pytest.mark.usefixtures("no_core_idles")
def test_one_that_takes_the_place_of_a_parked_one_has_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread_jobs, "PARKING", PATIENCE)
    inside = Inside()

    def load(index: int) -> int:
        slow = index % 9 == 0
        for _ in range(3):
            with inside():
                busy(0.01 if slow else 0.0005)
            checkpoint()
        return index

    loader = MinatoLoader(
        Made(900, load),
        batch_size=6,
        num_workers=3,
        collate_fn=list,
        in_order=False,
        timeout_threshold=0.004,
        timeout=PATIENCE,
    )
    parked = 0
    iterator: Any = iter(loader)
    samples = []
    for batch in iterator:
        samples += batch
        parked = max(parked, iterator.stats.parked)
    assert sorted(samples) == list(range(900))
    assert inside.seen == {0, 1, 2}
    assert inside.together == []
    # Some were parked, or nothing was shown.
    assert any(len(threads) > 1 for threads in inside.threads.values())


def test_one_that_takes_the_place_of_one_that_was_given_up_has_its_number() -> None:
    let_go, inside, seen = threading.Event(), Inside(), Tally()

    def load(index: int) -> int:
        info: Any = get_worker_info()
        seen.add((info.id, threading.current_thread().name))
        if index in (3, 9):
            wait_for(let_go)
            return index
        with inside():
            busy(0.002)
        return index

    loader = MinatoLoader(
        Made(40, load),
        batch_size=4,
        num_workers=2,
        collate_fn=list,
        sample_timeout=0.1,
        on_error="skip",
        timeout=PATIENCE,
    )
    assert len(flat(loader)) == 38
    assert inside.seen == {0, 1}
    assert inside.together == []
    names = {name for _, name in seen.counts}
    assert len(names) == 4  # each thread its own
    let_go.set()


class Source:
    """Gives no jobs, and remembers who failed."""

    def __init__(self) -> None:
        self.woken = threading.Event()

    def take(self, worker: Any) -> None:
        assert self.woken.wait(PATIENCE)

    def wake(self) -> None:
        self.woken.set()

    def worker_failed(self, worker: Any, error: BaseException) -> None:
        raise error


class TestExecutor:
    @pytest.fixture
    def executor(self) -> Iterator[ThreadExecutor]:
        executor = ThreadExecutor(Source(), lambda: None)
        yield executor
        executor.close()
        assert executor.join(PATIENCE)

    @staticmethod
    def numbers(executor: ThreadExecutor) -> list[int]:
        return [worker.number for worker in executor._workers]

    def test_that_of_one_aside_is_free_until_it_is_back(self, executor: ThreadExecutor) -> None:
        executor.resize(3, 3)
        aside = executor._workers[1]
        aside.aside = True
        executor.resize(4, 3)
        assert self.numbers(executor) == [0, 1, 2, 1]
        assert aside.shares
        assert executor._workers[3].shares
        assert not executor._workers[0].shares
        assert len({worker.name for worker in executor._workers}) == 4

    def test_none_is_started_that_would_have_a_number_too_many(
        self, executor: ThreadExecutor
    ) -> None:
        """The one aside came back before its replacement was started."""
        executor.resize(3, 3)
        executor.resize(4, 3)
        assert self.numbers(executor) == [0, 1, 2]
        executor.resize(4)
        assert self.numbers(executor) == [0, 1, 2, 3]

    def test_that_of_one_given_up_is_free(self, executor: ThreadExecutor) -> None:
        executor.resize(2, 2)
        executor.give_up(executor._workers[0])
        executor.resize(2, 2)
        assert self.numbers(executor) == [0, 1, 0]


def test_on_processes_too() -> None:
    def load(index: int) -> int:
        info: Any = get_worker_info()
        if index in (3, 9):
            busy(PATIENCE)
        return int(info.id)

    loader = MinatoLoader(
        Made(24, load),
        batch_size=4,
        num_workers=2,
        collate_fn=list,
        sample_timeout=0.5,
        on_error="skip",
        executor="process",
        timeout=PATIENCE,
    )
    ids = flat(loader)
    assert len(ids) == 22
    assert set(ids) <= {0, 1}
    until(lambda: not loader.stats.active)
