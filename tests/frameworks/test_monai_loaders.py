"""MONAI's loader that has threads for workers: it gives torch's loader a context of multiprocessing
whose processes are threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import pytest
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from tests.gil_libraries import import_or_skip
from tests.loaders import on_each_executor

from .support import all_threads_end, made_on, our_workers

monai_data = import_or_skip("monai.data")
MonaiLoader, ThreadDataLoader = monai_data.DataLoader, monai_data.ThreadDataLoader
Dataset = monai_data.Dataset

pytestmark = on_each_executor

CASES = [{"case": index} for index in range(10)]
IN_TWOS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.fixture(params=[DataLoader, MinatoLoader], ids=["torch", "minato"])
def base(request: pytest.FixtureRequest) -> Iterator[Any]:
    """What MONAI's loaders are made on."""
    tracker: Any = resource_tracker
    tracker.ensure_running()
    with made_on(request.param, MonaiLoader):
        yield request.param
    # It comes with the locks of a spawning context, and stays until the program ends.
    tracker._resource_tracker._stop()


def cases(batches: Any) -> list[list[int]]:
    return [batch["case"].tolist() for batch in batches]


def test_threads_for_workers(base: Any) -> None:
    data = Dataset(CASES, transform=noting_its_thread)
    loader: Any = ThreadDataLoader(data, batch_size=2, num_workers=2, use_thread_workers=True)
    assert isinstance(loader, base)
    for _ in range(2):
        batches = list(loader)
        assert cases(batches) == IN_TWOS
        # Whatever the executor would be without that context, the samples are made in here.
        assert all(thread in THREADS for batch in batches for thread in batch["thread"].tolist())
    assert cases(itertools.islice(loader, 2)) == IN_TWOS[:2]


#: Where samples have been made in this process, but for the main thread.
THREADS: set[int] = set()


def noting_its_thread(sample: dict[str, int]) -> dict[str, int]:
    thread = threading.get_native_id()
    assert threading.current_thread() is not threading.main_thread()
    THREADS.add(thread)
    return {**sample, "thread": thread}


@pytest.mark.parametrize("persistent", [False, True])
def test_a_buffer_before_workers(base: Any, persistent: bool) -> None:
    loader: Any = ThreadDataLoader(
        Dataset(CASES), batch_size=2, num_workers=2, persistent_workers=persistent, repeats=2
    )
    twice = [batch for batch in IN_TWOS for _ in range(2)]
    assert [cases(loader) for _ in range(2)] == [twice] * 2
    assert our_workers() or not persistent or base is DataLoader
    del loader
    all_threads_end()


def test_asking_for_processes_as_well_is_refused() -> None:
    class Ours(ThreadDataLoader, MinatoLoader):  # type: ignore[misc]
        """Options of ours reach it by way of MONAI's."""

    with pytest.raises(ValueError, match="starts threads and not processes"):
        Ours(Dataset(CASES), num_workers=2, use_thread_workers=True, executor="process")
