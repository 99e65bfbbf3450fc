"""Batches on a real GPU, bit for bit what a plain copy gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minato_async import MinatoLoader
from tests.cases.support import Made

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def sample(index: int) -> torch.Tensor:
    return torch.full((3, 64, 64), float(index))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_there_when_the_step_reads_them(executor: str, workers: int) -> None:
    loader: Any = MinatoLoader(
        Made(64, sample), 8, num_workers=workers, executor=executor, in_order=True, device="cuda"
    )
    for _ in range(2):
        sums = [batch.double().sum() for batch in loader]
        assert all(value.device.type == "cuda" for value in sums)
        wanted = [8 * (8 * n + 3.5) * 3 * 64 * 64 for n in range(8)]
        assert [value.item() for value in sums] == wanted
