"""Coroutines as consumers, and loops that run beside plain ones."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from minato_async import MinatoLoader
from tests.loaders import LoaderKind

from .support import (
    PATIENCE,
    Counting,
    Failing,
    Holding,
    InThread,
    iterating,
    lists,
    once_each,
    samples_in,
)


async def collect(batches: Any) -> list[Any]:
    return [batch async for batch in batches]


class TestAsyncFor:
    async def test_batches_are_those_of_a_plain_loop(self, our_kind: LoaderKind) -> None:
        loader = our_kind(range(23), 4)
        for _ in range(2):
            found = await collect(loader)
            assert samples_in(found) == once_each(range(23))
            if our_kind.in_order:
                assert lists(found) == lists(loader)

    async def test_break_and_again(self, our_kind: LoaderKind) -> None:
        loader: Any = our_kind(range(50), 4)
        async for batch in loader:
            assert len(batch) == 4
            break
        gc.collect()
        assert samples_in(await collect(loader)) == once_each(range(50))

    async def test_nothing_after_the_end(self, our_kind: LoaderKind) -> None:
        with iterating(our_kind(range(4))) as iterator:
            found: Any = iterator
            assert samples_in(await collect(found)) == once_each(range(4))
            for _ in range(2):
                with pytest.raises(StopAsyncIteration):
                    await anext(found)

    async def test_empty_dataset(self, our_kind: LoaderKind) -> None:
        assert await collect(our_kind([])) == []

    async def test_both_ways_of_asking_take_from_the_same_batches(
        self, our_kind: LoaderKind
    ) -> None:
        with iterating(our_kind(range(10))) as iterator:
            asked: Any = iterator
            found = [next(asked), await anext(asked), next(asked), await anext(asked)]
            found += [*await collect(asked), *asked]
        assert samples_in(found) == once_each(range(10))

    async def test_errors(self, our_kind: LoaderKind) -> None:
        loader = our_kind(Failing(6, {2: lambda: KeyError("x")}), 1, in_order=True)
        with iterating(loader) as iterator:
            asked: Any = iterator
            found = [await anext(asked), await anext(asked)]
            with pytest.raises(KeyError) as caught:
                await anext(asked)
            assert caught.value.args == ("x",)
            assert "index 2" in "".join(caught.value.__notes__)
            found += await collect(asked)
        assert samples_in(found) == once_each([0, 1, 3, 4, 5])

    async def test_sampler_that_fails(self, our_kind: LoaderKind) -> None:
        def indices() -> Any:
            yield from range(5)
            raise KeyError("sampler")

        with iterating(our_kind(range(5), sampler=indices())) as iterator:
            asked: Any = iterator
            found = [await anext(asked) for _ in range(5)]
            with pytest.raises(KeyError, match="sampler"):
                await anext(asked)
        assert samples_in(found) == once_each(range(5))

    async def test_the_loop_runs_on_while_a_batch_is_awaited(self) -> None:
        data = Holding(1, held=[0])
        iterator = iter(MinatoLoader(data, num_workers=1))
        batch = asyncio.ensure_future(anext(iterator))
        # It is this loop that lets the sample go: had it been blocked, nobody would.
        await asyncio.to_thread(data.wait_for_calls, [0])
        data.release()
        assert (await batch).tolist() == [0]
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)


class TestCancelling:
    @pytest.fixture(autouse=True)
    async def no_callback_fails(self) -> AsyncIterator[None]:
        """A bell that rings for a waiter which is gone must not disturb the loop."""
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: failures.append(about))
        yield
        assert failures == []

    @pytest.mark.parametrize("in_order", [True, False])
    async def test_loses_no_batch(self, in_order: bool) -> None:
        """Cancelled at every moment: before it waits, while it waits, when the news is on its
        way."""
        data = Counting(300)
        iterator = iter(MinatoLoader(data, num_workers=2, in_order=in_order))
        found: list[torch.Tensor] = []
        turns = 0
        while len(found) < 300:
            asking = asyncio.ensure_future(anext(iterator))
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            asking.cancel()
            try:
                found.append(await asking)
            except asyncio.CancelledError:
                turns += 1
                if turns % 3 == 0:
                    found.append(await anext(iterator))
        assert turns > 0
        assert samples_in(found) == once_each(range(300))
        assert data.calls == once_each(range(300))
        assert await collect(iterator) == []

    async def test_while_it_waits(self) -> None:
        data = Holding(2, held=[0])
        iterator = iter(MinatoLoader(data, num_workers=2, in_order=True))
        asking = asyncio.ensure_future(anext(iterator))
        await asyncio.to_thread(data.wait_for_calls, [0, 1])
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        data.release()
        assert lists(await collect(iterator)) == [[0], [1]]

    async def test_when_the_batch_is_there_but_the_task_has_not_run(self) -> None:
        """The bell has rung for a waiter that is then cancelled: the batch is for the next."""
        data = Holding(1, held=[0])
        iterator = iter(MinatoLoader(data, num_workers=1))
        asking = asyncio.ensure_future(anext(iterator))
        await asyncio.to_thread(data.wait_for_calls, [0])
        other = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0)
        data.release()
        # Block this loop until the batch is ready, so that neither task can have run since.
        while not iterator._epoch.delivery._queue[0].ready:  # type: ignore[attr-defined]
            pass
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await other).tolist() == [0]
        assert await collect(iterator) == []

    @pytest.mark.parametrize("timeout", [0, PATIENCE])
    async def test_that_comes_with_the_batch_is_heeded(self, timeout: float) -> None:
        data = Holding(1, held=[0])
        iterator = iter(MinatoLoader(data, num_workers=1, timeout=timeout))
        asking = asyncio.ensure_future(anext(iterator))
        await asyncio.to_thread(data.wait_for_calls, [0])
        data.release()
        # Block this loop until the bell has rung, which it hears of first and then of the
        # cancellation, before the task runs.
        delivery, due = iterator._epoch.delivery, iterator._engine._due._due  # type: ignore[attr-defined]
        while delivery._waiting or due:
            pass
        asyncio.get_running_loop().call_soon(asking.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert lists(await collect(iterator)) == [[0]]

    async def test_by_a_timeout(self) -> None:
        data = Holding(3, held=[1])
        iterator = iter(MinatoLoader(data, num_workers=1, in_order=True))
        assert (await anext(iterator)).tolist() == [0]
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(iterator), 0.01)
        data.release()
        assert lists(await collect(iterator)) == [[1], [2]]


class TestSeveralConsumers:
    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("max_queue_size", [None, 3])
    async def test_tasks_on_one_iterator(self, in_order: bool, max_queue_size: int | None) -> None:
        data = Counting(300)
        iterator = iter(
            MinatoLoader(data, 2, num_workers=3, in_order=in_order, max_queue_size=max_queue_size)
        )
        parts = await asyncio.gather(*(collect(iterator) for _ in range(5)))
        assert samples_in(batch for part in parts for batch in part) == once_each(range(300))
        assert data.calls == once_each(range(300))

    async def test_tasks_and_threads_on_one_iterator(self) -> None:
        data = Counting(600)
        iterator = iter(MinatoLoader(data, 2, num_workers=2))
        parts = await asyncio.gather(
            collect(iterator),
            asyncio.to_thread(list, iterator),
            asyncio.to_thread(asyncio.run, collect(iterator)),
            collect(iterator),
        )
        assert samples_in(batch for part in parts for batch in part) == once_each(range(600))

    @pytest.mark.parametrize("prefetch_factor", [1, 5])
    async def test_every_task_sees_the_end(self, prefetch_factor: int) -> None:
        for _ in range(20):
            iterator = iter(MinatoLoader(range(2), num_workers=1, prefetch_factor=prefetch_factor))
            parts = await asyncio.gather(*(collect(iterator) for _ in range(4)))
            assert samples_in(batch for part in parts for batch in part) == once_each(range(2))

    async def test_epochs_side_by_side(self) -> None:
        loader = MinatoLoader(range(40), 4, num_workers=2)
        parts = await asyncio.gather(*(collect(loader) for _ in range(3)))
        for part in parts:
            assert samples_in(part) == once_each(range(40))


class TestPlainLoops:
    async def test_inside_a_running_loop(self, our_kind: LoaderKind) -> None:
        """A training step that blocks the user's loop must not stop the loading."""
        assert samples_in(our_kind(range(30), 4)) == once_each(range(30))

    async def test_in_threads_of_a_running_loop(self, our_kind: LoaderKind) -> None:
        loader = our_kind(range(30), 4)
        parts = await asyncio.gather(*(asyncio.to_thread(list, loader) for _ in range(3)))
        for part in parts:
            assert samples_in(part) == once_each(range(30))

    def test_in_a_thread_without_a_loop(self, our_kind: LoaderKind) -> None:
        consumer = InThread(lambda: lists(our_kind(range(9), 4, in_order=True)))
        assert consumer.result() == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]

    def test_begun_in_one_thread_and_ended_in_another(self, our_kind: LoaderKind) -> None:
        iterator = InThread(lambda: iter(our_kind(range(9), 4))).result()
        first = InThread(lambda: next(iterator)).result()
        assert samples_in([first, *iterator]) == once_each(range(9))


