"""Real libraries under `minato_async.patch()`: our loaders, and torch's batches."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data

import minato_async
from minato_async import MinatoLoader
from tests.frameworks.support import Numbers
from tests.gil_libraries import import_or_skip
from tests.semantics.support import assert_same

# Libraries that other tests have imported. They are imported anew here.
pytestmark = pytest.mark.filterwarnings(r"ignore:patch\(\) does not reach:UserWarning")


@pytest.fixture
def patched() -> Iterator[None]:
    with minato_async.patch(in_order=True, max_queue_size=32):
        yield


def loader_class() -> Any:
    """The class that a program gets now."""
    return torch.utils.data.DataLoader


def made_both_ways(make: Callable[[], list[Any]]) -> None:
    """What `make` returns is the same without a patch and with one."""
    torch.manual_seed(3)
    expected = make()
    torch.manual_seed(3)
    with minato_async.patch(in_order=True):
        assert_same(make(), expected)


def test_lightning_makes_a_patched_loader_anew(patched: None, tmp_path: Path) -> None:
    """From its class's signature, where it puts in a sampler of its own."""
    lightning = pytest.importorskip("lightning")
    seen: list[Any] = []

    class Derived(loader_class()):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def predict_step(self, batch: Any, number: int) -> Any:
            loader = self.trainer.predict_dataloaders
            seen.append((loader.max_queue_size, isinstance(loader, MinatoLoader)))
            return batch[:, 0]

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="cpu", default_root_dir=tmp_path, **quiet)
    for cls in (loader_class(), Derived):
        seen.clear()
        predictions = trainer.predict(Model(), cls(Numbers(7), batch_size=3, num_workers=2))
        assert [batch.tolist() for batch in predictions] == [[0, 1, 2], [3, 4, 5], [6]]
        assert seen == [(32, True)] * 3


def test_the_trainer_of_transformers_needs_no_mixin(patched: None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any) -> Any:
            return {"loss": (self.weight * x).mean()}

    class Points(Numbers):
        def __getitem__(self, index: int) -> Any:
            return {"x": super().__getitem__(index)}

    data = Points(8)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=1, per_device_train_batch_size=4, use_cpu=True,
        dataloader_num_workers=2, save_strategy="no", report_to=[], disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = transformers.Trainer(model=Line(), args=arguments, train_dataset=data)
    loader = trainer.get_train_dataloader()
    assert isinstance(loader.base_dataloader, MinatoLoader)
    assert loader.base_dataloader.max_queue_size == 32
    trainer.train()
    assert data.loads.count == 8
    assert data.loads.on_workers


def test_pyg_loaders_that_are_derived_meanwhile() -> None:
    data = pytest.importorskip("torch_geometric.data")
    theirs = pytest.importorskip("torch_geometric.loader.dataloader")
    graphs = [data.Data(x=torch.full((1 + i % 3, 2), float(i)), y=i) for i in range(10)]

    def batches() -> list[Any]:
        loader_module = imported_anew(theirs)
        loader = loader_module.DataLoader(graphs, batch_size=4, shuffle=True, num_workers=2)
        ours = isinstance(loader, MinatoLoader)
        assert ours == (loader_class().__module__ == "minato_async.patching")
        return [[batch.x, batch.y, batch.ptr] for _ in range(2) for batch in loader]

    made_both_ways(batches)


def test_monai_loaders_that_are_derived_meanwhile() -> None:
    theirs = import_or_skip("monai.data.dataloader")
    from monai.data import Dataset
    from monai.transforms import Compose, EnsureChannelFirstd, ScaleIntensityd

    steps = Compose(
        [EnsureChannelFirstd("image", channel_dim="no_channel"), ScaleIntensityd("image")]
    )
    volumes = [{"image": torch.arange(8.0).reshape(2, 2, 2) * (i + 1)} for i in range(6)]

    def batches() -> list[Any]:
        loader = imported_anew(theirs).DataLoader(
            Dataset(volumes, steps), num_workers=2, batch_size=4, shuffle=True
        )
        return [torch.as_tensor(batch["image"].as_tensor()) for batch in loader]

    made_both_ways(batches)


def test_torchvision_datasets(tmp_path: Path) -> None:
    transforms = import_or_skip("torchvision.transforms")
    from torchvision.datasets import FakeData

    steps = transforms.Compose([transforms.Resize(8), transforms.ToTensor()])
    data = FakeData(8, (3, 12, 12), transform=steps)
    made_both_ways(lambda: list(loader_class()(data, 3, shuffle=True, num_workers=2)))


def imported_anew(module: types.ModuleType) -> types.ModuleType:
    """As if it were imported for the first time now."""
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    fresh = types.ModuleType(module.__name__)
    fresh.__spec__, fresh.__package__ = module.__spec__, module.__package__
    fresh.__file__ = module.__file__
    module.__spec__.loader.exec_module(fresh)
    return fresh
