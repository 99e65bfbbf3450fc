"""What libraries do with torch's iterators behind the scenes, on torch's and on ours."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import profiler
from torch.utils.data import IterableDataset

from minato_async import MinatoLoader
from minato_async.replicas.loader_method import collate_fn_for_workers
from tests.lifetime.support import (
    all_ours_end,
    child_processes,
    eventually,
    eventually_collected,
    our_threads,
)
from tests.loaders import PROCESSES, SERIAL, TORCH, TORCH_WORKERS, WORKERS, LoaderKind

from .support import PATIENCE, Holding, InThread, iterating, lists

WITH_WORKERS = (TORCH_WORKERS, WORKERS, PROCESSES)
OURS_WITH_WORKERS = (WORKERS, PROCESSES)
EIGHT: Any = range(8)
#: Of `EIGHT`, in order, two to a batch.
BATCHES = [[0, 1], [2, 3], [4, 5], [6, 7]]


def each(*kinds: LoaderKind) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name)


class Stream(IterableDataset[int]):
    """0 to 7, from the first worker alone."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(0 if info is not None and info.id else 8))


class Wrapped:
    """As PyG's `DataLoaderIterator`: works on batches in the consumer's thread."""

    def __init__(self, iterator: Any) -> None:
        self.inner = iterator

    def __iter__(self) -> Wrapped:
        return self

    def __next__(self) -> Any:
        return next(self.inner) + 100

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.inner._reset(loader, first_iter)


def wrapping(kind: LoaderKind, data: Any, **options: Any) -> Any:
    """A loader of `kind` whose iterators are wrapped."""

    class Wrapping(kind.cls):  # type: ignore[misc, name-defined]
        def _get_iterator(self) -> Any:
            return Wrapped(super()._get_iterator())

    own: dict[str, Any] = {"num_workers": kind.num_workers, "in_order": True}
    if kind.is_ours:
        own["executor"] = kind.executor
    return Wrapping(data, 2, **(own | options))


PLUS_100 = [[100 + n for n in batch] for batch in BATCHES]


class TestWrappedIterators:
    @each(*WITH_WORKERS)
    @pytest.mark.parametrize("data", [EIGHT, Stream()], ids=["map", "iterable"])
    def test_every_epoch_of_persistent_workers(self, data: Any, kind: LoaderKind) -> None:
        loader = wrapping(kind, data, persistent_workers=True)
        assert lists(loader) == PLUS_100
        wrapper = iter(loader)
        assert next(wrapper).tolist() == PLUS_100[0]
        # In mid-epoch it begins from the start.
        assert lists(loader) == PLUS_100
        assert iter(loader) is wrapper
        wrapper.inner._shutdown_workers()

    @each(*OURS_WITH_WORKERS)
    def test_workers_are_the_same_and_stats_are_those_of_the_epoch(self, kind: LoaderKind) -> None:
        loader = wrapping(kind, EIGHT, persistent_workers=True)
        assert lists(loader) == PLUS_100
        engine = loader._iterator.inner._engine
        assert lists(itertools.islice(loader, 3)) == PLUS_100[:3]
        assert loader._iterator.inner._engine is engine
        assert loader.stats.delivered == 3

    @each(*WITH_WORKERS)
    def test_shuffled_as_with_torch(self, kind: LoaderKind) -> None:
        def epochs(of: LoaderKind) -> list[Any]:
            torch.manual_seed(4)
            loader = wrapping(of, EIGHT, shuffle=True, persistent_workers=True)
            found = [lists(loader) for _ in range(3)]
            loader._iterator.inner._shutdown_workers()
            return [*found, torch.rand(()).item()]

        assert epochs(kind) == epochs(TORCH_WORKERS)

    @each(*OURS_WITH_WORKERS)
    @pytest.mark.parametrize("data", [EIGHT, Stream()], ids=["map", "iterable"])
    def test_workers_that_were_shut_down_are_replaced(self, data: Any, kind: LoaderKind) -> None:
        loader = wrapping(kind, data, persistent_workers=True)
        for _ in range(2):
            next(iter(loader))
            loader._iterator.inner._shutdown_workers()
            assert lists(loader) == PLUS_100


