"""Errors of user code: which, where they come from, and what arrives besides."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from minato_async.scheduling.claim_size import ClaimSize
from tests.loaders import IN_ORDER, OURS, SERIAL, TORCH, LoaderKind
from tests.threads import wait_for_new_threads

from .support import (
    PATIENCE,
    Counting,
    Failing,
    Holding,
    batches_of,
    errors_of,
    iterating,
    lists,
    once_each,
    outcomes,
    samples_in,
)


class KeywordsOnly(Exception):
    """Cannot be made again from its message."""

    def __init__(self, *, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class Slotted(Exception):
    __slots__ = ("extra",)

    def __init__(self, extra: object) -> None:
        self.extra = extra


class Restored(Exception):
    """Has a way of its own to be pickled, with a state that is no dictionary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Restored, self.args, tuple(vars(self).items())

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)


def restored() -> Restored:
    error = Restored(7)
    error.found = "here"  # type: ignore[attr-defined]
    return error


class NoNotes(Exception):
    """Has notes of its own that are no list: nothing can be added to them."""

    def __init__(self) -> None:
        self.__notes__ = ("mine",)  # type: ignore[assignment]


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


def failing_at(*indices: int, n: int = 12) -> Failing:
    def error_at(index: int) -> Callable[[], Exception]:
        return lambda: ValueError(index)

    return Failing(n, {index: error_at(index) for index in indices})


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class TestTheException:
    """It is the object that was raised, with its traceback, and a note of where."""

    EXCEPTIONS: tuple[Callable[[], BaseException], ...] = (
        lambda: ValueError("plain"),
        lambda: KeyError("x"),
        lambda: subprocess.CalledProcessError(3, ["cmd", "-x"], b"out", b"err"),
        lambda: json.JSONDecodeError("bad", "the document", 4),
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        lambda: KeywordsOnly(code=7, reason="odd"),
        lambda: Slotted(object()),
        lambda: NoNotes(),
        lambda: OSError(2, "gone", "file"),
        lambda: ModuleNotFoundError("not here", name="module", path="file"),
        lambda: NameError("unknown", name="name"),
        lambda: AttributeError("none such", name="name"),
        lambda: restored(),
        lambda: AssertionError(),
        lambda: ExceptionGroup("several", [ValueError(1), KeyError(2)]),
        lambda: KeyboardInterrupt("in the dataset"),
        lambda: SystemExit(3),
        lambda: GeneratorExit(),
    )

    @pytest.mark.parametrize("make", EXCEPTIONS, ids=lambda make: type(make()).__name__)
    def test_arrives_untouched(
        self, our_kind: LoaderKind, make: Callable[[], BaseException]
    ) -> None:
        error = make()
        before = error.args, dict(vars(error)), str(error)
        before[1].pop("__notes__", None)
        fields = [getattr(error, name, None) for name in ("name", "path")]
        loader = our_kind(Failing(3, {1: lambda: error}), batch_size=3)
        with iterating(loader) as iterator, pytest.raises(type(error)) as caught:
            next(iterator)
        if our_kind.elsewhere:
            error = caught.value
        assert caught.value is error
        after = error.args, dict(vars(error)), str(error)
        after[1].pop("__notes__", None)
        if our_kind.elsewhere and isinstance(error, (BaseExceptionGroup, Slotted)):
            # What is in it is a like, too, which is not equal.
            assert type(error.args[-1]) is type(before[0][-1])
            after = before
        if isinstance(error, Slotted):
            assert type(error.extra) is object
        assert after == before
        assert [getattr(error, name, None) for name in ("name", "path")] == fields
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert frames[-1] == "sample"

    def test_note_names_index_step_and_worker(self, our_kind: LoaderKind) -> None:
        with iterating(our_kind(failing_at(7), 4)) as iterator:
            (error,) = errors_of(outcomes(iterator))
        note = notes_of(error)
        assert "index 7" in note
        assert "Failing.__getitem__" in note
        assert ("minato-worker-" if our_kind.num_workers else "consumer") in note
        assert str(error) == "7"

    def test_key_error_keeps_its_key(self, our_kind: LoaderKind) -> None:
        with iterating(our_kind({"a": 1}, sampler=["a", "x"])) as iterator:
            (error,) = errors_of(outcomes(iterator))
        assert type(error) is KeyError
        assert error.args == ("x",)
        assert "'x'" in notes_of(error)

    def test_same_object_raised_over_and_over_collects_no_notes(self) -> None:
        error = ValueError("always")
        data = Failing(4, dict.fromkeys(range(4), lambda: error))
        loader = MinatoLoader(data, sampler=[1] * 50, num_workers=1)
        with iterating(loader) as iterator:
            assert outcomes(iterator) == [error] * 50
        assert len(error.__notes__) == 1

    def test_key_whose_repr_fails(self, our_kind: LoaderKind) -> None:
        loader = our_kind({}, sampler=[Unshowable()])
        with iterating(loader) as iterator, pytest.raises(KeyError) as caught:
            next(iterator)
        assert "<Unshowable>" in notes_of(caught.value)

    @pytest.mark.parametrize("where", ["__getitem__", "collate_fn"])
    @pytest.mark.parametrize("stop", [StopIteration, StopAsyncIteration])
    def test_stop_iteration_does_not_end_the_epoch(
        self, our_kind: LoaderKind, stop: type[Exception], where: str
    ) -> None:
        def collate(samples: list[int]) -> list[int]:
            if where == "collate_fn" and 3 in samples:
                raise stop("value")
            return samples

        errors = {3: lambda: stop("value")} if where == "__getitem__" else {}
        loader = our_kind(Failing(8, errors), 2, collate_fn=collate, in_order=True)
        with iterating(loader) as iterator:
            found = outcomes(iterator)
        (error,) = errors_of(found)
        assert type(error) is RuntimeError
        assert stop.__name__ in str(error)
        assert type(error.__cause__) is stop
        assert error.__cause__.args == ("value",)
        assert batches_of(found) == [[0, 1], [4, 5], [6, 7]]

    def test_dataset_that_fetches_batches(self, our_kind: LoaderKind) -> None:
        class Fetches:
            def __len__(self) -> int:
                return 6

            def __getitems__(self, indices: list[int]) -> list[int]:
                if 2 in indices:
                    raise KeyError("x")
                return indices

        with iterating(our_kind(Fetches(), 2)) as iterator:
            found = outcomes(iterator)
        (error,) = errors_of(found)
        assert error.args == ("x",)
        assert "[2, 3]" in notes_of(error)
        assert "Fetches.__getitems__" in notes_of(error)
        assert samples_in(batches_of(found)) == once_each([0, 1, 4, 5])


