"""Epochs: beginning, leaving and repeating them, one after the other and side by side."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from minato_async import MinatoLoader
from tests.loaders import LoaderKind

from .support import Counting, Holding, InThread, iterating, lists, once_each, samples_in

#: In order, four batches of two.
BATCHES = [[0, 1], [2, 3], [4, 5], [6, 7]]


class TestEpochs:
    def test_every_epoch_is_whole(self, any_kind: LoaderKind) -> None:
        loader = any_kind(range(8), 2)
        for _ in range(3):
            assert samples_in(loader) == once_each(range(8))

    def test_after_the_end_there_is_nothing(self, any_kind: LoaderKind) -> None:
        with iterating(any_kind(range(8), 2)) as iterator:
            assert samples_in(iterator) == once_each(range(8))
            assert list(itertools.islice(iterator, 3)) == []

    def test_iterator_is_its_own_iterator(self, any_kind: LoaderKind) -> None:
        with iterating(any_kind(range(8), 2)) as iterator:
            assert iter(iterator) is iterator
            rest = [*itertools.islice(iterator, 1), *iterator]
            assert samples_in(rest) == once_each(range(8))

    def test_after_a_break_the_next_epoch_is_whole(self, any_kind: LoaderKind) -> None:
        loader = any_kind(range(8), 2)
        for _ in range(3):
            for _ in loader:
                break
        assert samples_in(loader) == once_each(range(8))

    def test_two_iterators_are_independent(self, in_order_kind: LoaderKind) -> None:
        loader = in_order_kind(range(8), 2)
        with iterating(loader) as one, iterating(loader) as other:
            assert one is not other
            assert next(one).tolist() == [0, 1]
            assert next(other).tolist() == [0, 1]
            assert lists(one) == BATCHES[1:]
            assert lists(other) == BATCHES[1:]

    def test_two_shuffled_iterators_are_independent(self, any_kind: LoaderKind) -> None:
        loader = any_kind(range(8), 2, shuffle=True)
        pairs = list(zip(loader, loader, strict=True))
        for side in (0, 1):
            assert samples_in(pair[side] for pair in pairs) == once_each(range(8))

    def test_sampler_is_told_the_epoch_in_between(self, in_order_kind: LoaderKind) -> None:
        def epochs(make: Any) -> list[Any]:
            data = range(20)
            sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=True)
            loader = make(data, 3, sampler=sampler)
            found = []
            for epoch in range(3):
                sampler.set_epoch(epoch)
                found.append(lists(loader))
            return found

        expected = epochs(DataLoader)
        assert expected[0] != expected[1]
        assert epochs(in_order_kind) == expected


class TestSmall:
    @pytest.mark.parametrize("num_workers", [1, 4, 16])
    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("samples", [0, 1, 3])
    def test_fewer_samples_than_workers(
        self, samples: int, in_order: bool, num_workers: int
    ) -> None:
        data = Counting(samples)
        loader = MinatoLoader(data, 2, num_workers=num_workers, in_order=in_order)
        assert samples_in(loader) == once_each(range(samples))
        assert data.calls == once_each(range(samples))

    @pytest.mark.parametrize("in_order", [True, False])
    def test_batch_larger_than_the_dataset(self, in_order: bool) -> None:
        loader = MinatoLoader(range(5), 100, num_workers=3, in_order=in_order)
        (batch,) = loader
        assert sorted(batch.tolist()) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize(("samples", "whole"), [(3, 0), (4, 1), (9, 2)])
    def test_drop_last_delivers_whole_batches_only(
        self, samples: int, whole: int, in_order: bool
    ) -> None:
        data = Counting(samples)
        loader = MinatoLoader(data, 4, drop_last=True, num_workers=3, in_order=in_order)
        found = lists(loader)
        assert list(map(len, found)) == [4] * whole
        assert len(loader) == whole
        assert sorted(itertools.chain(*found)) == list(range(4 * whole))
        # torch's sampler leaves out what makes no batch: it is not even loaded.
        assert data.calls == once_each(range(4 * whole))


class TestReadAhead:
    class Endless:
        """An endless sampler that counts what it has given."""

        def __init__(self) -> None:
            self.given = 0

        def __iter__(self) -> Iterator[int]:
            while True:
                self.given += 1
                yield self.given

    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(1, 1), (2, 2), (3, 5)])
    def test_of_an_infinite_sampler_is_bounded(
        self, num_workers: int, prefetch_factor: int, in_order: bool
    ) -> None:
        sampler = self.Endless()
        loader = MinatoLoader(
            range(10**9),
            4,
            sampler=sampler,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            in_order=in_order,
        )
        ahead = num_workers * prefetch_factor
        with iterating(loader) as iterator:
            assert sampler.given == 4 * ahead
            for taken in range(1, 8):
                next(iterator)
                assert sampler.given == 4 * (taken + ahead)

    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("max_queue_size", [1, 4, 9])
    def test_is_bounded_by_max_queue_size(self, max_queue_size: int, in_order: bool) -> None:
        sampler = self.Endless()
        loader = MinatoLoader(
            range(10**9),
            4,
            sampler=sampler,
            num_workers=2,
            max_queue_size=max_queue_size,
            in_order=in_order,
        )
        with iterating(loader) as iterator:
            for taken in range(8):
                # The batch that reaches the limit is drawn whole.
                assert sampler.given - 4 * taken < max(max_queue_size, 4) + 4
                next(iterator)

    def test_of_empty_batches_is_bounded(self) -> None:
        class EndlessEmpty:
            given = 0

            def __iter__(self) -> Iterator[list[int]]:
                while True:
                    self.given += 1
                    yield []

        sampler = EndlessEmpty()
        loader = MinatoLoader(
            range(3),
            batch_sampler=sampler,
            num_workers=2,
            max_queue_size=5,
            collate_fn=list,
        )
        with iterating(loader) as iterator:
            assert list(itertools.islice(iterator, 4)) == [[]] * 4
            assert sampler.given == 4 + 5

    def test_of_torch_is_the_same(self) -> None:
        sampler = self.Endless()
        loader = DataLoader(list(range(100)), 4, sampler=sampler, num_workers=2, prefetch_factor=3)
        with iterating(loader) as iterator:
            next(iterator)
            assert sampler.given == 4 * (1 + 6)

    @pytest.mark.parametrize("persistent", [False, True])
    def test_nothing_of_the_next_epoch_is_loaded_early(self, persistent: bool) -> None:
        data = Counting(8)
        loader = MinatoLoader(data, 2, num_workers=3, persistent_workers=persistent)
        with iterating(loader) as iterator:
            list(iterator)
            assert data.calls == once_each(range(8))
            # All workers have been idle since: a second epoch shows that they still work.
            assert samples_in(loader) == once_each(range(8))
            assert data.calls == once_each([*range(8), *range(8)])


class TestPersistentWorkers:
    def test_iterator_is_the_same_one_reset(self, parallel_kind: LoaderKind) -> None:
        loader = parallel_kind(range(8), 2, persistent_workers=True)
        with iterating(loader) as first:
            assert lists(first) == BATCHES
            second = iter(loader)
            assert second is first
            assert next(second).tolist() == [0, 1]
            # Asked for again in mid-epoch, it begins from the start: for both names of it.
            assert iter(loader) is first
            assert lists(first) == BATCHES
            assert lists(second) == []

    def test_batches_of_the_epoch_that_was_left_never_come(self, parallel_kind: LoaderKind) -> None:
        loader = parallel_kind(range(100), 2, shuffle=True, persistent_workers=True)
        with iterating(loader):
            for _ in range(3):
                next(iter(loader))
                assert samples_in(iter(loader)) == once_each(range(100))

    def test_workers_are_the_same_threads(self) -> None:
        class WhoLoads:
            def __len__(self) -> int:
                return 1

            def __getitem__(self, index: int) -> threading.Thread:
                return threading.current_thread()

        loader = MinatoLoader(
            WhoLoads(), num_workers=1, persistent_workers=True, collate_fn=lambda samples: samples
        )
        with iterating(loader):
            assert list(loader) == list(loader)

    def test_empty_batches_wake_workers_that_slept(self) -> None:
        batches: list[list[int]] = [[0]]
        loader = MinatoLoader(
            range(3),
            batch_sampler=batches,
            num_workers=2,
            prefetch_factor=1,
            persistent_workers=True,
            collate_fn=list,
        )
        with iterating(loader) as iterator:
            assert list(iterator) == [[0]]
            batches[:] = [[], [], [1]]
            for _ in range(20):
                assert list(loader) == [[], [], [1]]

    def test_closed_workers_are_replaced(self) -> None:
        loader = MinatoLoader(range(8), 2, num_workers=2, persistent_workers=True)
        with iterating(loader) as first:
            next(first)
        with iterating(loader) as second:
            assert lists(second) == BATCHES


class TestClosing:
    def test_ends_the_iteration(self, our_kind: LoaderKind) -> None:
        loader: Any = our_kind(range(100), 2)
        iterator = iter(loader)
        next(iterator)
        iterator.close()
        assert list(iterator) == []
        iterator.close()
        assert samples_in(loader) == once_each(range(100))

    def test_lets_a_waiting_consumer_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("minato_async.engine.engine.CLOSE_GRACE", 0)
        data = Holding(4, held=range(4))
        iterator: Any = iter(MinatoLoader(data, 2, num_workers=2))
        consumer = InThread(lambda: list(iterator))
        data.wait_for_calls([0, 1])
        iterator._engine.close_soon()
        assert consumer.result() == []
        data.release()
        iterator.close()


class TestThreads:
    def test_loader_is_used_by_several_threads(self, any_kind: LoaderKind) -> None:
        loader = any_kind(range(60), 4)
        consumers = [InThread(lambda: samples_in(loader)) for _ in range(4)]
        assert [consumer.result() for consumer in consumers] == [once_each(range(60))] * 4

    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("max_queue_size", [None, 3])
    def test_iterator_shared_by_threads_gives_each_batch_once(
        self, in_order: bool, max_queue_size: int | None
    ) -> None:
        data = Counting(400)
        loader = MinatoLoader(
            data, 3, num_workers=3, in_order=in_order, max_queue_size=max_queue_size
        )
        iterator = iter(loader)
        consumers = [InThread(lambda: list(iterator)) for _ in range(4)]
        batches = [batch for consumer in consumers for batch in consumer.result()]
        assert samples_in(batches) == once_each(range(400))
        assert data.calls == once_each(range(400))

    @pytest.mark.parametrize("prefetch_factor", [1, 5])
    def test_every_thread_sees_the_end(self, prefetch_factor: int) -> None:
        """A thread that waits for a batch while another takes the last one must not wait on,
        whether the end was known before or shows when another is to be drawn."""
        for _ in range(20):
            iterator = iter(MinatoLoader(range(3), num_workers=1, prefetch_factor=prefetch_factor))
            consumers = [InThread(lambda it=iterator: list(it)) for _ in range(5)]
            batches = [batch for consumer in consumers for batch in consumer.result()]
            assert samples_in(batches) == once_each(range(3))

    @pytest.mark.parametrize("persistent", [False, True])
    def test_end_that_shows_while_others_wait(self, persistent: bool) -> None:
        """One thread takes the last batch and asks the sampler for more, the others wait for it;
        then there is no more."""
        iterators: list[Any] = []

        class Sampler:
            def __iter__(self) -> Iterator[int]:
                yield 0
                while len(iterators[0]._epoch.delivery._waiting) < 2:
                    pass

        loader = MinatoLoader(
            range(1),
            sampler=Sampler(),
            num_workers=1,
            prefetch_factor=1,
            persistent_workers=persistent,
        )
        with iterating(loader) as iterator:
            iterators.append(iterator)
            consumers = [InThread(lambda: list(iterator)) for _ in range(3)]
            assert sorted(len(consumer.result()) for consumer in consumers) == [0, 0, 1]

    def test_loader_in_a_dataset(self) -> None:
        """Samples that come from another loader, each worker running one of its own."""
        inner = MinatoLoader(range(6), 3, num_workers=2)

        class Outer:
            def __len__(self) -> int:
                return 8

            def __getitem__(self, index: int) -> torch.Tensor:
                return torch.cat(list(inner)) + index

        found = torch.cat(list(MinatoLoader(Outer(), 4, num_workers=3, in_order=True)))
        assert found.tolist() == [[index + k for k in range(6)] for index in range(8)]
