"""`per_device` on two simulated accelerators: each batch goes to its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from minato_async import MinatoLoader
from tests.cases.support import Made
from tests.device.simulated import Simulated
from tests.device.test_prefetch import BATCHES, SIZE, expected, sample

NAMES = ["cuda:0", "cuda:1"]


@pytest.fixture(params=[(0, 0, 0), (1, 9, 9), (2, 3, 30)], ids=str)
def devices(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[torch.device, Simulated]]:
    with Simulated(*request.param) as first, Simulated(*request.param) as second:
        by_name = dict(zip(map(torch.device, NAMES), (first, second), strict=True))
        monkeypatch.setattr("minato_async.iteration.stage_work.backend_for", by_name.__getitem__)
        yield by_name
        assert first.faults == second.faults == []


@pytest.mark.parametrize("in_order", [True, False])
def test_each_device_reads_its_own_batches(
    devices: dict[torch.device, Simulated], executor: str, in_order: bool
) -> None:
    loader = MinatoLoader(
        Made(BATCHES * SIZE, sample), SIZE, num_workers=2, in_order=in_order, executor=executor
    )
    iterators = loader.per_device(NAMES)
    read: list[list[Any]] = [[], []]

    def train(number: int) -> None:
        device = devices[torch.device(NAMES[number])]
        for batch in iterators[number]:
            device.read(batch, read[number])
            del batch
        device.synchronize()

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if in_order:
        assert read == [expected()[::2], expected()[1::2]]
    else:
        values = sorted(value for one in read for batch in one for value in batch)
        assert values == sorted(value for batch in expected() for value in batch)
    assert iterators[0].stats.copied_batches == BATCHES
