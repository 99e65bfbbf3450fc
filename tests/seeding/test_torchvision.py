"""Unmodified transforms of torchvision, version 1 and 2, follow the sample.

Importing torchvision turns the GIL on (triton): see `tests/gil_libraries.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gil_libraries import import_or_skip
from tests.seeding.support import as_sample, global_state, plain

v1 = import_or_skip("torchvision.transforms")
v2 = import_or_skip("torchvision.transforms.v2")
tv_tensors = import_or_skip("torchvision.tv_tensors")

IMAGE = (torch.arange(3 * 32 * 32) % 251).to(torch.uint8).reshape(3, 32, 32)
FLOAT = IMAGE / 255


def pil() -> Any:
    return v1.functional.to_pil_image(IMAGE)


COMMON: dict[str, Callable[[Any], Any]] = {
    "RandomCrop": lambda v: v.RandomCrop(20),
    "RandomResizedCrop": lambda v: v.RandomResizedCrop(20),
    "RandomHorizontalFlip": lambda v: v.Compose([v.RandomHorizontalFlip()] * 9 + [v.RandomCrop(9)]),
    "RandomRotation": lambda v: v.RandomRotation(90),
    "RandomAffine": lambda v: v.RandomAffine(90, (0.2, 0.2), (0.5, 1.5), 10),
    "RandomPerspective": lambda v: v.RandomPerspective(p=1),
    "ColorJitter": lambda v: v.ColorJitter(0.5, 0.5, 0.5, 0.5),
    "GaussianBlur": lambda v: v.GaussianBlur(5, (0.1, 5)),
    "ElasticTransform": lambda v: v.ElasticTransform(),
    "RandAugment": lambda v: v.Compose([v.RandAugment(), v.RandomCrop(20)]),
    "TrivialAugmentWide": lambda v: v.Compose([v.TrivialAugmentWide(), v.RandomCrop(20)]),
    "AutoAugment": lambda v: v.Compose([v.AutoAugment(), v.RandomCrop(20)]),
    "AugMix": lambda v: v.AugMix(),
    "RandomChoice": lambda v: v.Compose(
        [v.RandomChoice([v.RandomCrop(20), v.RandomRotation(80)]), v.RandomCrop(19)]
    ),
    "RandomOrder": lambda v: v.RandomOrder([v.RandomCrop(20), v.ColorJitter(0.9)]),
    "RandomApply": lambda v: v.RandomApply([v.RandomCrop(20)], p=0.9),
}


def follows(work: Callable[[], Any]) -> None:
    before = global_state()
    one = as_sample(lambda: [plain(work()) for _ in range(3)])
    assert one == as_sample(lambda: [plain(work()) for _ in range(3)], after=2)
    assert one != as_sample(lambda: [plain(work()) for _ in range(3)], 2)
    assert global_state() == before


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("kind", ["tensor", "pil", "tv_tensor"])
def test_a_transform_follows(name: str, version: Any, kind: str) -> None:
    if kind == "tv_tensor" and version is v1:
        pytest.skip("of version 2")
    transform = COMMON[name](version)
    to_tensor = v1.PILToTensor()

    def work() -> Any:
        if kind == "pil":
            return to_tensor(transform(pil()))
        image = tv_tensors.Image(IMAGE) if kind == "tv_tensor" else IMAGE
        return torch.as_tensor(transform(image)).as_subclass(torch.Tensor)

    follows(work)


@pytest.mark.parametrize(
    "transform",
    [
        v1.RandomErasing(p=1),
        v2.RandomErasing(p=1),
        v2.GaussianNoise(),
        v2.RandomZoomOut(p=1),
        v2.RandomPhotometricDistort(p=1),
        v2.ScaleJitter((20, 20)),
        v2.RandomShortestSize(list(range(10, 31))),
        v2.RandomResize(10, 30),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_a_transform_of_floats_follows(transform: Any) -> None:
    follows(lambda: transform(FLOAT.clone()))


def test_mixing_a_batch_follows() -> None:
    images, labels = FLOAT.repeat(4, 1, 1, 1), torch.arange(4)
    for mix in (v2.MixUp(num_classes=9), v2.CutMix(num_classes=9)):
        follows(lambda mix=mix: mix(images, labels)[1])


def test_boxes_and_masks_move_with_their_image() -> None:
    transform = v2.Compose([v2.RandomCrop(20), v2.RandomHorizontalFlip()])
    boxes = tv_tensors.BoundingBoxes([[1, 2, 30, 31]], format="XYXY", canvas_size=(32, 32))

    def work() -> Any:
        image, box, mask = transform(tv_tensors.Image(IMAGE), boxes, tv_tensors.Mask(IMAGE[0]))
        assert torch.equal(image[0].as_subclass(torch.Tensor), mask.as_subclass(torch.Tensor))
        return [part.as_subclass(torch.Tensor) for part in (image, box, mask)]

    follows(work)
