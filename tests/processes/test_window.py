"""What is claimed and not yet delivered never exceeds the window, whoever runs it."""

from __future__ import annotations

import pytest

from tests.lifetime.test_window import BATCH, ORDERS, N, cap, wait_until_idle
from tests.processes.support import Countdown, Made, flat, once_each, processes
from tests.semantics.support import iterating


@ORDERS
@pytest.mark.parametrize("window", [None, 1, 6, 11])
def test_a_slow_consumer_finds_the_window_full_and_no_more(
    window: int | None, in_order: bool
) -> None:
    begun = Countdown(0)

    def sample(index: int) -> int:
        begun.add()
        return index

    loader = processes(
        Made(N, sample), BATCH, max_queue_size=window, in_order=in_order, scheduler="fixed"
    )
    started = 0
    found: list[int] = []
    with iterating(loader) as iterator:
        while len(found) < N:
            wait_until_idle(iterator, 2)
            while begun.take():
                started += 1
            assert started - len(found) == min(cap(window, 2), N - len(found))
            found += flat([next(iterator)])
    once_each(found, N)
