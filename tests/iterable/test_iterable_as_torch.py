"""Sharded iterables are torch's. Every expectation is checked against torch's own loader too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.loaders import ANY_ORDER, PROCESSES, SERIAL, TORCH, TORCH_WORKERS, WORKERS, LoaderKind

from .datasets import (
    Failing,
    Range,
    Sized,
    divide_range,
    in_turn,
    iterating,
    lists,
    name,
    outcomes,
    shard_number,
    workers,
)

SERIAL_KINDS = pytest.mark.parametrize("kind", [TORCH, SERIAL], ids=lambda kind: kind.name)
PARALLEL_KINDS = pytest.mark.parametrize(
    "kind", [TORCH_WORKERS, WORKERS], ids=lambda kind: kind.name
)
BATCHES = pytest.mark.parametrize(
    ("batch_size", "drop_last"), [(3, False), (3, True), (None, False)]
)
SIZES = pytest.mark.parametrize("sizes", [(10, 3, 0, 7), (0, 0), (1, 9)], ids=str)


class TestSequence:
    @SIZES
    @BATCHES
    @PARALLEL_KINDS
    def test_shards_take_turns_while_they_last(
        self, kind: LoaderKind, sizes: tuple[int, ...], batch_size: int | None, drop_last: bool
    ) -> None:
        loader = workers(kind, len(sizes))(Sized(sizes), batch_size=batch_size, drop_last=drop_last)
        assert lists(loader) == in_turn(sizes, batch_size, drop_last)

    @settings(max_examples=25)
    @given(
        sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
        batch_size=st.one_of(st.none(), st.integers(1, 4)),
        drop_last=st.booleans(),
        ahead=st.sampled_from(
            [{}, {"prefetch_factor": 1}, {"max_queue_size": 1}, {"max_queue_size": 7}]
        ),
        persistent=st.booleans(),
    )
    def test_whatever_is_read_ahead(
        self,
        sizes: list[int],
        batch_size: int | None,
        drop_last: bool,
        ahead: dict[str, int],
        persistent: bool,
    ) -> None:
        drop_last = drop_last and batch_size is not None
        expected = in_turn(sizes, batch_size, drop_last)
        options: dict[str, Any] = {
            "batch_size": batch_size,
            "drop_last": drop_last,
            "persistent_workers": persistent,
            **ahead,
        }
        in_order = workers(WORKERS, len(sizes))(Sized(sizes), **options)
        any_order = workers(ANY_ORDER, len(sizes))(Sized(sizes), **options)
        for _ in range(2):
            assert lists(in_order) == expected
            assert sorted(map(str, lists(any_order))) == sorted(map(str, expected))

    def test_order_is_kept_unless_told_otherwise(self) -> None:
        loader = WORKERS(Sized([5, 9, 1]), batch_size=2, in_order=None)
        assert lists(loader) == in_turn([5, 9, 1], 2)

    @BATCHES
    @SERIAL_KINDS
    def test_without_workers(
        self, kind: LoaderKind, batch_size: int | None, drop_last: bool
    ) -> None:
        loader = kind(Sized([10]), batch_size=batch_size, drop_last=drop_last)
        assert lists(loader) == in_turn([10], batch_size, drop_last)

    @SERIAL_KINDS
    def test_without_batching_an_iterator_may_find_more(self, kind: LoaderKind) -> None:
        iterator = iter(kind(Followed(), batch_size=None))
        assert next(iterator) == 1
        with pytest.raises(StopIteration):
            next(iterator)
        assert next(iterator) == 2

    @PARALLEL_KINDS
    def test_after_the_end_there_is_only_the_end(self, kind: LoaderKind) -> None:
        iterator = iter(kind(Sized([2] * 3)))
        list(iterator)
        with pytest.raises(StopIteration):
            next(iterator)


class Followed(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return Follower()


class Follower:
    """As a file that is read while it grows."""

    asked = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.asked += 1
        if self.asked == 2:
            raise StopIteration
        return (self.asked + 1) // 2


class Told(IterableDataset[Any]):
    """Yields what the worker info says, in `__iter__`, in `next()` and in another module's eyes."""

    def __iter__(self) -> Iterator[Any]:
        first = describe_info(self)
        yield first
        yield describe_info(self)