class TestTheRest:
    """The failed batch is gone, the others arrive."""

    @pytest.mark.parametrize("kind", IN_ORDER, ids=lambda kind: kind.name)
    @pytest.mark.parametrize("failing", [[0], [5], [11], [0, 1], [1, 4, 5, 9]])
    def test_in_order_batches_are_lost_whole(self, kind: LoaderKind, failing: list[int]) -> None:
        with iterating(kind(failing_at(*failing), 3)) as iterator:
            found = outcomes(iterator)
        whole = [list(range(first, first + 3)) for first in range(0, 12, 3)]
        for item, batch in zip(found, whole, strict=True):
            bad = [index for index in failing if index in batch]
            if bad:
                # Of several, the first in the batch, as if one worker had gone through it.
                assert item.args == (bad[0],)
            else:
                assert item.tolist() == batch

    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("failing", [[0], [5], [11], [0, 1], [1, 4, 5, 9], list(range(12))])
    @pytest.mark.parametrize(
        ("num_workers", "prefetch_factor", "max_queue_size"),
        [(3, 2, None), (1, 1, None), (1, 2, 1), (2, 2, 2), (2, 2, 5)],
    )
    def test_in_any_order_only_the_samples_are_lost(
        self,
        num_workers: int,
        prefetch_factor: int,
        max_queue_size: int | None,
        failing: list[int],
        drop_last: bool,
    ) -> None:
        data = failing_at(*failing)
        loader = MinatoLoader(
            data,
            5,
            drop_last=drop_last,
            sampler=range(12),
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            max_queue_size=max_queue_size,
            in_order=False,
        )
        with iterating(loader) as iterator:
            found = outcomes(iterator)
        drawn = range(10 if drop_last else 12)
        lost = [index for index in failing if index in drawn]
        assert sorted(error.args[0] for error in errors_of(found)) == lost
        good = set(drawn) - set(lost)
        sizes = sorted(len(batch) for batch in batches_of(found))
        if drop_last:
            assert sizes == [5] * (len(good) // 5)
            assert samples_in(batches_of(found)) <= once_each(good)
        else:
            assert samples_in(batches_of(found)) == once_each(good)
            assert sum(size == 5 for size in sizes) == len(good) // 5
        assert data.calls == once_each(drawn)

    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("num_workers", [0, 1, 4])
    @pytest.mark.parametrize("max_queue_size", [None, 6])
    def test_many_failures_at_random(
        self, max_queue_size: int | None, num_workers: int, in_order: bool
    ) -> None:
        failing = set(random.Random(num_workers).sample(range(300), 60))
        data = failing_at(*failing, n=300)
        options = {} if num_workers == 0 else {"max_queue_size": max_queue_size}
        loader = MinatoLoader(data, 4, num_workers=num_workers, in_order=in_order, **options)
        with iterating(loader) as iterator:
            found = outcomes(iterator)
        if in_order or num_workers == 0:
            batches = [range(first, first + 4) for first in range(0, 300, 4)]
            good = [list(batch) for batch in batches if not failing & set(batch)]
            assert lists(batches_of(found)) == good
            first_bad = [min(failing & set(batch)) for batch in batches if failing & set(batch)]
            assert [error.args[0] for error in errors_of(found)] == first_bad
        else:
            assert samples_in(batches_of(found)) == once_each(set(range(300)) - failing)
            assert {error.args[0] for error in errors_of(found)} == failing
        assert max(data.calls.values()) == 1

    def test_first_error_of_a_batch_whichever_worker_is_faster(self) -> None:
        """Row 0 fails last: the error of row 1, known long before, is not the batch's."""

        class LateFirst(Holding):
            def sample(self, index: int) -> int:
                super().sample(index)
                raise ValueError(index)

        data = LateFirst(4, held=[0])
        with iterating(MinatoLoader(data, 4, num_workers=3, in_order=True)) as iterator:
            data.wait_for_calls([0, 1])
            data.release()
            (error,) = outcomes(iterator)
        assert error.args == (0,)

    def test_rest_of_a_lost_batch_is_not_loaded(self) -> None:
        data = failing_at(0, n=1000)
        loader = MinatoLoader(data, 1000, num_workers=1, in_order=True)
        with iterating(loader) as iterator:
            (error,) = outcomes(iterator)
        assert error.args == (0,)
        assert data.calls == once_each([0])

    def test_large_samples_of_a_lost_batch(self) -> None:
        """Samples on their way into the rows of a batch that another one takes down."""

        class Large(Failing):
            def sample(self, index: int) -> torch.Tensor:
                super().sample(index)
                return torch.full((200_000,), float(index))

        for _ in range(10):
            data = Large(12, {5: lambda: ValueError(5)})
            with iterating(MinatoLoader(data, 4, num_workers=4, in_order=True)) as iterator:
                found = outcomes(iterator)
            assert [batch[:, -1].tolist() for batch in batches_of(found)] == [
                [0, 1, 2, 3],
                [8, 9, 10, 11],
            ]
            assert [error.args for error in errors_of(found)] == [(5,)]

    def test_persistent_workers_load_the_next_epoch(self) -> None:
        data = failing_at(3)
        loader = MinatoLoader(data, 3, num_workers=2, persistent_workers=True, in_order=True)
        with iterating(loader):
            for _ in range(3):
                found = outcomes(iter(loader))
                assert [error.args for error in errors_of(found)] == [(3,)]
                assert lists(batches_of(found)) == [[0, 1, 2], [6, 7, 8], [9, 10, 11]]


class TestSkipping:
    """`on_error="skip"`, where samples are skipped by the dozen."""

    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("num_workers", [0, 1, 3])
    @pytest.mark.parametrize("drop_last", [False, True])
    def test_more_in_a_row_than_are_drawn_ahead(
        self, drop_last: bool, num_workers: int, in_order: bool
    ) -> None:
        """Nothing comes of all that was drawn; so more must be, though no batch was taken."""
        data = failing_at(*range(40), *range(41, 80), n=100)
        loader: MinatoLoader[Any] = MinatoLoader(
            data,
            4,
            num_workers=num_workers,
            prefetch_factor=1 if num_workers else None,
            in_order=in_order,
            drop_last=drop_last,
            on_error="skip",
        )
        found = list(loader)
        good = {40, *range(80, 100)}
        if drop_last and num_workers and not in_order:
            assert samples_in(found) < once_each(good)
            assert [len(batch) for batch in found] == [4] * (len(good) // 4)
        else:
            assert samples_in(found) == once_each(good)
        assert data.calls == once_each(range(100))

    @pytest.mark.parametrize("in_order", [True, False])
    def test_all_samples(self, in_order: bool) -> None:
        data = failing_at(*range(50), n=50)
        loader = MinatoLoader(data, 4, num_workers=2, in_order=in_order, on_error="skip")
        assert list(loader) == []
        assert data.calls == once_each(range(50))


class TestCollating:
    def test_failing_collate_fn(self, our_kind: LoaderKind) -> None:
        error = KeywordsOnly(code=1, reason="odd")

        def collate(samples: list[int]) -> torch.Tensor:
            if 4 in samples:
                raise error
            return torch.tensor(samples)

        data = Counting(9)
        with iterating(our_kind(data, 3, collate_fn=collate, in_order=True)) as iterator:
            found = outcomes(iterator)
        if our_kind.elsewhere:
            (error,) = errors_of(found)
            assert (type(error), error.args, vars(error)["code"]) == (KeywordsOnly, ("odd (1)",), 1)
        assert errors_of(found) == [error]
        assert "[3, 4, 5]" in notes_of(error)
        assert samples_in(batches_of(found)) == once_each([0, 1, 2, 6, 7, 8])
        if not our_kind.elsewhere:
            assert data.calls == once_each(range(9))

    def test_every_batch_failing(self, our_kind: LoaderKind) -> None:
        def collate(samples: list[int]) -> None:
            raise KeyError(len(samples))

        with iterating(our_kind(range(7), 3, collate_fn=collate)) as iterator:
            found = outcomes(iterator)
        assert sorted(error.args for error in errors_of(found)) == [(1,), (3,), (3,)]
        assert batches_of(found) == []

    def test_unequal_shapes_name_the_odd_sample(self, our_kind: LoaderKind) -> None:
        samples = [torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2, 3)]
        loader = our_kind(samples, 4, in_order=True)
        with iterating(loader) as iterator, pytest.raises(RuntimeError) as caught:
            next(iterator)
        note = notes_of(caught.value)
        assert "index 2 is tensor(2, 4)" in note
        assert "tensor(2, 3)" in note
        with pytest.raises(RuntimeError) as expected:
            list(DataLoader(samples, 4))
        assert str(caught.value) == str(expected.value)

    def test_unequal_large_samples_name_the_odd_one(self) -> None:
        """Large samples go into rows; the notes speak of the samples all the same."""
        samples = [(torch.zeros(200_000 + (i == 2)), i) for i in range(4)]
        with (
            iterating(MinatoLoader(samples, 4, num_workers=2, in_order=True)) as iterator,
            pytest.raises(RuntimeError, match="equal size") as caught,
        ):
            next(iterator)
        assert "index 2 is tuple(tensor(200001,)" in notes_of(caught.value)
        assert "RowLeaf" not in notes_of(caught.value)

    def test_unequal_small_parts_beside_large_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ClaimSize, "next", lambda self: 1)
        samples = [(torch.zeros(200_000), torch.zeros(1 + (i == 1))) for i in range(4)]
        with (
            iterating(MinatoLoader(samples, 4, num_workers=2, in_order=True)) as iterator,
            pytest.raises(RuntimeError, match="equal size") as caught,
        ):
            next(iterator)
        assert "index 1 is tuple(tensor(200000,) float32, tensor(2,)" in notes_of(caught.value)
        assert "RowLeaf" not in notes_of(caught.value)

    def test_samples_that_cannot_be_described(self, our_kind: LoaderKind) -> None:
        class Odd:
            shape = None
            dtype = "odd"

        with iterating(our_kind([Odd(), Odd()], 2)) as iterator:
            (error,) = outcomes(iterator)
        assert type(error) is TypeError
        assert "default_collate" in str(error)