class TestReset:
    """Called by hand, where the loader itself does not."""

    @each(TORCH, *WITH_WORKERS, SERIAL)
    def test_in_mid_epoch(self, kind: LoaderKind) -> None:
        loader = kind(EIGHT, 2)
        iterator: Any
        with iterating(loader) as iterator:
            assert lists(itertools.islice(iterator, 2)) == BATCHES[:2]
            iterator._reset(loader)
            assert iterator._num_yielded == 0
            assert lists(iterator) == BATCHES

    @each(SERIAL, *OURS_WITH_WORKERS)
    @pytest.mark.parametrize("data", [EIGHT, Stream()], ids=["map", "iterable"])
    def test_after_the_end_and_after_closing(self, data: Any, kind: LoaderKind) -> None:
        loader = kind(data, 2)
        iterator: Any
        with iterating(loader) as iterator:
            for _ in range(2):
                assert lists(iterator) == BATCHES
                assert list(iterator) == []
                iterator._reset(loader)
            iterator.close()
            iterator._reset(loader, False)
            assert lists(iterator) == BATCHES

    @each(SERIAL, *OURS_WITH_WORKERS)
    def test_is_an_epoch_of_its_own_to_random_samples(self, kind: LoaderKind) -> None:
        def epochs(again: Callable[[Any, Any], Any]) -> list[Any]:
            loader = kind(EIGHT, 2, seed=1, collate_fn=with_noise)
            iterator = iter(loader)
            first = lists(iterator)
            return [first, lists(again(loader, iterator))]

        def reset(loader: Any, iterator: Any) -> Any:
            iterator._reset(loader)
            return iterator

        first, second = epochs(reset)
        assert [first, second] == epochs(lambda loader, _: iter(loader))
        assert first != second


class TestLoaderThatCollates:
    """As PyG's loaders: `collate_fn` is a method of the loader itself."""

    def loader(self, kind: LoaderKind, data: Any, **options: Any) -> Any:
        class Collates(kind.cls):  # type: ignore[misc, name-defined]
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, collate_fn=self.added, **options)

            def added(self, samples: list[int]) -> torch.Tensor:
                return torch.tensor(samples) + 100

        own: dict[str, Any] = {"num_workers": kind.num_workers, "in_order": True}
        if kind.is_ours:
            own["executor"] = kind.executor
        return Collates(data, 2, **(own | options))

    @each(TORCH, SERIAL, *WITH_WORKERS)
    @pytest.mark.parametrize("data", [EIGHT, Stream()], ids=["map", "iterable"])
    def test_iterator_goes_on_without_the_loaders_name(self, data: Any, kind: LoaderKind) -> None:
        iterator = iter(self.loader(kind, data))
        gc.collect()
        assert lists(iterator) == PLUS_100

    @each(*OURS_WITH_WORKERS)
    @pytest.mark.parametrize("data", [EIGHT, Stream()], ids=["map", "iterable"])
    def test_workers_end_with_the_loader(self, data: Any, kind: LoaderKind) -> None:
        for taken in (1, 5):
            loader = self.loader(kind, data, persistent_workers=True)
            assert lists(itertools.islice(loader, taken)) == PLUS_100[:taken]
            assert our_threads()
            del loader
            assert eventually_collected(lambda: not our_threads())

    def test_it_can_be_pickled_for_another_process(self) -> None:
        loader = AddsItsSize(EIGHT, 2)
        loader.collate_fn = loader.plus_size
        for_workers = collate_fn_for_workers(loader)
        copied = pickle.loads(pickle.dumps(for_workers))
        assert copied([1, 2]) == for_workers([1, 2]) == [3, 4]
        del loader
        gc.collect()
        with pytest.raises(RuntimeError, match="loader is gone"):
            for_workers([1, 2])


class AddsItsSize(MinatoLoader[Any]):
    def plus_size(self, samples: list[int]) -> list[int]:
        assert self.batch_size is not None
        return [sample + self.batch_size for sample in samples]


