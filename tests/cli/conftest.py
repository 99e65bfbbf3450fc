"""Small pictures, so that the demo's tests take no longer than they must."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of four colour pictures that are easy to tell apart, of different sizes."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, side in enumerate((64, 80, 120, 300)):
        pixels = np.zeros((side, side, 3), dtype=np.uint8)
        pixels[..., number % 3] = 60 * (number + 1)
        pixels[:: number + 2] = 20
        Image.fromarray(pixels).save(folder / f"picture{number}.png")
    return folder