class Sampler:
    """Yields `drawn`, then raises."""

    def __init__(self, *drawn: Any) -> None:
        self.drawn = drawn

    def __iter__(self) -> Iterator[Any]:
        yield from self.drawn
        raise KeyError("sampler")


class TestSampler:
    @pytest.mark.parametrize("drawn", [0, 1, 4, 9, 40])
    @pytest.mark.parametrize("persistent", [False, True])
    def test_what_was_drawn_before_comes_first(
        self, our_kind: LoaderKind, drawn: int, persistent: bool
    ) -> None:
        options = {"persistent_workers": True} if persistent and our_kind.num_workers else {}
        data = Counting(40)
        loader = our_kind(data, 2, sampler=Sampler(*range(drawn)), **options)
        with iterating(loader) as iterator:
            found = outcomes(iterator)
            assert list(iterator) == []
        assert type(found[-1]) is KeyError
        assert found[-1].args == ("sampler",)
        frames = [frame.name for frame in traceback.extract_tb(found[-1].__traceback__)]
        assert frames.count("__iter__") >= 1
        # A batch that the sampler did not complete is not there, as with torch.
        whole = drawn // 2 * 2
        assert samples_in(found[:-1]) == once_each(range(whole))
        if not our_kind.elsewhere:
            assert data.calls == once_each(range(whole))

    @pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
    def test_failing_in_iter(self, kind: LoaderKind) -> None:
        class Fails:
            def __iter__(self) -> Iterator[list[int]]:
                raise KeyError("iter")

        loader = kind(range(4), batch_sampler=Fails())
        for _ in range(2):
            with pytest.raises(KeyError, match="iter"):
                next(iter(loader))

    @pytest.mark.parametrize("kind", [TORCH, SERIAL], ids=lambda kind: kind.name)
    def test_batch_that_is_none_without_workers(self, kind: LoaderKind) -> None:
        found = outcomes(iter(kind(range(4), batch_sampler=[[0], 2, [1]])))
        assert [type(outcome) for outcome in found] == [torch.Tensor, TypeError, torch.Tensor]

    def test_batch_that_is_none(self, our_kind: LoaderKind) -> None:
        """A batch must be an iterable of indices; ints are what one gets from a plain sampler."""
        loader = our_kind(range(4), batch_sampler=[[0], [1], 2])
        with iterating(loader) as iterator:
            found = outcomes(iterator)
        assert samples_in(found[:2]) == once_each([0, 1])
        assert type(found[2]) is TypeError
        assert len(found) == 3

    def test_next_epoch_after_a_failure(self, our_kind: LoaderKind) -> None:
        sampler = Sampler(0, 1, 2)
        loader = our_kind(range(4), sampler=sampler)
        with pytest.raises(KeyError):
            list(loader)
        loader = our_kind(range(4), sampler=[3])
        assert lists(loader) == [[3]]

    def test_iterator_dropped_before_the_error(self) -> None:
        """The error was met while reading ahead; nobody asks for it, and nothing is kept by it."""
        before = set(threading.enumerate())
        iterator = iter(MinatoLoader(range(9), 2, sampler=Sampler(*range(6)), num_workers=2))
        next(iterator)
        dropped = weakref.ref(iterator)
        del iterator
        gc.collect()
        assert dropped() is None
        assert wait_for_new_threads(before, PATIENCE) == []

    @pytest.mark.parametrize("batches", [0, 1, 2])
    def test_interrupt_does_not_wait_for_what_was_drawn(self, batches: int) -> None:
        """Ctrl-C while the sampler runs; and the epoch does not then seem to be complete."""

        class Interrupted:
            drawn = 0

            def __iter__(self) -> Iterator[int]:
                for index in range(100):
                    if index == batches + 2:
                        raise KeyboardInterrupt
                    yield index

        loader = MinatoLoader(
            range(100), sampler=Interrupted(), num_workers=1, prefetch_factor=2, in_order=True
        )
        with iterating(loader) as iterator:
            assert [next(iterator).item() for _ in range(batches)] == list(range(batches))
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
            *_, last = outcomes(iterator)
        assert type(last) is RuntimeError
        assert "KeyboardInterrupt" in str(last)


