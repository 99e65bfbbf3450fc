"""Iterable datasets on worker threads: who reads what, when, and how it ends. No clocks."""

from __future__ import annotations

import asyncio
import contextvars
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from minato_async import MinatoLoader
from minato_async.shards import reader
from tests.threads import wait_for_new_threads

from .datasets import (
    SOON,
    Closing,
    Endless,
    Failing,
    Gated,
    Range,
    Sized,
    divide_range,
    in_turn,
    iterating,
    lists,
    name,
    outcomes,
    shard_number,
)

ORDERS = pytest.mark.parametrize("in_order", [True, False])


def flat(batches: Any) -> Counter[int]:
    return Counter(sample for batch in lists(batches) for sample in batch)


def until_late(iterator: Iterator[Any]) -> tuple[list[Any], RuntimeError | None]:
    """What comes until `next` times out, and the error; None: until the end."""
    found = []
    try:
        for batch in iterator:
            found.append(batch.tolist())
    except RuntimeError as error:
        return found, error
    return found, None


class TestSlowShard:
    def test_holds_up_nobody_when_order_is_off(self) -> None:
        dataset = Gated([4, 6, 6], closed=0, first=2)
        with iterating(
            MinatoLoader(dataset, batch_size=2, num_workers=3, in_order=False)
        ) as iterator:
            # All but the batch that shard 0 is at: its first is there already.
            others = flat(islice(iterator, 7))
            assert others == Counter([0, 1, *range(1000, 1006), *range(2000, 2006)])
            dataset.gate.set()
            assert lists(iterator) == [[2, 3]]

    def test_holds_up_only_its_turn_when_order_is_kept(self) -> None:
        dataset = Gated([4, 6, 6], closed=1, first=2)
        with iterating(MinatoLoader(dataset, batch_size=2, num_workers=3)) as iterator:
            found = lists(islice(iterator, 4))
            assert dataset.stuck.wait(SOON)
            assert found == in_turn([4, 6, 6], 2)[:4]
            dataset.gate.set()
            assert found + lists(iterator) == in_turn([4, 6, 6], 2)

    def test_one_worker_is_inside_an_iterator_at_a_time(self) -> None:
        dataset = Gated([3, 9], closed=0)
        loader = MinatoLoader(dataset, num_workers=2, in_order=False)
        with iterating(loader) as iterator:
            # A worker comes by nine times, and finds a shard that is taken and due.
            assert len(lists(islice(iterator, 9))) == 9
            assert dataset.stuck.wait(SOON)
            dataset.gate.set()
            assert len(lists(iterator)) == 3
        assert max(dataset.most_inside) == 1

    def test_timeout_names_the_sample(self) -> None:
        dataset = Gated([5, 5], closed=1, first=2)
        loader = MinatoLoader(dataset, batch_size=2, num_workers=2, timeout=0.2)
        with iterating(loader) as iterator:
            assert dataset.stuck.wait(SOON)
            found, error = until_late(iterator)
            while len(found) < 3:  # a busy machine was late before
                more, error = until_late(iterator)
                found += more
            assert re.search("timed out .*shard 1, sample 2", str(error))
            dataset.gate.set()
            while error is not None:
                more, error = until_late(iterator)
                found += more
        assert found == in_turn([5, 5], 2)


class TestEndless:
    @ORDERS
    @pytest.mark.parametrize("options", [{}, {"max_queue_size": 10}], ids=str)
    def test_is_read_in_bounds(self, in_order: bool, options: dict[str, Any]) -> None:
        loader = MinatoLoader(Endless(), batch_size=4, num_workers=3, in_order=in_order, **options)
        found = lists(islice(loader, 30))
        if in_order:
            assert found == in_turn([40] * 3, 4)
        assert set(flat(found := [torch.tensor(batch) for batch in found]).values()) == {1}

    def test_shared(self) -> None:
        loader = MinatoLoader(Endless(), batch_size=4, num_workers=3, iterable_mode="shared")
        assert lists(islice(loader, 30)) == in_turn([120], 4)