def with_noise(samples: list[int]) -> torch.Tensor:
    return torch.tensor(samples) + torch.rand(())


def end_as_ultralytics_does(iterator: Any) -> None:
    if not hasattr(iterator, "_workers"):
        return
    for worker in iterator._workers:
        if worker.is_alive():
            worker.terminate()
    iterator._shutdown_workers()


class TestWorkers:
    @each(TORCH, SERIAL, *WITH_WORKERS)
    @pytest.mark.parametrize("persistent", [False, True])
    @pytest.mark.parametrize("taken", [1, 5])
    def test_library_ends_them(self, taken: int, persistent: bool, kind: LoaderKind) -> None:
        before = child_processes()
        loader = kind(EIGHT, 2, persistent_workers=persistent and kind.num_workers > 0)
        iterator = iter(loader)
        assert lists(itertools.islice(iterator, taken)) == BATCHES[:taken]
        assert hasattr(iterator, "_workers") == (kind.num_workers > 0)
        end_as_ultralytics_does(iterator)
        assert not our_threads()
        assert eventually(lambda: child_processes() == before)
        # Once more, as a finalizer does after a program has done it.
        end_as_ultralytics_does(iterator)

    @each(*WITH_WORKERS)
    def test_are_as_many_as_asked_for_and_end(self, kind: LoaderKind) -> None:
        with iterating(kind(EIGHT, 2)) as iterator:
            workers: Any = iterator._workers  # type: ignore[attr-defined]
            assert len(workers) == kind.num_workers
            assert len({worker.name for worker in workers}) == kind.num_workers
            assert all(worker.is_alive() for worker in workers)
        for worker in workers:
            worker.join()
            worker.join(timeout=0)
            assert not worker.is_alive()

    def test_pid_is_that_of_the_process(self) -> None:
        loader: Any = PROCESSES(EIGHT, 1, collate_fn=pid_of_worker)
        with iterating(loader) as iterator:
            workers: Any = iterator._workers  # type: ignore[attr-defined]
            assert eventually(lambda: all(worker.pid for worker in workers))
            pids = {worker.pid for worker in workers}
            assert len(pids) == 2
            assert pids >= set(iterator)
        assert eventually(lambda: not any(worker.pid for worker in workers))

    def test_no_thread_has_a_pid_that_could_be_killed(self) -> None:
        with iterating(WORKERS(EIGHT, 1)) as iterator:
            next(iterator)
            assert [worker.pid for worker in iterator._workers] == [None] * 3  # type: ignore[attr-defined]

    @each(*OURS_WITH_WORKERS)
    def test_terminated_in_mid_epoch_it_is_an_error_and_no_short_epoch(
        self, kind: LoaderKind
    ) -> None:
        loader: Any = kind(range(100), 2, persistent_workers=True)
        with iterating(loader) as iterator:
            next(iterator)
            iterator._workers[0].terminate()  # type: ignore[attr-defined]
            with pytest.raises(RuntimeError) as caught:
                list(iterator)
            assert "terminated" in str(caught.value.__cause__)
            assert len(lists(loader)) == 50

    def test_terminating_lets_a_waiting_consumer_go(self) -> None:
        data = Holding(4, held=range(4))
        iterator: Any = iter(MinatoLoader(data, 2, num_workers=2))
        consumer = InThread(lambda: list(iterator))
        data.wait_for_calls([0, 1])
        iterator._workers[0].kill()
        with pytest.raises(RuntimeError, match="engine has failed"):
            consumer.result()
        data.release()
        iterator.close()

    def test_terminating_waits_for_no_lock(self) -> None:
        """It is called by finalizers, in whatever thread and in the middle of whatever it does."""
        with iterating(WORKERS(EIGHT, 2)) as iterator:
            engine = iterator._engine  # type: ignore[attr-defined]
            held, done = threading.Event(), threading.Event()

            def hold() -> None:
                with engine._lock:
                    held.set()
                    assert done.wait(PATIENCE), "terminate() waits for the engine's lock"

            holder = InThread(hold)
            assert held.wait(PATIENCE)
            iterator._workers[0].terminate()  # type: ignore[attr-defined]
            done.set()
            holder.result()
        all_ours_end()


