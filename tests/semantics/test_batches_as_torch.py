"""What is in the batches. Every expectation is checked against torch's own loader as well."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from minato_async import MinatoLoader, share
from minato_async.scheduling.claim_size import ClaimSize
from tests.loaders import ALL, OURS, LoaderKind

from .support import (
    COLLATED_SAMPLES,
    Counting,
    Holding,
    Point,
    assert_same,
    iterating,
    lists,
    once_each,
    samples_in,
)


class Squares:
    """A dataset that fetches batches itself, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        share(self, "asked")

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        raise AssertionError("samples of this dataset are fetched by the batch")

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return [index * index for index in indices]


class Squared:
    """A dataset that makes a sample of a whole list of indices."""

    def __getitem__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices) ** 2


class TestSizes:
    @pytest.mark.parametrize(
        ("samples", "batch_size", "drop_last", "expected"),
        [
            (6, 2, False, [[0, 1], [2, 3], [4, 5]]),
            (7, 3, False, [[0, 1, 2], [3, 4, 5], [6]]),
            (7, 3, True, [[0, 1, 2], [3, 4, 5]]),
            (3, 1, False, [[0], [1], [2]]),
            (2, 5, False, [[0, 1]]),
            (2, 5, True, []),
            (1, 1, False, [[0]]),
            (0, 4, False, []),
        ],
    )
    def test_batches_are_consecutive(
        self,
        any_kind: LoaderKind,
        samples: int,
        batch_size: int,
        drop_last: bool,
        expected: list[list[int]],
    ) -> None:
        loader = any_kind(range(samples), batch_size=batch_size, drop_last=drop_last)
        found = lists(loader)
        assert len(loader) == len(expected)
        assert len(iter(loader)) == len(expected)
        if any_kind.in_order:
            assert found == expected
        else:
            assert sorted(map(len, found)) == sorted(map(len, expected))
            if not drop_last:
                assert samples_in(map(torch.tensor, found)) == once_each(range(samples))

    def test_default_batch_size_is_one(self, in_order_kind: LoaderKind) -> None:
        assert lists(in_order_kind(range(3))) == [[0], [1], [2]]


class TestRandomOrder:
    """Every random order is the one that torch draws from the same generator."""

    @staticmethod
    def torch_epochs(*args: Any, **options: Any) -> list[list[list[int]]]:
        loader = DataLoader(*args, **options)
        return [lists(loader) for _ in range(2)]

    def test_shuffle_with_a_generator(self, in_order_kind: LoaderKind) -> None:
        expected = self.torch_epochs(
            range(23), 4, shuffle=True, generator=torch.Generator().manual_seed(7)
        )
        loader = in_order_kind(
            range(23), 4, shuffle=True, generator=torch.Generator().manual_seed(7)
        )
        assert [lists(loader) for _ in range(2)] == expected
        assert expected[0] != expected[1]

    def test_shuffle_from_the_global_generator(self, in_order_kind: LoaderKind) -> None:
        torch.manual_seed(7)
        expected = self.torch_epochs(range(23), 4, shuffle=True)
        torch.manual_seed(7)
        loader = in_order_kind(range(23), 4, shuffle=True)
        assert [lists(loader) for _ in range(2)] == expected

    @pytest.mark.parametrize(
        "make_sampler",
        [
            lambda generator: SubsetRandomSampler([3, 5, 8, 13, 21], generator=generator),
            lambda generator: WeightedRandomSampler([1.0, 2.0, 3.0], 12, generator=generator),
            lambda generator: RandomSampler(
                range(30), replacement=True, num_samples=70, generator=generator
            ),
        ],
        ids=["subset", "weighted", "replacement"],
    )
    def test_random_samplers(
        self, in_order_kind: LoaderKind, make_sampler: Callable[[torch.Generator], Any]
    ) -> None:
        expected = self.torch_epochs(
            range(30), 4, sampler=make_sampler(torch.Generator().manual_seed(3))
        )
        loader = in_order_kind(range(30), 4, sampler=make_sampler(torch.Generator().manual_seed(3)))
        assert [lists(loader) for _ in range(2)] == expected


