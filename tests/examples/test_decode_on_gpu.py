"""The example that decodes on the device, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

torchvision = pytest.importorskip("torchvision")

from examples import decode_on_gpu  # noqa: E402


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{number}.jpg" for number in range(10)]
    for number, path in enumerate(paths):
        photo = torch.full((3, 40 + number, 50), 20 * number, dtype=torch.uint8)
        torchvision.io.write_jpeg(photo, str(path))
    return [str(path) for path in paths]


def test_it_gives_the_same_again_whatever_the_workers(files: list[str]) -> None:
    options = ["--device", "cpu", "--size", "16", "-b", "4"]
    first = decode_on_gpu.main([*files, *options, "-j", "1"])
    again = decode_on_gpu.main([*files, *options, "-j", "3"])
    assert first.tolist() == again.tolist()
    # Photos of one grey each: whatever is cropped, its mean is that of the greys.
    grey = torch.full((3,), 20 * 4.5 / 255)
    expected = (grey - torch.tensor(decode_on_gpu.MEAN)) / torch.tensor(decode_on_gpu.STD)
    assert torch.allclose(first, expected, atol=0.02)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_runs_on_a_gpu(files: list[str]) -> None:
    assert decode_on_gpu.main([*files, "--size", "16"]).device.type == "cuda"