def pid_of_worker(samples: list[int]) -> int:
    return os.getpid()


@each(SERIAL, *OURS_WITH_WORKERS)
@pytest.mark.parametrize("data", [EIGHT, Stream()], ids=["map", "iterable"])
def test_attributes_of_iterators_mean_what_they_mean_to_torch(data: Any, kind: LoaderKind) -> None:
    def seen(of: LoaderKind) -> dict[str, Any]:
        options: dict[str, Any] = {"num_workers": kind.num_workers}
        loader = of(data, 2, generator=torch.Generator().manual_seed(3), **options)
        iterator: Any
        with iterating(loader) as iterator:
            for _ in range(3):
                next(iterator)
            assert iter(iterator._sampler_iter) is iterator._sampler_iter
            assert type(iterator)._next_data
            names = ("_dataset_kind", "_num_workers", "_persistent_workers", "_base_seed")
            names += ("_num_yielded", "_IterableDataset_len_called")
            prefix, _, rest = iterator._profile_name.partition("#")
            assert rest == f"{type(iterator).__name__}.__next__"
            return {
                "profile": prefix,
                "sampler": type(iterator._index_sampler),
                **{name: getattr(iterator, name) for name in names},
            }

    assert seen(kind) == seen(TORCH)


class Bucket:
    """A batch sampler that is asked for nothing but its batches."""

    def __iter__(self) -> Iterator[list[int]]:
        yield [0, 1]
        yield [2, 3, 4]


#: What attributes of other people's samplers are.
STRANGE: dict[str, Any] = {
    "list": [2, 3],
    "empty": [],
    "dict": {0: 2},
    "str": "max",
    "tensor": torch.tensor([2, 3]),
    "none": None,
    "float": 2.5,
    "zero": 0,
    "negative": -1,
    "huge": 10**30,
    "bool": True,
    "callable": lambda epoch: 2,
    "type": int,
}


def raising(error: BaseException) -> Any:
    def get(self: Any) -> Any:
        raise error

    return get


ERRORS = (
    RuntimeError("depends on the bucket"),
    AttributeError("not yet"),
    TypeError("no"),
    OverflowError(),
    SystemExit(3),
)
NAMES = ("batch_size", "drop_last", "sampler", "generator", "shuffle", "data_source", "num_samples")
LOADS = [[0, 1], [2, 3, 4]]


