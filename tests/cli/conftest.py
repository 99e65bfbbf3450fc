"""Small pictures, so that the demo's tests take no longer than they must."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of four colour pictures that are easy to tell apart, of different sizes."""
    return _make_pictures(tmp_path / "pictures")


@pytest.fixture(scope="module")
def same_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for all tests of a file, which leave them as they are."""
    return _make_pictures(tmp_path_factory.mktemp("shared") / "pictures")


def _make_pictures(folder: Path) -> Path:
    folder.mkdir()
    for number, side in enumerate((64, 80, 120, 300)):
        pixels = np.zeros((side, side, 3), dtype=np.uint8)
        pixels[..., number % 3] = 60 * (number + 1)
        pixels[:: number + 2] = 20
        Image.fromarray(pixels).save(folder / f"picture{number}.png")
    return folder
