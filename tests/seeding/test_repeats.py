"""Each draw of an index is another sample: counted for whatever has one seed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from minato_async import MinatoLoader


class Draws:
    def __getitem__(self, index: Any) -> float:
        return random.random()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "keys",
    [
        [3, 3],
        ["a", "a"],
        [torch.tensor(3), torch.tensor(3), 3],
        [np.array(3), np.int64(3), 3],
        [(torch.tensor(3), "a"), (torch.tensor(3), "a")],
        [[3, 4], [3, 4], (3, 4)],
        [object()] * 2,
    ],
    ids=["int", "str", "tensor", "numpy", "tuple", "list", "object"],
)
def test_an_index_that_comes_twice_gives_two_samples(keys: list[Any], num_workers: int) -> None:
    def drawn() -> list[float]:
        loader = MinatoLoader(
            Draws(),  # type: ignore[arg-type]
            batch_size=None,
            sampler=keys,
            num_workers=num_workers,
            seed=1,
            in_order=True,
        )
        return list(loader)

    assert len(set(drawn())) == len(keys)
    assert drawn() == drawn()
