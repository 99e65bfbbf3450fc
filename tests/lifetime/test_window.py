"""Contract C3: what is claimed and not yet delivered never exceeds the window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from tests.lifetime.support import Gate, Samples, as_list, eventually, in_thread, wait_for_end

BATCH = 4
N = 60

ORDERS = pytest.mark.parametrize("in_order", [True, False], ids=["in_order", "any_order"])
#: `max_queue_size`: smaller than a batch, one batch, no multiple of it, several, all there is.
WINDOWS = pytest.mark.parametrize("window", [None, 1, 3, 4, 6, 8, 11, 1000])


def make_loader(dataset: Any, **options: Any) -> MinatoLoader[Any]:
    defaults: dict[str, Any] = {"batch_size": BATCH, "collate_fn": as_list, "scheduler": "fixed"}
    return MinatoLoader(dataset, **(defaults | options))


def wait_until_idle(iterator: Any, workers: int) -> None:
    """Wait until the engine can do no more: each of `workers` is waiting for a job."""
    assert eventually(lambda: len(iterator._engine._idle) == workers)


def cap(window: int | None, workers: int, prefetch_factor: int = 2) -> int:
    return prefetch_factor * workers * BATCH if window is None else max(window, BATCH)


@ORDERS
@WINDOWS
@pytest.mark.parametrize("workers", [1, 3])
def test_a_slow_consumer_finds_the_window_full_and_no_more(
    workers: int, window: int | None, in_order: bool
) -> None:
    gate = Gate()
    gate.let_go()
    loader = make_loader(
        Samples(N, gate), num_workers=workers, max_queue_size=window, in_order=in_order
    )
    iterator = iter(loader)
    delivered: list[int] = []
    while True:
        wait_until_idle(iterator, workers)
        left = N - len(delivered)
        assert gate.started - len(delivered) == min(cap(window, workers), left)
        if not left:
            break
        delivered += next(iterator)
    assert sorted(delivered) == list(range(N))
    assert next(iterator, None) is None


@ORDERS
@WINDOWS
def test_samples_that_never_finish_fill_the_window_and_no_more(
    window: int | None, in_order: bool
) -> None:
    """More workers than the window has places: those that find none have to wait."""
    workers = 16
    gate = Gate()
    loader = make_loader(
        Samples(N, gate),
        num_workers=workers,
        max_queue_size=window,
        in_order=in_order,
        prefetch_factor=1,
    )
    iterator = iter(loader)
    places = min(cap(window, workers, prefetch_factor=1), workers)
    gate.wait_until(lambda gate: gate.inside == places)
    wait_until_idle(iterator, workers - places)
    assert gate.started == places
    gate.let_go()
    assert sorted(sample for batch in iterator for sample in batch) == list(range(N))


@ORDERS
def test_a_batch_that_waits_for_one_sample_does_not_widen_the_window(in_order: bool) -> None:
    """The sample that all wait for is the first: behind it the window fills up."""
    gate = Gate(free=range(1, N))
    loader = make_loader(Samples(N, gate), num_workers=2, max_queue_size=10, in_order=in_order)
    iterator = iter(loader)
    delivered: list[int] = []
    if not in_order:
        # The others come; the last of them are too few to make a batch without the first.
        while len(delivered) + BATCH < N:
            delivered += next(iterator)
            assert gate.started - len(delivered) <= 10 + BATCH
        assert 0 not in delivered
    wait_until_idle(iterator, 1)
    assert gate.started - len(delivered) == min(10, N - len(delivered))
    gate.let_go(0)
    assert sorted(delivered + [s for batch in iterator for s in batch]) == list(range(N))


@ORDERS
@pytest.mark.parametrize("window", [1, 4, 6, 9])
def test_a_dataset_that_fetches_batches_counts_as_many_samples(window: int, in_order: bool) -> None:
    gate = Gate()
    gate.let_go()

    class Batches(Samples):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [gate(index) for index in indices]

    loader = make_loader(Batches(N), num_workers=3, max_queue_size=window, in_order=in_order)
    iterator = iter(loader)
    delivered: list[int] = []
    while len(delivered) < N:
        wait_until_idle(iterator, 3)
        whole_batches = max(window // BATCH, 1) * BATCH
        assert gate.started - len(delivered) == min(whole_batches, N - len(delivered))
        delivered += next(iterator)
    iterator.close()


@ORDERS
def test_lost_and_failed_samples_give_their_places_back(in_order: bool) -> None:
    def fail_every_third(index: int) -> int:
        if index % 3 == 0:
            raise ZeroDivisionError(index)
        return index

    iterator: Any = iter(
        make_loader(
            Samples(N, fail_every_third), num_workers=3, max_queue_size=6, in_order=in_order
        )
    )
    failed, delivered = 0, []
    while True:
        try:
            batch = next(iterator, None)
        except ZeroDivisionError:
            failed += 1
            continue
        if batch is None:
            break
        delivered += batch
    # In order the whole batch is lost, and one sample in any three fails in each.
    assert (failed, len(delivered)) == ((N // BATCH, 0) if in_order else (N // 3, N - N // 3))
    # The rest of a lost batch may still be running.
    feed = iterator._epoch.feed
    assert eventually(lambda: feed.in_window == feed.outstanding == 0)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_short_last_block_completes_a_batch_larger_than_the_window(
    window: int, drop_last: bool
) -> None:
    """A failed sample leaves a gap, which only the last, short block can fill."""

    def fail(index: int) -> int:
        if index == 5:
            raise ZeroDivisionError
        return index

    loader = make_loader(
        Samples(10, fail),
        num_workers=2,
        in_order=False,
        max_queue_size=window,
        drop_last=drop_last,
    )
    delivered: list[int] = []

    def consume() -> None:
        iterator = iter(loader)
        while True:
            try:
                delivered.extend(next(iterator))
            except ZeroDivisionError:
                pass
            except StopIteration:
                return

    wait_for_end([in_thread(consume)])
    # With `drop_last` the sampler itself leaves out the last two.
    expected = 7 if drop_last else 9
    assert len(delivered) == (expected // BATCH * BATCH if drop_last else expected)


# What the sampler draws


class CountedSampler:
    """Draws `n` indices, and counts them."""

    def __init__(self, n: int | None = N) -> None:
        self.n = n
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        for index in itertools.count() if self.n is None else range(self.n):
            self.drawn += 1
            yield index % N


@ORDERS
@pytest.mark.parametrize("prefetch_factor", [1, 2, 3])
def test_the_sampler_is_read_ahead_as_by_torch(prefetch_factor: int, in_order: bool) -> None:
    def draws(cls: type[DataLoader[Any]], **options: Any) -> list[int]:
        """What was drawn after `iter()`, and after each batch."""
        sampler = CountedSampler()
        loader: Any = cls(
            Samples(N),  # type: ignore[arg-type]
            batch_size=BATCH,
            sampler=sampler,
            num_workers=2,
            collate_fn=as_list,
            prefetch_factor=prefetch_factor,
            **options,
        )
        iterator = iter(loader)
        counts = [sampler.drawn]
        for _ in iterator:
            counts.append(sampler.drawn)
        return counts

    assert draws(MinatoLoader, in_order=in_order) == draws(DataLoader)


@ORDERS
@pytest.mark.parametrize("window", [1, 4, 6, 11])
def test_an_infinite_sampler_is_read_no_further_than_the_window_needs(
    window: int, in_order: bool
) -> None:
    sampler = CountedSampler(None)
    iterator = iter(
        make_loader(
            Samples(N), num_workers=2, sampler=sampler, max_queue_size=window, in_order=in_order
        )
    )
    for taken in range(20):
        wait_until_idle(iterator, 2)
        # Whole batches are drawn, until the window can be filled.
        assert sampler.drawn - taken * BATCH == -(-cap(window, 2) // BATCH) * BATCH
        next(iterator)
    iterator.close()
