"""Diversion between steps, on threads."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch

from minato_async import MinatoLoader

from .support import PATIENCE, Made, Tally, busy, flat, until, wait_for

#: Below what the slow steps cost, above what the fast ones do. The costs are slept, so a busy
#: machine makes more samples slow, never fewer.
THRESHOLD = 0.005
SLOW = 0.012


def loader_of(
    dataset: Any, *transforms: Any, workers: int = 3, **options: Any
) -> MinatoLoader[Any]:
    usual = {
        "batch_size": 4,
        "num_workers": workers,
        "in_order": False,
        "collate_fn": list,
        "timeout_threshold": THRESHOLD,
        "timeout": PATIENCE,
    }
    return MinatoLoader(dataset, transforms=transforms or None, **(usual | options))


def counting(tally: Tally, step: int, slow: Any = lambda index: False) -> Any:
    def transform(index: int) -> int:
        tally.add((index, step))
        if slow(index):
            busy(SLOW)
        return index

    return transform


def counted(n: int, steps: int) -> dict[tuple[int, int], int]:
    return {(index, step): 1 for index in range(n) for step in range(steps)}


class TestExactlyOnce:
    @pytest.mark.parametrize("workers", [1, 2, 5])
    @pytest.mark.parametrize("slow_step", [0, 1, 2])
    def test_no_step_runs_twice(self, workers: int, slow_step: int) -> None:
        n, tally = 40, Tally()
        steps = [
            counting(tally, step, lambda index, step=step: step == slow_step and index % 5 == 0)
            for step in range(3)
        ]
        loader = loader_of(Made(n, steps[0]), *steps[1:], workers=workers)
        iterator = iter(loader)
        assert sorted(flat(iterator)) == list(range(n))
        assert tally.counts == counted(n, 3)
        stats = iterator.stats
        assert stats.finished == n
        if slow_step < 2:
            assert stats.diverted >= n // 5

    def test_a_finished_sample_is_never_diverted(self) -> None:
        n, tally = 20, Tally()
        loader = loader_of(Made(n), counting(tally, 1, lambda index: True))
        iterator = iter(loader)
        # On a busy machine the first step may be the slow one, for a sample or two.
        assert sorted(flat(iterator)) == list(range(n))
        assert iterator.stats.diverted < n // 2
        assert tally.counts == {(index, 1): 1 for index in range(n)}

    def test_a_single_step_is_never_diverted(self) -> None:
        loader = loader_of(Made(12, lambda index: busy(SLOW) or index))
        iterator = iter(loader)
        assert sorted(flat(iterator)) == list(range(12))
        assert iterator.stats.diverted == 0

    def test_strict_order_never_diverts(self) -> None:
        n, tally = 24, Tally()
        steps = [counting(tally, step, lambda index: index % 3 == 0) for step in range(2)]
        loader = loader_of(Made(n, steps[0]), steps[1], in_order=True)
        iterator = iter(loader)
        assert flat(iterator) == list(range(n))
        assert iterator.stats.diverted == 0
        assert tally.counts == counted(n, 2)

    def test_all_may_be_slow(self) -> None:
        n, tally = 24, Tally()
        steps = [counting(tally, step, lambda index: True) for step in range(3)]
        loader = loader_of(Made(n, steps[0]), *steps[1:], workers=2, max_queue_size=6)
        iterator = iter(loader)
        assert sorted(flat(iterator)) == list(range(n))
        assert tally.counts == counted(n, 3)
        assert iterator.stats.diverted == n

    def test_one_that_fails_later_fails_with_its_index_and_step(self) -> None:
        def fail(index: int) -> int:
            if index == 5:
                raise ValueError("no")
            return index

        loader = loader_of(Made(8, lambda index: busy(SLOW) or index), fail)
        with pytest.raises(ValueError, match="no") as caught:
            list(loader)
        note = "\n".join(caught.value.__notes__)
        assert "sample index 5" in note
        assert "transforms[0]" in note


class TestOthersGoFirst:
    def test_fast_samples_do_not_wait_for_slow_ones(self) -> None:
        """As many samples get stuck in their second step as there are workers. The slow lane
        has one place here, and the other worker goes on with fast samples."""
        go_on = threading.Event()

        def second_step(index: int) -> int:
            if index < 2:
                wait_for(go_on)
            return index

        dataset = Made(16, lambda index: busy(0.35 * (index < 2)) or index)
        loader = loader_of(
            dataset, second_step, workers=2, max_queue_size=16, timeout_threshold=0.3
        )
        iterator = iter(loader)
        seen = flat(next(iterator) for _ in range(3))
        assert not {0, 1} & set(seen)
        go_on.set()
        assert sorted(seen + flat(iterator)) == list(range(16))
        assert iterator.stats.diverted >= 2

    def test_the_temp_queue_is_bounded_by_the_window(self) -> None:
        window, begun = 8, Tally()
        longest: list[int] = []

        def first_step(index: int) -> int:
            begun.add("begun")
            busy(SLOW / 4)
            return index

        def second_step(index: int) -> int:
            longest.append(len(epoch.lanes.temp_queue))
            return index

        loader = loader_of(
            Made(64, first_step),
            second_step,
            workers=4,
            max_queue_size=window,
            timeout_threshold=1e-6,
        )
        iterator = iter(loader)
        epoch: Any = iterator._epoch
        # Nobody takes a batch: what is claimed fills the window and no more.
        until(lambda: iterator.stats.finished == window)
        assert begun.counts["begun"] == window
        assert sorted(flat(iterator)) == list(range(64))
        assert max(longest) <= window

    def test_costs_of_diverted_samples_count_in_full(self) -> None:
        dataset = Made(8, lambda index: busy(SLOW) or index)
        iterator = iter(loader_of(dataset, lambda index: busy(2 * SLOW) or index))
        flat(iterator)
        first, second = iterator.stats.steps
        assert iterator.stats.diverted == 8
        assert (first.samples, second.samples) == (8, 8)
        assert first.p50 >= SLOW
        assert second.p50 >= 2 * SLOW
        assert iterator._epoch.threshold.percentile(1.0) >= 3 * SLOW


class TestRandomStream:
    @pytest.mark.parametrize("divert", [True, False])
    def test_it_goes_on_where_it_was(self, divert: bool) -> None:
        def draw(values: list[Any]) -> list[Any]:
            busy(0.002)
            return [*values, random.random(), torch.rand(()).item()]

        def values(**options: Any) -> dict[int, list[Any]]:
            loader = loader_of(Made(24, lambda index: draw([index])), draw, draw, seed=1, **options)
            iterator = iter(loader)
            samples = flat(iterator)
            assert bool(iterator.stats.diverted) == (options["timeout_threshold"] < 1)
            return {sample[0]: sample for sample in samples}

        without = values(timeout_threshold=100.0)
        again = values(timeout_threshold=1e-6 if divert else 100.0, workers=4)
        assert again == without
        assert len({tuple(sample[1:]) for sample in again.values()}) == 24

    def test_nothing_drawn_by_others_in_between_comes_in(self) -> None:
        """One worker: the streams of many samples alternate on one thread."""

        def draw(values: list[Any]) -> list[Any]:
            return [*values, random.random()]

        def values(threshold: float) -> list[Any]:
            loader = loader_of(
                Made(30, lambda index: draw([index])),
                *[draw] * 4,
                seed=1,
                workers=1,
                timeout_threshold=threshold,
            )
            return sorted(flat(loader))

        assert values(1e-9) == values(100.0)


class TestLearned:
    def test_the_warmup_is_a_tenth_of_the_epoch_at_most(self) -> None:
        dataset = Made(24, lambda index: busy(SLOW * (index % 4 == 0)) or index)
        loader = loader_of(dataset, lambda index: index, timeout_threshold=None)
        iterator = iter(loader)
        epoch: Any = iterator._epoch
        # A tenth of the epoch, though 100 batches were asked for.
        assert epoch.threshold._warmup == 2
        flat(iterator)
        assert iterator.stats.threshold < 100

    def test_no_warmup_no_waiting(self) -> None:
        dataset = Made(40, lambda index: busy(SLOW if index % 8 == 7 else 0.001) or index)
        loader = loader_of(
            dataset, lambda index: index, timeout_threshold=None, warmup_batches=0, workers=1
        )
        iterator = iter(loader)
        assert sorted(flat(iterator)) == list(range(40))
        assert 1 <= iterator.stats.diverted < 30