def describe_info(dataset: Any) -> tuple[Any, ...]:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    return info.id, info.num_workers, info.seed, info.dataset is dataset


def with_shard(samples: list[Any]) -> tuple[int, list[Any]]:
    return shard_number(), samples


class TestWorkerInfo:
    @PARALLEL_KINDS
    def test_each_shard_is_told_which_worker_it_is(self, kind: LoaderKind) -> None:
        generator = torch.Generator().manual_seed(5)
        base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
        generator.manual_seed(5)
        loader = workers(kind, 2)(
            Told(), batch_size=2, collate_fn=with_shard, generator=generator, in_order=True
        )
        told = [(s, 2, base_seed + s, True) for s in range(2)]
        assert list(loader) == [(s, [told[s]] * 2) for s in range(2)]
        assert get_worker_info() is None

    @PARALLEL_KINDS
    def test_documented_worker_init_fn_divides_the_data(self, kind: LoaderKind) -> None:
        dataset = Range(3, 12)
        loader = workers(kind, 2)(dataset, worker_init_fn=divide_range)
        assert lists(loader) == [[3], [8], [4], [9], [5], [10], [6], [11], [7]]
        assert (dataset.start, dataset.end) == (3, 12)

    @PARALLEL_KINDS
    def test_persistent_workers_are_set_up_once(self, kind: LoaderKind) -> None:
        loader = workers(kind, 2)(
            Range(0, 6), worker_init_fn=divide_range, persistent_workers=True, batch_size=3
        )
        # A second call would divide the share again.
        assert [lists(loader) for _ in range(3)] == [[[0, 1, 2], [3, 4, 5]]] * 3

    @PARALLEL_KINDS
    def test_iterator_may_be_the_dataset_itself(self, kind: LoaderKind) -> None:
        loader = workers(kind, 2)(OwnIterator(), persistent_workers=True)
        assert [lists(loader) for _ in range(2)] == [[[0], [0], [1], [1], [2], [2]]] * 2