class TestSets:
    @pytest.mark.parametrize(
        "options", [{}, {"prefetch_factor": 1}, {"max_queue_size": 5}], ids=str
    )
    def test_every_sample_once_in_any_order(self, options: dict[str, Any]) -> None:
        sizes = [0, 300, 7, 150, 1, 90]
        loader = MinatoLoader(Sized(sizes), batch_size=4, num_workers=6, in_order=False, **options)
        expected = Counter(name(s, o) for s, size in enumerate(sizes) for o in range(size))
        for _ in range(3):
            assert flat(loader) == expected

    def test_two_iterators_at_once(self) -> None:
        loader = MinatoLoader(Sized([9, 5]), batch_size=2, num_workers=2)
        expected = in_turn([9, 5], 2)
        pairs = list(zip(iter(loader), iter(loader), strict=True))
        assert lists(one for one, _ in pairs) == lists(other for _, other in pairs) == expected

    @pytest.mark.parametrize("persistent", [False, True])
    def test_again_after_break(self, persistent: bool) -> None:
        loader = MinatoLoader(Endless(), num_workers=2, persistent_workers=persistent)
        for _ in range(3):
            assert lists(islice(loader, 5)) == in_turn([3, 3], 1)[:5]

    async def test_in_a_coroutine(self) -> None:
        loader = MinatoLoader(Sized([5, 0, 9]), batch_size=2, num_workers=3)
        assert [batch.tolist() async for batch in loader] == in_turn([5, 0, 9], 2)
        serial = MinatoLoader(Sized([5]), batch_size=2)
        assert [batch.tolist() async for batch in serial] == in_turn([5], 2)


def raiser(error: BaseException, at: tuple[int, int]) -> Callable[[int, int], None]:
    def fail(shard: int, ordinal: int) -> None:
        if (shard, ordinal) == at:
            raise error

    return fail


def caught(iterator: Iterator[Any]) -> BaseException:
    while True:
        try:
            next(iterator)
        except StopIteration:
            raise AssertionError("no error until the end") from None
        except BaseException as error:
            return error


class TestErrors:
    @ORDERS
    def test_names_shard_and_sample(self, in_order: bool) -> None:
        error = KeyError("x")
        loader = MinatoLoader(Failing(raiser(error, (1, 2))), num_workers=2, in_order=in_order)
        with iterating(loader) as iterator:
            assert caught(iterator) is error
            list(iterator)
        assert error.args == ("x",)
        (note,) = error.__notes__
        assert "shard 1, sample 2, step Failing.__iter__, worker minato-worker-" in note

    def test_without_workers_names_the_sample(self) -> None:
        error = KeyError("x")
        assert caught(iter(MinatoLoader(Failing(raiser(error, (0, 2)))))) is error
        assert "sample 2, step Failing.__iter__, worker the consumer's thread" in error.__notes__[0]

    def test_collating_names_shard_and_samples(self) -> None:
        def collate(samples: list[int]) -> Any:
            raise ZeroDivisionError

        loader = MinatoLoader(Sized([0, 3]), batch_size=2, num_workers=2, collate_fn=collate)
        error = caught(iter(loader))
        assert "samples with indices [0, 1]" in error.__notes__[0]
        assert "shard 1" in error.__notes__[0]

    @pytest.mark.parametrize("error", [KeyError("x"), StopIteration("x")], ids=repr)
    def test_iter_that_raises_ends_its_shard_alone(self, error: Exception) -> None:
        loader = MinatoLoader(Failing(raiser(error, (1, -1))), num_workers=2)
        raised = RuntimeError if isinstance(error, StopIteration) else type(error)
        # Torch goes on to raise UnboundLocalError for ever.
        assert outcomes(loader) == [[0], raised, [1], [2], [3]]

    def test_worker_init_fn_that_raises_ends_its_shard_alone(self) -> None:
        failing = [0]

        def init(worker_id: int) -> None:
            if worker_id in failing:
                raise KeyError(worker_id)

        loader = MinatoLoader(
            Range(0, 2), num_workers=2, worker_init_fn=init, persistent_workers=True
        )
        assert outcomes(loader) == [KeyError, [0], [1]]
        failing.clear()
        assert outcomes(loader) == [[0], [0], [1], [1]]

    @pytest.mark.parametrize("count", [0, 2])
    def test_stop_iteration_in_collate_fn_is_no_end(self, count: int) -> None:
        def collate(samples: list[int]) -> Any:
            raise StopIteration

        iterator = iter(MinatoLoader(Sized([1, 1]), num_workers=count, collate_fn=collate))
        with pytest.raises(RuntimeError, match="collate_fn raised StopIteration"):
            next(iterator)

    def test_exits_that_are_no_errors_arrive_too(self) -> None:
        loader = MinatoLoader(Failing(raiser(SystemExit(3), (1, 1))), num_workers=2)
        with iterating(loader) as iterator:
            assert isinstance(caught(iterator), SystemExit)
            assert len(list(iterator)) == 2

    def test_keeping_an_error_keeps_no_worker(self) -> None:
        before = set(threading.enumerate())
        loader = MinatoLoader(Failing(raiser(KeyError("x"), (0, 0))), num_workers=2)
        with pytest.raises(KeyError) as kept:
            next(iter(loader))
        assert wait_for_new_threads(before, SOON) == []
        assert kept.value.__traceback__ is not None


