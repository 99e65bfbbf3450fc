"""MONAI's datasets that keep what their first transforms make: they count the transforms, address
them by position and ask for their classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from tests.gil_libraries import import_or_skip
from tests.loaders import on_each_executor

monai_data = import_or_skip("monai.data")
transforms = import_or_skip("monai.transforms")

pytestmark = on_each_executor

CASES = [{"image": torch.full((1, 2, 2), float(n))} for n in range(8)]


def pipeline(lazy: bool = False) -> Any:
    parts = [transforms.Lambdad("image", lambda image: 3 * image + 1) for _ in range(3)]
    return transforms.Compose([transforms.EnsureTyped("image"), *parts], lazy=lazy)


def values(loader: Any) -> list[float]:
    return [value for batch in loader for value in batch["image"][:, 0, 0, 0].tolist()]


@pytest.mark.parametrize("kind", ["memory", "disk", "some transforms", "none", "lazy"])
def test_what_is_kept_is_what_comes(kind: str, tmp_path: Path) -> None:
    def dataset() -> Any:
        if kind == "memory":
            return monai_data.CacheDataset(CASES, pipeline(), progress=False)
        if kind == "disk":
            return monai_data.PersistentDataset(CASES, pipeline(), tmp_path)
        if kind == "some transforms":
            return monai_data.CacheNTransDataset(CASES, pipeline(), 2, tmp_path)
        return monai_data.Dataset(CASES, pipeline(lazy=kind == "lazy"))

    loader: Any = MinatoLoader(dataset(), batch_size=2, num_workers=2, in_order=True)
    expected = [27 * n + 13 for n in range(8)]

    assert [values(loader) for _ in range(2)] == [expected] * 2
    # What was written to the disk is right for torch's loader too.
    assert values(DataLoader(dataset(), batch_size=2)) == expected