class TestSamplers:
    def test_sampler_may_be_any_iterable(self, in_order_kind: LoaderKind) -> None:
        loader = in_order_kind(range(10), 2, sampler=[9, 9, 0, 4, 2])
        assert lists(loader) == [[9, 9], [0, 4], [2]]
        assert len(loader) == 3

    def test_drop_last_with_a_sampler(self, in_order_kind: LoaderKind) -> None:
        loader = in_order_kind(range(10), 2, sampler=[9, 9, 0, 4, 2], drop_last=True)
        assert lists(loader) == [[9, 9], [0, 4]]

    def test_duplicates_are_delivered_as_often_as_drawn(self, any_kind: LoaderKind) -> None:
        drawn = [1, 1, 1, 5, 5, 2] * 3
        loader = any_kind(range(10), 4, sampler=drawn)
        assert samples_in(loader) == once_each(drawn)

    def test_batch_sampler_with_batches_of_varying_sizes(self, in_order_kind: LoaderKind) -> None:
        batches = [[0], [1, 2, 3, 4], [5, 6], [7], [8, 9, 0, 1, 2, 3]]
        loader = in_order_kind(range(10), batch_sampler=batches)
        assert lists(loader) == batches
        assert len(loader) == 5

    def test_batch_sampler_with_empty_batches(self, any_kind: LoaderKind) -> None:
        batches: list[list[int]] = [[], [0, 1], [], [], [2], []]
        loader = any_kind(range(10), batch_sampler=batches, collate_fn=list)
        found = list(loader)
        if any_kind.in_order:
            assert found == batches
        else:
            assert sorted(found) == sorted(batches)

    def test_empty_batch_that_cannot_be_collated(self, in_order_kind: LoaderKind) -> None:
        loader = in_order_kind(range(10), batch_sampler=[[]])
        with iterating(loader) as iterator, pytest.raises(IndexError):
            next(iterator)

    @pytest.mark.parametrize("batch_type", [tuple, np.array])
    def test_batches_need_not_be_lists(
        self, in_order_kind: LoaderKind, batch_type: Callable[[list[int]], Any]
    ) -> None:
        loader = in_order_kind(list(range(10)), batch_sampler=[batch_type([4, 2]), batch_type([1])])
        assert lists(loader) == [[4, 2], [1]]

    @pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
    def test_batches_may_be_iterators(self, kind: LoaderKind) -> None:
        class Halves:
            def __iter__(self) -> Iterator[Iterator[int]]:
                yield iter([0, 1])
                yield iter([2, 3])

        assert sorted(lists(kind(range(4), batch_sampler=Halves()))) == [[0, 1], [2, 3]]

    def test_batch_sampler_around_a_sampler(self, in_order_kind: LoaderKind) -> None:
        data = range(5)
        sampler = BatchSampler(SequentialSampler(data), 2, drop_last=True)
        assert lists(in_order_kind(data, batch_sampler=sampler)) == [[0, 1], [2, 3]]


class TestWithoutBatches:
    """`batch_size=None`: what the sampler yields goes to the dataset as it is."""

    def test_samples_come_one_by_one(self, in_order_kind: LoaderKind) -> None:
        assert list(in_order_kind(range(4), batch_size=None)) == [0, 1, 2, 3]
        assert len(in_order_kind(range(4), batch_size=None)) == 4

    def test_arrays_are_converted_and_nothing_else(self, in_order_kind: LoaderKind) -> None:
        samples = [{"a": np.arange(3), "b": "text"}, {"a": np.arange(2), "b": "more"}]
        found = list(in_order_kind(samples, batch_size=None))
        assert_same(
            found,
            [{"a": torch.arange(3), "b": "text"}, {"a": torch.arange(2), "b": "more"}],
        )

    def test_lists_of_indices_reach_the_dataset(self, in_order_kind: LoaderKind) -> None:
        sampler = BatchSampler(SequentialSampler(range(5)), 2, drop_last=False)
        found = list(in_order_kind(Squared(), batch_size=None, sampler=sampler))
        assert lists(found) == [[0, 1], [4, 9], [16]]

    def test_collate_fn_gets_the_sample(self, in_order_kind: LoaderKind) -> None:
        loader = in_order_kind(range(3), batch_size=None, collate_fn=lambda sample: [sample])
        assert list(loader) == [[0], [1], [2]]

    def test_empty_list_of_indices(self, in_order_kind: LoaderKind) -> None:
        loader = in_order_kind(Squared(), batch_size=None, sampler=[[1, 2], [], [3]])
        assert lists(loader) == [[1, 4], [], [9]]