class TestKeptExceptions:
    """What the user keeps of an error must not keep the loader."""

    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("where", ["__getitem__", "collate_fn", "sampler"])
    def test_do_not_keep_workers_alive(self, where: str, in_order: bool) -> None:
        def collate(samples: list[int]) -> list[int]:
            if where == "collate_fn" and 2 in samples:
                raise KeyError("collate")
            return samples

        def fail_once() -> BaseException:
            loader = MinatoLoader(
                failing_at(2, n=40) if where == "__getitem__" else range(40),
                2,
                sampler=Sampler(0, 1) if where == "sampler" else None,
                collate_fn=collate,
                num_workers=2,
                in_order=in_order,
            )
            try:
                for _ in loader:
                    pass
            except (ValueError, KeyError) as error:
                return error
            raise AssertionError("nothing was raised")

        before = set(threading.enumerate())
        kept = fail_once()
        gc.collect()
        assert wait_for_new_threads(before, PATIENCE) == []
        assert kept.__traceback__ is not None

    def test_failed_batch_keeps_no_samples(self) -> None:
        class Sample:
            pass

        made: list[weakref.ref[Sample]] = []

        class Data(Failing):
            def sample(self, index: int) -> Any:
                super().sample(index)
                sample = Sample()
                made.append(weakref.ref(sample))
                return sample

        loader = MinatoLoader(
            Data(4, {3: lambda: ValueError(3)}), 4, num_workers=1, collate_fn=list
        )
        with iterating(loader) as iterator:
            (kept,) = outcomes(iterator)
            assert kept.args == (3,)
            assert len(made) == 3
            gc.collect()
            assert [sample() for sample in made] == [None] * 3
