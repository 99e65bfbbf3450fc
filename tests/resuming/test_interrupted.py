"""States asked for in the middle of `next()`, by a signal handler, and after Ctrl-C in it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from minato_async import MinatoLoader

N = 40


class Calling:
    """A sampler that calls `hook` in the middle of each draw."""

    def __init__(self, hook: Callable[[int], None] = lambda _: None) -> None:
        self.hook = hook

    def __iter__(self) -> Iterator[int]:
        for index in range(N):
            self.hook(index)
            yield index


class Numbers:
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index


def loader_with(sampler: Any, workers: int) -> MinatoLoader[Any]:
    return MinatoLoader(Numbers(), batch_size=2, sampler=sampler, num_workers=workers)  # type: ignore[arg-type]


def rest_of(state: Any, workers: int) -> list[int]:
    loader = loader_with(Calling(), workers)
    loader.load_state_dict(state)
    return [index for batch in loader for index in batch.tolist()]


@pytest.fixture(params=[0, 2])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_a_signal_handler_may_ask_for_the_state(workers: int) -> None:
    states: list[Any] = []
    received: list[int] = []

    def save(number: int, frame: FrameType | None) -> None:
        states.append((list(received), loader.state_dict()))

    def hook(index: int) -> None:
        if index >= N // 2:
            signal.raise_signal(signal.SIGUSR1)

    loader = loader_with(Calling(hook), workers)
    before = signal.signal(signal.SIGUSR1, save)
    try:
        for batch in loader:
            received += batch.tolist()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received == list(range(N))
    assert len(states) == N // 2
    for then, state in states:
        assert then + rest_of(state, workers) == received


def test_the_batch_that_ctrl_c_cost_is_in_what_is_left(workers: int) -> None:
    def hook(index: int) -> None:
        if index == N // 2:
            raise KeyboardInterrupt

    loader = loader_with(Calling(hook), workers)
    received: list[int] = []

    def train() -> None:
        for batch in loader:
            received.extend(batch.tolist())

    with pytest.raises(KeyboardInterrupt):
        train()
    assert received + rest_of(loader.state_dict(), workers) == list(range(N))
