"""The composition of batches in any order: in the middle of an epoch that of a plain shuffle.

The number of slow samples among many that a plain shuffle puts somewhere is hypergeometric. In the
middle of the epoch the share of slow samples must be that of the whole epoch, within three standard
deviations (and never less than 5 %, for what is on its way where the middle begins and ends), and
its spread from batch to batch not much more than a plain shuffle's. The ends are apart: there are
no slow samples before the first is finished, and what is slow in the end comes last.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import pytest

from minato_async import MinatoLoader

from .support import Made, busy

SAMPLES, BATCH_SIZE, WORKERS = 3840, 16, 4
#: Batches at either end that are left out, of 240.
END = 24
SHARE = 0.2
FAST, SLOW = 0.0004, 0.004


def assert_like_a_shuffle(shares: Sequence[float]) -> None:
    """`shares` of slow samples, batch by batch, of the middle of the epoch."""
    seen = len(shares) * BATCH_SIZE
    sigma = (SHARE * (1 - SHARE) / seen * (1 - seen / SAMPLES)) ** 0.5
    assert abs(statistics.mean(shares) - SHARE) <= max(3 * sigma, 0.05 * SHARE)
    expected = (SHARE * (1 - SHARE) / BATCH_SIZE) ** 0.5
    assert statistics.pstdev(shares) <= 1.25 * expected


def shares_of(order: Sequence[int], slow: frozenset[int]) -> list[float]:
    return [
        sum(index in slow for index in order[start : start + BATCH_SIZE]) / BATCH_SIZE
        for start in range(0, SAMPLES, BATCH_SIZE)
    ]


@pytest.fixture
def slow() -> frozenset[int]:
    return frozenset(random.Random(5).sample(range(SAMPLES), round(SHARE * SAMPLES)))


def test_the_statistic_knows_a_shuffle_from_a_pile(slow: frozenset[int]) -> None:
    order = list(range(SAMPLES))
    random.Random(6).shuffle(order)
    assert_like_a_shuffle(shares_of(order, slow)[END:-END])
    # Every slow sample 40 batches late: they pile up towards the end.
    late = sorted(
        range(SAMPLES), key=lambda place: place + 40 * BATCH_SIZE * (order[place] in slow)
    )
    shares = shares_of([order[place] for place in late], slow)
    with pytest.raises(AssertionError):
        assert_like_a_shuffle(shares[END:-END])
    # Let go in bursts, though none too late.
    bursts = [sum(shares[n - n % 8 : n - n % 8 + 8]) if n % 8 == 0 else 0.0 for n in range(240)]
    with pytest.raises(AssertionError):
        assert_like_a_shuffle(bursts[END:-END])


@pytest.mark.parametrize("divert", [True, False], ids=["diverted", "not diverted"])
def test_the_middle_of_an_epoch(slow: frozenset[int], divert: bool) -> None:
    def step(index: int) -> int:
        busy(SLOW if index in slow else FAST)
        return index

    loader = MinatoLoader(
        Made(SAMPLES, step),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=WORKERS,
        in_order=False,
        collate_fn=list,
        scheduler="fixed",
        transforms=[step] if divert else None,
        timeout_threshold=SLOW / 2,
        # All of them: so it is not the window that keeps slow samples from piling up.
        max_queue_size=SAMPLES,
    )
    iterator = iter(loader)
    order = [index for batch in iterator for index in batch]
    assert sorted(order) == list(range(SAMPLES))
    if divert:
        assert iterator.stats.diverted >= len(slow)
    assert_like_a_shuffle(shares_of(order, slow)[END:-END])
