"""Batches on their way to an accelerator, which is simulated: see `tests.device.simulated`."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from minato_async import MinatoLoader
from minato_async.device.prefetch import Prefetch
from minato_async.device.structure import moved, tensors_in
from tests.cases.support import Made
from tests.device.simulated import Simulated
from tests.lifetime.support import eventually, wait_for_end
from tests.semantics.support import Point, iterating

BATCHES = 12
SIZE = 4


def sample(index: int) -> torch.Tensor:
    # So large that a worker process sends it in shared memory of its own.
    return torch.full((300,), float(index), dtype=torch.float64)


def expected(factor: float = 1.0) -> list[list[float]]:
    return [
        [index * factor for index in range(first, first + SIZE) for _ in range(300)]
        for first in range(0, BATCHES * SIZE, SIZE)
    ]


def loader_on(
    device: Simulated, monkeypatch: pytest.MonkeyPatch, executor: str, **options: Any
) -> Any:
    monkeypatch.setattr("minato_async.iteration.stage_work.backend_for", lambda _: device)
    own = {"num_workers": 2, "device": "cuda", "in_order": True, "executor": executor}
    return MinatoLoader(Made(BATCHES * SIZE, sample), SIZE, **(own | options))


#: Seed, and how late the prefetch's and the consumer's stream do what they have to.
LATE = [(seed, 0, 0) for seed in range(3)] + [(0, 9, 0), (0, 0, 9), (0, 9, 9), (0, 3, 30)]


@pytest.fixture(params=LATE, ids=str)
def device(request: pytest.FixtureRequest) -> Iterator[Simulated]:
    with Simulated(*request.param) as device:
        yield device
        assert device.faults == []


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_read_what_was_loaded(
    device: Simulated, monkeypatch: pytest.MonkeyPatch, executor: str, workers: int
) -> None:
    """However late the device is, and though each batch is dropped as soon as its step is begun."""
    read: list[Any] = []
    loader = loader_on(device, monkeypatch, executor, num_workers=workers)
    for _ in range(2):
        for batch in loader:
            device.read(batch, read)
            del batch
    device.synchronize()
    assert read == expected() * 2


def test_steps_read_what_device_transform_makes(
    device: Simulated, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    def transform(batch: torch.Tensor) -> torch.Tensor:
        twice = device.kernel(lambda array: array * 2, batch)
        del batch
        return device.kernel(lambda array: array * 3, twice)

    read: list[Any] = []
    for batch in loader_on(device, monkeypatch, executor, device_transform=transform):
        device.read(batch, read)
        del batch
    device.synchronize()
    assert read == expected(6.0)


def test_any_order_exactly_once(
    device: Simulated, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    read: list[Any] = []
    for batch in loader_on(device, monkeypatch, executor, in_order=False, prefetch_factor=1):
        device.read(batch, read)
        del batch
    device.synchronize()
    assert sorted(value for batch in read for value in batch[::300]) == list(range(BATCHES * SIZE))


def test_memory_is_used_again() -> None:
    """Else nothing above would be seen."""
    with Simulated() as device:
        prefetch, addresses = Prefetch(device), set()
        for _ in range(10):
            batch = prefetch.put(sample(1)).take()
            addresses.add(batch.data_ptr())
            del batch
            prefetch.rest()
            device.synchronize()
        assert len(addresses) < 4


def test_failed_device_transform_does_not_free_what_is_being_copied(executor: str) -> None:
    def fails(batch: Any) -> Any:
        raise ArithmeticError

    with Simulated() as device:
        device.held = True
        prefetch = Prefetch(device)
        with pytest.raises(ArithmeticError):
            prefetch.put(sample(1), fails)
        device.let_go()
        prefetch.rest()
        assert device.faults == []


def test_source_is_kept_until_the_copy_is_made_and_no_longer() -> None:
    with Simulated() as device:
        device.held = True
        prefetch, source = Prefetch(device), sample(1)
        on_device = prefetch.put({"images": source})
        alive = weakref.ref(source)
        del source
        gc.collect()
        assert alive() is not None
        device.let_go()
        prefetch.rest()
        gc.collect()
        assert alive() is None
        assert on_device.nbytes == 2400
        assert device.faults == []


def test_source_is_dropped_while_the_stage_idles(
    monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """Shared memory, or pinned, is not kept until there is another batch."""
    sources: list[Any] = []

    class Noting(Simulated):
        def copy(self, tensor: torch.Tensor) -> torch.Tensor:
            sources.append(weakref.ref(tensor))
            return super().copy(tensor)

    with Noting() as device:
        with iterating(loader_on(device, monkeypatch, executor, prefetch_factor=1)) as iterator:
            next(iterator)
            assert eventually(lambda: len(sources) == 2)
            assert eventually(lambda: all(source() is None for source in sources))
        assert device.faults == []


def test_closed_during_a_copy(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    """The copy is waited for, for its source is there until then; and nothing else."""
    with Simulated() as device:
        device.held = True
        iterator = iter(loader_on(device, monkeypatch, executor))
        assert eventually(lambda: iterator._epoch.stage.nbytes > 0)
        stage = next(t for t in threading.enumerate() if t.name == "minato-stage")
        iterator._engine.close_soon()
        assert eventually(lambda: iterator._engine._workers_ended.is_set())
        assert not iterator._engine.join(0.3)
        assert stage.is_alive()
        device.let_go()
        wait_for_end([stage])
        assert device.faults == []


def test_stats(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    with Simulated() as device:
        device.held = True
        # One at a time: a later batch that is put first would be waited for, with the device held.
        loader = loader_on(device, monkeypatch, executor, prefetch_factor=1)
        with iterating(loader) as iterator:
            next(iterator)
            first = iterator.stats
            assert (first.copied_batches, first.copied_bytes) == (1, SIZE * 2400)
            assert (first.copy_waits, first.copy_seconds) == (1, 0.0)
            device.let_go()
            for _ in range(BATCHES - 1):
                assert eventually(lambda: iterator._epoch.delivery.next_ready)
                device.synchronize()
                next(iterator)
            device.synchronize()
            stats = iterator.stats
        assert (stats.copied_batches, stats.copied_bytes) == (BATCHES, BATCHES * SIZE * 2400)
        assert stats.copy_waits == 1
        assert stats.copy_seconds > 0
        assert stats.copy_rate == stats.copied_bytes / stats.copy_seconds
        assert stats.copy_waited > 0
        assert 0 <= stats.copy_hidden < 1


# Structures


class Own:
    """Knows itself how it is moved."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def to(self, device: Any, non_blocking: bool = False) -> Own:
        return Own((str(device), non_blocking, self.part))


class Old(Own):
    def to(self, device: Any) -> Own:  # type: ignore[override]
        return Own((str(device), None, self.part))


def plus_one(value: Any) -> Any:
    return moved(value, lambda tensor: tensor + 1, torch.device("cpu"))


def test_structures_are_kept() -> None:
    one, two = torch.ones(1), torch.full((1,), 2.0)
    value = {"a": [one, "text", 3], "b": (one, b"raw"), "c": Point(one, None), "d": range(3)}
    assert plus_one(value) == {
        "a": [two, "text", 3],
        "b": (two, b"raw"),
        "c": Point(two, None),
        "d": range(3),
    }
    assert type(plus_one(value)["c"]) is Point
    assert plus_one(Own(one)).part == ("cpu", True, one)
    assert plus_one(Old(one)).part == ("cpu", None, one)


def test_all_tensors_are_found() -> None:
    parts = [torch.full((1,), float(n)) for n in range(5)]
    value = {"a": [parts[0]], "b": Point(parts[1], "x"), "c": Own({"d": Own(parts[2])})}
    found = [float(tensor) for tensor in tensors_in([value, (parts[3],), parts[4], 3, None])]
    assert found == [0, 1, 2, 3, 4]
