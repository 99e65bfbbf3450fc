"""`on_error=`: what becomes of samples that fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minato_async import MinatoLoader
from tests.loaders import on_each_executor

from .support import PATIENCE, Made, flat


def failing(n: int, bad: set[int]) -> Made:
    def load(index: int) -> int:
        if index in bad:
            raise ValueError(f"bad {index}")
        return index

    return Made(n, load)


def loader_of(dataset: Any, **options: Any) -> MinatoLoader[Any]:
    usual = {"batch_size": 4, "num_workers": 2, "collate_fn": list}
    return MinatoLoader(dataset, **(usual | {"timeout": PATIENCE} | options))


in_any_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "any order"])


@on_each_executor
class TestSkip:
    def test_in_order_batches_are_shorter(self) -> None:
        loader = loader_of(failing(12, {1, 2, 9}), in_order=True, on_error="skip")
        assert list(loader) == [[0, 3], [4, 5, 6, 7], [8, 10, 11]]

    def test_in_any_order_the_last_batch_is(self) -> None:
        batches = list(loader_of(failing(12, {1, 2, 9}), in_order=False, on_error="skip"))
        # Being short, it may be collated before the one before it.
        assert sorted(len(batch) for batch in batches) == [1, 4, 4]
        assert sorted(flat(batches)) == [0, 3, 4, 5, 6, 7, 8, 10, 11]

    def test_a_batch_of_which_nothing_is_left_vanishes(self) -> None:
        loader = loader_of(failing(12, {4, 5, 6, 7}), in_order=True, on_error="skip")
        assert list(loader) == [[0, 1, 2, 3], [8, 9, 10, 11]]

    @in_any_order
    @pytest.mark.parametrize("n", [1, 4, 7, 40])
    def test_all_may_be_skipped(self, n: int, in_order: bool) -> None:
        loader = loader_of(failing(n, set(range(n))), in_order=in_order, on_error="skip")
        iterator = iter(loader)
        assert list(iterator) == []
        assert iterator.stats.failed == n

    @in_any_order
    def test_they_are_counted_with_index_and_error(self, in_order: bool) -> None:
        iterator = iter(loader_of(failing(12, {1, 9}), in_order=in_order, on_error="skip"))
        list(iterator)
        stats = iterator.stats
        assert stats.failed == 2
        skipped = sorted((index, str(error)) for index, error in stats.skipped)
        assert skipped == [(1, "bad 1"), (9, "bad 9")]
        notes = ["\n".join(error.__notes__) for _, error in stats.skipped]
        assert all("Made.__getitem__" in note for note in notes)
        # Its traceback would keep all that the sample had loaded.
        assert all(error.__traceback__ is None for _, error in stats.skipped)
        assert all("test_on_error.py" in note and "in load" in note for note in notes)

    def test_with_drop_last_a_shortened_batch_in_order_stays(self) -> None:
        loader = loader_of(failing(10, {1}), in_order=True, on_error="skip", drop_last=True)
        assert list(loader) == [[0, 2, 3], [4, 5, 6, 7]]

    def test_with_drop_last_a_short_batch_in_any_order_goes(self) -> None:
        loader = loader_of(failing(12, {1}), in_order=False, on_error="skip", drop_last=True)
        assert [len(batch) for batch in loader] == [4, 4]

    @in_any_order
    @pytest.mark.parametrize("step", [0, 1])
    def test_a_later_step_may_fail_too(self, step: int, in_order: bool) -> None:
        def fail(index: int) -> int:
            if index % 3 == 0:
                raise ValueError
            return index

        transforms = [lambda index: index] * 2
        transforms[step] = fail
        loader = loader_of(
            Made(12),
            transforms=transforms,
            in_order=in_order,
            on_error="skip",
            timeout_threshold=1e-9,
        )
        assert sorted(flat(loader)) == [1, 2, 4, 5, 7, 8, 10, 11]

    def test_without_workers_as_in_order(self) -> None:
        loader = loader_of(failing(12, {1, 4, 5, 6, 7}), num_workers=0, on_error="skip", timeout=0)
        assert list(loader) == [[0, 2, 3], [8, 9, 10, 11]]

    @in_any_order
    def test_large_tensors_that_go_into_rows(self, in_order: bool) -> None:
        def load(index: int) -> torch.Tensor:
            if index in {2, 3, 8}:
                raise ValueError
            return torch.full((3, 128, 128), float(index))

        loader = MinatoLoader(
            Made(12, load), batch_size=4, num_workers=2, in_order=in_order, on_error="skip"
        )
        batches = list(loader)
        values = [sample.unique().item() for batch in batches for sample in batch]
        assert sorted(values) == [0, 1, 4, 5, 6, 7, 9, 10, 11]
        sizes = [len(batch) for batch in batches]
        # In any order the short batch may overtake one that is still being collated.
        assert sizes == [2, 4, 3] if in_order else sorted(sizes) == [1, 4, 4]


@on_each_executor
class TestReplace:
    @in_any_order
    def test_the_replacement_takes_the_place(self, in_order: bool, executor: str) -> None:
        calls = []

        def replace(index: int, error: BaseException) -> int:
            assert str(error) == f"bad {index}"
            calls.append(index)
            return -index

        iterator = iter(loader_of(failing(12, {1, 9}), in_order=in_order, on_error=replace))
        samples = flat(iterator)
        assert sorted(samples) == sorted({*range(12), -1, -9} - {1, 9})
        if in_order:
            assert (samples[1], samples[9]) == (-1, -9)
        assert sorted(calls) == ([1, 9] if executor == "thread" else [])  # noted elsewhere
        assert iterator.stats.skipped == ()

    @in_any_order
    def test_a_handler_that_raises(self, in_order: bool) -> None:
        def refuse(index: int, error: BaseException) -> int:
            raise KeyError(index) from error

        iterator = iter(loader_of(failing(12, {5}), in_order=in_order, on_error=refuse))
        seen, errors = [], []
        while True:
            try:
                seen += next(iterator)
            except StopIteration:
                break
            except KeyError as error:
                errors.append(error)
        (error,) = errors
        assert error.args == (5,)
        assert isinstance(error.__cause__, ValueError)
        lost = {4, 5, 6, 7} if in_order else {5}
        assert sorted(seen) == sorted(set(range(12)) - lost)
        assert iterator.stats.failed == 1

    def test_a_handler_that_ends_in_stop_iteration_does_not_end_the_epoch(self) -> None:
        def refuse(index: int, error: BaseException) -> int:
            raise StopIteration

        iterator = iter(loader_of(failing(12, {5}), in_order=True, on_error=refuse))
        assert next(iterator) == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(iterator)
        assert next(iterator) == [8, 9, 10, 11]

    def test_a_handler_that_raises_is_named(self) -> None:
        def refuse(index: int, error: BaseException) -> int:
            raise KeyError("no replacement")

        with pytest.raises(KeyError) as caught:
            list(loader_of(failing(4, {2}), on_error=refuse))
        assert "sample index 2" in "".join(getattr(caught.value, "__notes__", ()))

    def test_without_workers_too(self) -> None:
        loader = loader_of(
            failing(6, {1}), num_workers=0, timeout=0, on_error=lambda index, error: -index
        )
        assert list(loader) == [[0, -1, 2, 3], [4, 5]]


@on_each_executor
class TestRaise:
    @in_any_order
    def test_the_failed_are_counted(self, in_order: bool) -> None:
        iterator = iter(loader_of(failing(12, {1, 9}), in_order=in_order))
        seen, failures = [], 0
        while True:
            try:
                seen += next(iterator)
            except StopIteration:
                break
            except ValueError:
                failures += 1
        assert failures == 2
        assert iterator.stats.failed == 2
        assert iterator.stats.skipped == ()
        lost = {0, 1, 2, 3, 8, 9, 10, 11} if in_order else {1, 9}
        assert sorted(seen) == sorted(set(range(12)) - lost)