class TestKeys:
    @pytest.mark.parametrize(
        "keys",
        [["a", "b", "c"], [("x", 1), ("y", 2), ("z", 3)], [None, 1.5, b"q"]],
        ids=["str", "tuple", "mixed"],
    )
    def test_keys_reach_the_dataset_untouched(self, any_kind: LoaderKind, keys: list[Any]) -> None:
        data = {key: number for number, key in enumerate(keys)}
        assert samples_in(any_kind(data, 2, sampler=keys)) == once_each(range(3))

    def test_key_arrives_as_the_same_object(self) -> None:
        class Remember:
            def __init__(self) -> None:
                self.keys: list[Any] = []
                share(self, "keys")

            def __getitem__(self, key: Any) -> int:
                self.keys.append(key)
                return 0

        keys = [("a", 1), ("b", 2)]
        data = Remember()
        list(MinatoLoader(data, batch_size=None, sampler=keys, num_workers=1))
        assert all(found is key for found, key in zip(data.keys, keys, strict=True))


class TestStructures:
    """Samples of every structure that torch collates."""

    @pytest.mark.parametrize("samples", COLLATED_SAMPLES, ids=repr)
    def test_collated_as_torch_does(self, our_kind: LoaderKind, samples: list[Any]) -> None:
        expected = list(DataLoader(samples, batch_size=2))
        assert_same(list(our_kind(samples, batch_size=2, in_order=True)), expected)

    def test_literals(self, in_order_kind: LoaderKind) -> None:
        """That torch's loader is what we believe it to be, and ours alike, on one example."""
        samples = [{"p": Point(i, torch.full((2,), i)), "name": f"n{i}"} for i in range(4)]
        first, second = in_order_kind(samples, batch_size=2)
        assert_same(
            first,
            {
                "p": Point(torch.tensor([0, 1]), torch.tensor([[0, 0], [1, 1]])),
                "name": ["n0", "n1"],
            },
        )
        assert second["name"] == ["n2", "n3"]

    @pytest.mark.parametrize(
        "samples",
        [
            [torch.ones(2), torch.ones(3)],
            [np.ones(2), np.ones((2, 1))],
            [(1, 2), (1, 2, 3)],
            [{"a": 1}, {"b": 1}],
            [1j, 2j],
            [None, None],
            [np.array(["a"]), np.array(["b"])],
            [1, "a"],
            [torch.ones(2), 1],
            [np.arange(3)[::-1], np.arange(3)],
        ],
        ids=repr,
    )
    def test_refused_as_torch_does(self, our_kind: LoaderKind, samples: list[Any]) -> None:
        if our_kind.elsewhere and isinstance(samples[0], np.ndarray) and samples[0].strides[0] < 0:
            pytest.skip("numpy leaves strides behind when it pickles a small array")
        with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever torch raises
            list(DataLoader(samples, batch_size=2))
        with pytest.raises(expected.type) as found:
            list(our_kind(samples, batch_size=2, in_order=True))
        assert str(found.value) == str(expected.value)


class TestCollateFunctions:
    def test_batch_may_be_none(self, in_order_kind: LoaderKind) -> None:
        assert list(in_order_kind(range(5), 2, collate_fn=lambda samples: None)) == [None] * 3

    def test_collate_fn_gets_a_list_of_samples(self, in_order_kind: LoaderKind) -> None:
        found = list(in_order_kind(range(5), 2, collate_fn=lambda samples: samples))
        assert found == [[0, 1], [2, 3], [4]]

    def test_exception_returned_is_a_batch(self, in_order_kind: LoaderKind) -> None:
        """An exception is an error when it is raised, not when it is data."""
        loader = in_order_kind(range(2), 1, collate_fn=lambda samples: ValueError(samples[0]))
        assert [error.args for error in loader] == [(0,), (1,)]