@each(TORCH_WORKERS, SERIAL, *OURS_WITH_WORKERS)
@pytest.mark.parametrize("in_order", [True, False])
class TestStrangeSamplers:
    def load(self, kind: LoaderKind, in_order: bool, sampler: Any, **options: Any) -> Any:
        loader = kind(EIGHT, batch_sampler=sampler, in_order=in_order, **options)
        return sorted(lists(loader))

    def test_attributes_of_any_value(self, in_order: bool, kind: LoaderKind) -> None:
        # Processes take their time to start: all strange things at once there.
        for values in [STRANGE] if kind is WORKERS or kind is SERIAL else [{"list": [2]}]:
            for value in values.values():
                sampler = Bucket()
                for name in NAMES:
                    setattr(sampler, name, value)
                assert self.load(kind, in_order, sampler) == LOADS

    def test_attributes_and_lengths_that_raise(self, in_order: bool, kind: LoaderKind) -> None:
        for error in ERRORS if kind is WORKERS or kind is SERIAL else ERRORS[:1]:
            properties = {name: property(raising(error)) for name in NAMES}
            raises = type("Raises", (Bucket,), {**properties, "__len__": raising(error)})
            assert self.load(kind, in_order, raises()) == LOADS

    def test_nothing_else_is_asked_of_them(self, in_order: bool, kind: LoaderKind) -> None:
        touched: list[str] = []

        class Shy(Bucket):
            def __getattribute__(self, name: str) -> Any:
                touched.append(name)
                return super().__getattribute__(name)

            def __len__(self) -> int:
                touched.append("__len__")
                return 2

        def load() -> Any:
            loader = kind(EIGHT, batch_sampler=Shy(), in_order=in_order)
            return lists(loader), lists(kind(EIGHT, 3, sampler=Flat(), in_order=in_order))

        class Flat(Shy):
            def __iter__(self) -> Any:
                return iter([1, 2, 3, 4])

        found = [sorted(batches) for batches in load()]
        assert found[0] == LOADS
        assert sorted(itertools.chain(*found[1])) == [1, 2, 3, 4]
        assert set(touched) <= {"__class__"}, touched

    def test_samplers_of_single_indices(self, in_order: bool, kind: LoaderKind) -> None:
        members = {name: property(raising(RuntimeError())) for name in NAMES}
        members |= {"__len__": raising(OverflowError()), "__iter__": lambda self: iter([5, 1, 3])}
        sampler = type("Single", (), members)()
        for batch_size, batches in ((2, [[5, 1], [3]]), (None, [5, 1, 3])):
            loader = kind(EIGHT, batch_size, sampler=sampler, in_order=in_order)
            found = [torch.as_tensor(batch).tolist() for batch in loader]
            assert found == batches or not in_order
            assert len(found) == len(batches)

    def test_length_that_draws_random_numbers(self, in_order: bool, kind: LoaderKind) -> None:
        class Drawn:
            def __iter__(self) -> Iterator[list[int]]:
                for _ in range(3):
                    yield torch.randperm(8)[:2].tolist()

            def __len__(self) -> int:
                return sum(1 for _ in self)

        def batches(of: LoaderKind) -> Any:
            torch.manual_seed(5)
            return self.load(of, in_order, Drawn())

        assert batches(kind) == batches(TORCH if kind is SERIAL else TORCH_WORKERS)


def ranges(events: Any) -> list[str]:
    names = [event.name for event in events]
    return [name for name in names if name.startswith("enumerate(DataLoader)#")]


class TestProfiler:
    @each(TORCH, SERIAL, *WITH_WORKERS)
    @pytest.mark.parametrize("data", [EIGHT, Stream()], ids=["map", "iterable"])
    def test_time_in_next_has_a_name(self, data: Any, kind: LoaderKind) -> None:
        with iterating(kind(data, 2)) as iterator, profiler.profile() as profile:
            found = [batch.tolist() for batch in iterator]
        assert found == BATCHES
        name = f"enumerate(DataLoader)#{type(iterator).__name__}.__next__"
        # The end, too, is waited for in there.
        assert ranges(profile.function_events) == [name] * 5

    @each(SERIAL, *OURS_WITH_WORKERS)
    async def test_time_in_anext_too_in_several_tasks(self, kind: LoaderKind) -> None:
        async def epoch() -> Any:
            return [batch.tolist() async for batch in kind(EIGHT, 2)]  # type: ignore[attr-defined]

        with profiler.profile() as profile:
            found = await asyncio.gather(epoch(), epoch())
            torch.ones(2).sum()
        assert found == [BATCHES, BATCHES]
        assert len(ranges(profile.function_events)) == 10
        assert "aten::sum" in [event.name for event in profile.function_events]

    @each(SERIAL, *OURS_WITH_WORKERS)
    async def test_no_range_is_made_for_nobody(
        self, kind: LoaderKind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(profiler, "record_function", raising(AssertionError()))
        loader: Any = kind(EIGHT, 2)
        assert lists(loader) == BATCHES
        assert [batch.tolist() async for batch in loader] == BATCHES

    @each(TORCH, SERIAL, *OURS_WITH_WORKERS)
    def test_errors_come_through(self, kind: LoaderKind) -> None:
        loader = kind(EIGHT, 2, collate_fn=failing)
        with iterating(loader) as iterator, profiler.profile() as profile:
            with pytest.raises(ZeroDivisionError):
                next(iterator)
            assert next(iterator) == [2, 3]
        assert len(ranges(profile.function_events)) == 2


def failing(samples: list[int]) -> list[int]:
    if 0 in samples:
        raise ZeroDivisionError
    return samples
