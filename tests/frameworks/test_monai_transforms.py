"""MONAI's random transforms draw into themselves and apply that to image and label alike."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from minato_async import MinatoLoader
from tests.gil_libraries import import_or_skip

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    monai_data = import_or_skip("monai.data")
    transforms = import_or_skip("monai.transforms")
    from monai.data.meta_obj import set_track_meta


@pytest.fixture(autouse=True)
def plain_tensors() -> Any:
    set_track_meta(False)
    yield
    set_track_meta(True)


SAMPLES = 2000


def volumes(n: int = 16) -> list[dict[str, torch.Tensor]]:
    made = torch.rand(n, 1, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    return [{"image": volume, "label": volume.clone()} for volume in made]


def augmentation() -> Any:
    keys = ["image", "label"]
    return transforms.Compose(
        [
            transforms.RandFlipd(keys, prob=0.5, spatial_axis=0),
            transforms.RandRotate90d(keys, prob=0.5),
            transforms.RandSpatialCropd(keys, (4, 4, 4), random_size=False),
        ]
    )


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("at", ["dataset", "transforms", "collate_fn"])
def test_image_and_label_stay_alike(executor: str, at: str) -> None:
    count = SAMPLES if executor == "thread" and at == "dataset" else SAMPLES // 10
    data = (volumes() * (count // 16 + 1))[:count]
    options: dict[str, Any] = {"num_workers": 8, "executor": executor, "in_order": False}
    augment = augmentation()
    if at == "dataset":
        dataset = monai_data.Dataset(data, augment)
        loader: MinatoLoader[Any] = MinatoLoader(dataset, 20, **options)
    elif at == "transforms":
        loader = MinatoLoader(data, 20, transforms=[augment], **options)  # type: ignore[arg-type]
    else:

        def collate(samples: list[Any]) -> Any:
            return torch.utils.data.default_collate([self(sample) for sample in samples])

        self = augment
        loader = MinatoLoader(data, 20, collate_fn=collate, **options)  # type: ignore[arg-type]
    loaded, alike = 0, 0
    for batch in loader:
        loaded += len(batch["image"])
        alike += sum(map(torch.equal, batch["image"], batch["label"]))

    assert loaded == count
    assert alike == count


def test_a_cache_dataset_gives_what_its_own_loader_gives() -> None:
    scale = transforms.ScaleIntensityd(["image", "label"])
    dataset = monai_data.CacheDataset(volumes(), scale, progress=False)
    expected = list(monai_data.DataLoader(dataset, batch_size=4, num_workers=0))
    found = list(MinatoLoader(dataset, 4, num_workers=3, executor="thread", in_order=True))

    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["image"], other["image"])


def noisy(seeded: bool) -> Any:
    """A pipeline whose transforms each draw from generators of their own, some of them nested."""
    keys = ["image", "label"]
    parts = [
        transforms.RandGaussianNoised(keys, prob=0.7, std=1.0),
        transforms.RandAffined(
            keys,
            prob=0.8,
            rotate_range=0.5,
            translate_range=2,
            scale_range=0.2,
            padding_mode="zeros",
            cache_grid=False,
        ),
        transforms.OneOf(
            [transforms.RandFlipd(keys, 0.5), transforms.RandScaleIntensityd(keys, 2)]
        ),
    ]
    if seeded:
        return transforms.Compose(parts)
    # Not composed, nobody has seeded them: they draw from one generator, that of their class.
    return parts


@pytest.mark.parametrize("where", ["dataset", "transforms"])
def test_the_same_samples_whoever_loads_them(where: str) -> None:
    data = volumes()

    def images(num_workers: int, executor: str = "thread", **options: Any) -> torch.Tensor:
        usual: dict[str, Any] = {"batch_size": 4, "seed": 3, "in_order": True}
        if where == "dataset":
            dataset: Any = monai_data.Dataset(data * 2, noisy(seeded=True))
        else:
            dataset, usual["transforms"] = data * 2, noisy(seeded=False)
        loader: MinatoLoader[Any] = MinatoLoader(
            dataset, num_workers=num_workers, executor=executor, **(usual | options)
        )
        return torch.cat([batch["image"] for batch in loader])

    first = images(0)
    # Each volume comes twice, and is another sample each time.
    assert not any(torch.equal(first[n], first[n + 16]) for n in range(16))
    for executor in ("thread", "process"):
        for num_workers in (1, 2, 4):
            assert torch.equal(images(num_workers, executor), first), (executor, num_workers)
    assert not torch.equal(images(2, seed=4), first)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_what_monai_seeds_in_the_workers_stays_so(executor: str) -> None:
    """Its own `worker_init_fn` gives each transform a generator that is seeded for the worker: what
    is drawn depends on the worker then, as with MONAI's loader."""
    dataset = monai_data.Dataset(volumes(), noisy(seeded=True))

    def loaded(**options: Any) -> torch.Tensor:
        loader: MinatoLoader[Any] = MinatoLoader(
            dataset,
            4,
            num_workers=2,
            executor=executor,
            worker_init_fn=monai_data.utils.worker_init_fn,
            assignment="batch",
            seed=3,
            **options,
        )
        return torch.cat([batch["image"] for batch in loader])

    torch.manual_seed(1)
    first = loaded()
    torch.manual_seed(1)
    assert torch.equal(loaded(), first)
    # The workers' seeds are drawn from torch's generator; the loader's own is the same.
    torch.manual_seed(2)
    assert not torch.equal(loaded(), first)