class TestDatasets:
    def test_dataset_fetches_batches_itself(self, in_order_kind: LoaderKind) -> None:
        assert lists(in_order_kind(Squares(), 4)) == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]

    @pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
    def test_such_a_dataset_is_asked_once_for_each_batch(self, kind: LoaderKind) -> None:
        data = Squares()
        assert samples_in(kind(data, 4)) == once_each(i * i for i in range(10))
        if not kind.elsewhere:
            assert sorted(data.asked) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_such_a_dataset_gets_empty_batches_too(self, in_order_kind: LoaderKind) -> None:
        loader = in_order_kind(Squares(), batch_sampler=[[1, 2], [], [3]], collate_fn=list)
        assert list(loader) == [[1, 4], [], [9]]

    def test_subset(self, in_order_kind: LoaderKind) -> None:
        data = Subset(Subset(range(100, 200), [5, 6, 7, 8]), [3, 1, 0])
        assert lists(in_order_kind(data, 2)) == [[108, 106], [105]]

    def test_subset_of_a_dataset_that_fetches_batches(self, in_order_kind: LoaderKind) -> None:
        assert lists(in_order_kind(Subset(Squares(), [9, 2, 4]), 2)) == [[81, 4], [16]]

    def test_samples_of_a_subset_are_tickets_of_their_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`Subset.__getitems__` only loops over the samples: it must not hide them from us."""
        monkeypatch.setattr(ClaimSize, "next", lambda self: 1)
        data = Holding(8, held=[0, 4])
        loader = MinatoLoader(
            Subset(Subset(data, range(8)), range(8)), 4, num_workers=3, in_order=False
        )
        with iterating(loader) as iterator:
            # Of both batches that were drawn one sample is held.
            first = next(iterator)
            data.release()
            assert samples_in([first, *iterator]) == once_each(range(8))
        assert not data.held & set(first.tolist())

    def test_getitems_of_a_subclass_of_subset_counts(self, our_kind: LoaderKind) -> None:
        class Doubled(Subset[int]):
            def __getitems__(self, indices: list[int]) -> list[int]:
                return [2 * index for index in indices]

        loader = our_kind(Doubled(range(4), list(range(4))), 2)
        assert samples_in(loader) == once_each([0, 2, 4, 6])

    def test_getitems_set_to_none_is_ignored(self, in_order_kind: LoaderKind) -> None:
        class Plain:
            __getitems__ = None

            def __len__(self) -> int:
                return 2

            def __getitem__(self, index: int) -> int:
                return index

        assert lists(in_order_kind(Plain(), 2)) == [[0, 1]]

    @pytest.mark.parametrize(
        "data",
        [range(4), list(range(4)), tuple(range(4)), np.arange(4), torch.arange(4)],
        ids=lambda data: type(data).__name__,
    )
    def test_sequences_are_datasets(self, in_order_kind: LoaderKind, data: Any) -> None:
        assert lists(in_order_kind(data, 3)) == [[0, 1, 2], [3]]

    def test_tensor_dataset(self, in_order_kind: LoaderKind) -> None:
        data = TensorDataset(torch.arange(3), torch.arange(3) * 10)
        assert_same(
            list(in_order_kind(data, 2)),
            [
                [torch.tensor([0, 1]), torch.tensor([0, 10])],
                [torch.tensor([2]), torch.tensor([20])],
            ],
        )

    def test_getitem_that_does_not_bind(self, in_order_kind: LoaderKind) -> None:
        """As `unittest.mock` makes them: brackets call what they find on the class."""

        class Double:
            def __call__(self, index: int) -> int:
                return 2 * index

        class Odd:
            __getitem__ = Double()

            def __len__(self) -> int:
                return 3

        assert lists(in_order_kind(Odd(), 3)) == [[0, 2, 4]]

    def test_getitem_on_the_instance_is_not_looked_at(self, in_order_kind: LoaderKind) -> None:
        class Plain:
            def __len__(self) -> int:
                return 2

            def __getitem__(self, index: int) -> int:
                return index

        data = Plain()
        data.__getitem__ = lambda index: -1  # type: ignore[method-assign]
        assert lists(in_order_kind(data, 2)) == [[0, 1]]

    def test_dataset_without_getitem(self, in_order_kind: LoaderKind) -> None:
        class Nothing:
            def __len__(self) -> int:
                return 2

        with (
            iterating(in_order_kind(Nothing())) as iterator,
            pytest.raises(TypeError, match="not subscriptable"),
        ):
            next(iterator)

    def test_dataset_sees_what_changed_between_epochs(self) -> None:
        data = [0, 1, 2]
        for kind in (kind for kind in ALL if kind.num_workers == 0 or kind.is_ours):
            data[:] = [0, 1, 2]
            loader = kind(data, 3)
            assert samples_in(loader) == once_each([0, 1, 2])
            data[:] = [7, 8, 9]
            assert samples_in(loader) == once_each([7, 8, 9])


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("max_queue_size", [None, 1, 50])
def test_many_small_samples_each_exactly_once(
    workers: int, in_order: bool, max_queue_size: int | None
) -> None:
    """Workers that claim many tickets at a time, and steal the last ones of a batch from nobody."""
    data = Counting(1500)
    loader = MinatoLoader(
        data,
        16,
        shuffle=True,
        num_workers=workers,
        in_order=in_order,
        max_queue_size=max_queue_size,
        collate_fn=functools.partial(torch.tensor),
    )
    assert samples_in(loader) == once_each(range(1500))
    assert data.calls == once_each(range(1500))