class TestEnd:
    @pytest.mark.parametrize("how", ["close", "del", "again"])
    def test_generators_are_closed_by_workers(self, how: str) -> None:
        dataset = Closing()
        loader = MinatoLoader(dataset, num_workers=3, persistent_workers=how == "again")
        iterator = iter(loader)
        next(iterator)
        # All three shards have begun, and nothing but the end of the epoch ends them.
        lists(islice(iterator, 5))
        if how == "close":
            iterator.close()
        elif how == "del":
            del iterator
        else:
            assert iter(loader) is iterator
        dataset.await_closed(3)
        assert all(name.startswith("minato-worker") for name in dataset.closed_in)
        if how == "again":
            lists(islice(iterator, 6))
            iterator.close()
            dataset.await_closed(3)

    def test_generator_that_the_dataset_keeps_goes_on(self) -> None:
        class Kept(IterableDataset[int]):
            def __init__(self) -> None:
                self.generator = iter(int(i) for i in range(100))

            def __iter__(self) -> Iterator[int]:
                return self.generator

        loader = MinatoLoader(Kept(), num_workers=1, persistent_workers=True)
        first, second = (lists(islice(loader, 2)) for _ in range(2))
        assert first == [[0], [1]]
        assert second[0][0] > 1

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_what_a_generator_raises_when_closed_is_told_and_harms_nothing(self) -> None:
        class Stubborn(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                try:
                    yield from range(5)
                finally:
                    raise ZeroDivisionError("closing")

        told: list[Any] = []
        hook, threading.excepthook = threading.excepthook, told.append
        try:
            loader = MinatoLoader(Stubborn(), num_workers=1, persistent_workers=True)
            for _ in range(3):
                assert lists(islice(loader, 2)) == [[0], [1]]
        finally:
            threading.excepthook = hook
        assert {args.exc_type for args in told} == {ZeroDivisionError}

    def test_dropped_while_a_shard_is_stuck(self) -> None:
        dataset = Gated([5, 5], closed=1)
        iterator = iter(MinatoLoader(dataset, num_workers=2))
        next(iterator)
        assert dataset.stuck.wait(SOON)
        del iterator  # the check for what is left behind does the rest
        dataset.gate.set()

    def test_next_epoch_waits_for_a_shard_that_is_stuck_and_for_no_other(self) -> None:
        dataset = Gated([3, 3], closed=1)
        loader = MinatoLoader(dataset, num_workers=2, persistent_workers=True, in_order=False)
        next(iter(loader))
        assert dataset.stuck.wait(SOON)
        again = iter(loader)
        assert sorted(lists(islice(again, 3))) == [[0], [1], [2]]
        dataset.gate.set()
        assert sorted(lists(again)) == [[1000], [1001], [1002]]
        assert max(dataset.most_inside) == 1
        again.close()


class TestPersistent:
    def test_what_the_user_sets_between_epochs_is_seen(self) -> None:
        dataset = Range(0, 4)
        loader = MinatoLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
        assert lists(loader) == [[0, 1, 2, 3]]
        dataset.start = 2
        assert lists(loader) == [[2, 3]]

    def test_shards_have_a_copy_each(self) -> None:
        seen: list[Any] = []

        def init(worker_id: int) -> None:
            info = get_worker_info()
            assert info is not None
            seen.append(info.dataset)

        dataset = Range(0, 1)
        list(MinatoLoader(dataset, num_workers=3, worker_init_fn=init))
        assert len({id(copy) for copy in [*seen, dataset]}) == 4


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def modes() -> tuple[bool, bool, str]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), variable.get()