class TestLoopsThatEnd:
    def test_one_iterator_in_two_loops(self) -> None:
        """Each `asyncio.run` has a loop of its own, and the first is closed with a task of its
        waiting."""
        data = Holding(4, held=[1])
        iterator = iter(MinatoLoader(data, num_workers=2, in_order=True))

        async def first() -> Any:
            found = await anext(iterator)
            waiting = asyncio.ensure_future(anext(iterator))
            await asyncio.to_thread(data.wait_for_calls, [1])
            assert not waiting.done()
            return found

        found = [asyncio.run(first())]
        data.release()
        found += asyncio.run(collect(iterator))
        assert lists(found) == [[0], [1], [2], [3]]

    def test_persistent_workers_serve_many_loops(self) -> None:
        loader = MinatoLoader(range(8), 2, num_workers=2, persistent_workers=True)
        with iterating(loader):
            for _ in range(5):
                assert samples_in(asyncio.run(collect(loader))) == once_each(range(8))

    async def test_async_waiter_is_let_go_by_close(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("minato_async.engine.engine.CLOSE_GRACE", 0)
        data = Holding(1, held=[0])
        iterator: Any = iter(MinatoLoader(data, num_workers=1))
        asking = asyncio.ensure_future(anext(iterator))
        await asyncio.to_thread(data.wait_for_calls, [0])
        iterator.close()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(asking, PATIENCE)
        data.release()