class OwnIterator(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        self.next = 0
        return self

    def __next__(self) -> int:
        if self.next == 3:
            raise StopIteration
        self.next += 1
        return self.next - 1


def fail_at_1_2(shard: int, ordinal: int) -> None:
    if (shard, ordinal) == (1, 2):
        raise KeyError("x")


def fail_at_the_start_of_1(shard: int, ordinal: int) -> None:
    if (shard, ordinal) == (1, -1):
        raise KeyError("x")


def fail_on_1001(samples: list[Any]) -> list[Any]:
    if name(1, 1) in samples:
        raise KeyError("x")
    return samples


class TestErrors:
    @PARALLEL_KINDS
    def test_generator_that_raised_is_at_its_end(self, kind: LoaderKind) -> None:
        loader = workers(kind, 2)(Failing(fail_at_1_2))
        expected = [[0], [1000], [1], [1001], [2], KeyError, [3]]
        assert outcomes(loader) == expected

    @PARALLEL_KINDS
    def test_other_iterators_go_on(self, kind: LoaderKind) -> None:
        loader = workers(kind, 2)(Failing(fail_at_1_2, as_generator=False), batch_size=2)
        # What was read of the failed batch is lost with it.
        assert outcomes(loader) == [[0, 1], [1000, 1001], [2, 3], KeyError, [1003]]

    @SERIAL_KINDS
    def test_without_workers(self, kind: LoaderKind) -> None:
        loader = kind(Failing(fail_serially, as_generator=False))
        assert outcomes(loader) == [[0], [1], KeyError, [3]]

    @PARALLEL_KINDS
    def test_collate_fn(self, kind: LoaderKind) -> None:
        loader = workers(kind, 2)(Failing(fail_at_1_2_never), collate_fn=fail_on_1001)
        expected = [[0], [1000], [1], KeyError, [2], [1002], [3], [1003]]
        assert outcomes(loader) == expected

    @PARALLEL_KINDS
    def test_type_and_arguments_arrive_in_turn(self, kind: LoaderKind) -> None:
        with iterating(workers(kind, 2)(Failing(fail_at_the_start_of_1))) as iterator:
            assert next(iterator).tolist() == [0]
            with pytest.raises(KeyError, match="x"):
                next(iterator)

    @SERIAL_KINDS
    def test_iter_raises_at_once_without_workers(self, kind: LoaderKind) -> None:
        with pytest.raises(TypeError, match="non-iterator"):
            iter(kind(NoIterator()))

    @PARALLEL_KINDS
    def test_dataset_whose_iter_gives_no_iterator(self, kind: LoaderKind) -> None:
        loader = workers(kind, 1)(NoIterator())
        with iterating(loader) as iterator, pytest.raises(TypeError, match="non-iterator"):
            next(iterator)


def fail_serially(shard: int, ordinal: int) -> None:
    if ordinal == 2:
        raise KeyError("x")


def fail_at_1_2_never(shard: int, ordinal: int) -> None:
    pass


class NoIterator(IterableDataset[int]):
    def __iter__(self) -> Any:
        return [1, 2]


class SaysThree(Range):
    def __len__(self) -> int:
        return 3

    def __repr__(self) -> str:
        return "SaysThree()"


class TestLength:
    @pytest.mark.parametrize("kind", [TORCH, SERIAL, TORCH_WORKERS, WORKERS], ids=lambda k: k.name)
    def test_warns_of_more_than_it_said_once_it_was_asked(self, kind: LoaderKind) -> None:
        loader = kind(SaysThree(0, 2 if kind.num_workers else 5), batch_size=None)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Length of IterableDataset")
            assert len(list(loader)) >= 4
        assert len(loader) == 3
        with pytest.warns(UserWarning, match="Length of IterableDataset") as caught:
            list(loader)
        # There may be warnings of the number of workers too, and of torch's fork.
        told = [warning for warning in caught if str(warning.message).startswith("Length of")]
        assert told[0].category is UserWarning
        text = str(told[0].message)
        assert text.startswith(
            "Length of IterableDataset SaysThree() was reported to be 3(when accessing "
            "len(dataloader)), but 4 samples have been fetched. "
        )
        assert ("replica at each worker" in text) == (kind.num_workers > 0)
        assert told[0].filename == __file__

    @pytest.mark.parametrize("kind", [TORCH, SERIAL], ids=lambda kind: kind.name)
    def test_len_counts_batches(self, kind: LoaderKind) -> None:
        assert len(kind(SaysThree(0, 3), batch_size=2)) == 2
        assert len(kind(SaysThree(0, 3), batch_size=2, drop_last=True)) == 1
        with pytest.raises(TypeError):
            len(kind(Range(0, 3)))
        with pytest.raises(TypeError):
            len(iter(kind(SaysThree(0, 3))))


class TestArguments:
    @SERIAL_KINDS
    @pytest.mark.parametrize(
        "options",
        [
            {"shuffle": True},
            {"sampler": RandomSampler(range(3))},
            {"batch_sampler": [[0, 1]]},
            {"batch_size": None, "drop_last": True},
        ],
        ids=str,
    )
    def test_what_torch_refuses(self, kind: LoaderKind, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"IterableDataset|mutually exclusive"):
            kind(Range(0, 3), **options)


@pytest.mark.filterwarnings("ignore")
class TestDataPipes:
    @pytest.mark.parametrize("count", [0, 2])
    def test_sharding_and_shuffling_as_torch(self, count: int) -> None:
        found = []
        for kind in (TORCH, SERIAL, PROCESSES):
            torch.manual_seed(3)
            pipe = IterableWrapper(range(20)).shuffle().sharding_filter()
            loader = workers(kind, count)(
                pipe, batch_size=3, shuffle=True, persistent_workers=count > 0
            )
            epochs = [lists(loader) for _ in range(3)]
            assert epochs[0] != epochs[1]
            found.append((epochs, torch.rand(1)))
        assert found[0] == found[1]