class Environment(IterableDataset[Any]):
    """Yields the modes that are on and a context variable, and changes them as it goes."""

    def __iter__(self) -> Iterator[Any]:
        yield modes()
        variable.set(f"shard {shard_number()}")
        for context in torch.no_grad(), torch.inference_mode():
            with context:
                for _ in range(20):
                    yield modes()
        yield modes()


class TestEnvironment:
    def test_goes_with_the_shard_from_thread_to_thread(self) -> None:
        variable.set("caller's")
        around: list[Any] = []

        def collate(sample: Any) -> Any:
            around.append(modes())
            return shard_number(), sample

        loader = MinatoLoader(Environment(), batch_size=None, num_workers=4, collate_fn=collate)
        found = list(loader)
        for shard in range(4):
            own = f"shard {shard}"
            expected = [(True, False, "caller's")]
            expected += [(False, False, own)] * 20 + [(False, True, own)] * 20
            expected += [(True, False, own)]
            assert [sample for number, sample in found if number == shard] == expected
        assert {*around, modes()} == {(True, False, "caller's")}

    @torch.no_grad()
    def test_grad_mode_is_the_callers(self) -> None:
        loader = MinatoLoader(Environment(), batch_size=None, num_workers=1)
        assert next(iter(loader))[0] is False


class TestShared:
    @ORDERS
    def test_one_iterator_for_all_workers(self, in_order: bool) -> None:
        # It would give each shard a part, if there were more than one.
        loader = MinatoLoader(
            Range(0, 50),
            batch_size=4,
            num_workers=4,
            worker_init_fn=divide_range,
            iterable_mode="shared",
            in_order=in_order,
        )
        assert loader.iterable_mode == "shared"
        found = lists(loader)
        expected = [list(range(50))[i : i + 4] for i in range(0, 50, 4)]
        assert (found if in_order else sorted(found)) == expected

    def test_is_told_to_be_the_only_worker(self) -> None:
        class Told(IterableDataset[Any]):
            def __iter__(self) -> Iterator[Any]:
                info = get_worker_info()
                assert info is not None
                yield info.id, info.num_workers, info.dataset is self

        loader = MinatoLoader(Told(), batch_size=None, num_workers=3, iterable_mode="shared")
        assert list(loader) == [[0, 1, True]]

    def test_is_read_by_one_and_collated_by_many(self) -> None:
        together = threading.Barrier(3)

        def collate(samples: list[int]) -> list[int]:
            together.wait(SOON)
            return samples

        dataset = Gated([12])
        dataset.gate.set()
        loader = MinatoLoader(
            dataset,
            batch_size=2,
            num_workers=3,
            collate_fn=collate,
            persistent_workers=True,
            iterable_mode="shared",
        )
        # In the second epoch all workers are idle, and there is work for one alone to begin with.
        for _ in range(2):
            assert lists(loader) == in_turn([12], 2)
        assert max(dataset.most_inside) == 1

    def test_bad_values(self) -> None:
        with pytest.raises(ValueError, match="iterable_mode must be one of"):
            MinatoLoader(Range(0, 1), iterable_mode="both")
        with pytest.raises(ValueError, match="map-style"):
            MinatoLoader(range(3), iterable_mode="shared")


def test_loop_of_the_caller_is_not_blocked_by_a_slow_shard() -> None:
    dataset = Gated([1])

    async def main() -> list[Any]:
        async def load() -> list[Any]:
            return [batch.tolist() async for batch in MinatoLoader(dataset, num_workers=1)]

        task = asyncio.create_task(load())
        while not dataset.stuck.is_set():
            await asyncio.sleep(0)
        dataset.gate.set()
        return await task

    assert asyncio.run(main()) == [[0]]


@pytest.mark.parametrize("borrowed", [-2, -1, 0, 1])
def test_whose_a_generator_is_does_not_depend_on_what_a_call_borrows(
    borrowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython 3.14 counts the arguments of a call differently from those before."""
    count = sys.getrefcount
    monkeypatch.setattr(reader.sys, "getrefcount", lambda thing: count(thing) + borrowed)
    closed: list[str] = []

    def generate(name: str) -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(name)

    def begun(name: str) -> Iterator[int]:
        generator = generate(name)
        next(generator)
        return generator

    kept = begun("the dataset's own")
    assert not reader._only_in([kept])
    reader.Reader(kept, 1, False).release()
    assert closed == []
    assert next(kept) == 2
    assert reader._only_in([begun("ours")])
    assert closed == ["ours"]
