"""Runs Lightning on two ranks (DDP over gloo), with torch's loader and with ours.

Each rank writes what it was given into the folder that is the program's argument.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from tests.frameworks.support import Numbers

LENGTH = 18
LOADERS: dict[str, tuple[type[DataLoader[Any]], dict[str, Any]]] = {
    "torch": (DataLoader, {}),
    "ours": (
        MinatoLoader,
        {"num_workers": 2, "executor": "thread", "in_order": True, "max_queue_size": 8},
    ),
    "ours, persistent": (
        MinatoLoader,
        {"num_workers": 2, "executor": "thread", "in_order": True, "persistent_workers": True},
    ),
    "ours, processes": (
        MinatoLoader,
        {"num_workers": 2, "executor": "process", "in_order": True, "persistent_workers": True},
    ),
    "ours, any order": (MinatoLoader, {"num_workers": 2, "executor": "thread"}),
}


def make(name: str) -> DataLoader[Any]:
    cls, options = LOADERS[name]
    return cls(Numbers(LENGTH), batch_size=4, shuffle=True, **options)


def describe(loader: Any, epochs: list[list[list[float]]]) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "class": type(loader).__name__,
        "sampler": type(loader.sampler).__name__,
        "in_order": loader.in_order,
        "max_queue_size": getattr(loader, "max_queue_size", None),
        "on_workers": loader.num_workers > 0 and loader.dataset.loads.on_workers,
    }


class Reporting(lightning.LightningModule):
    """Notes the batches that its rank trains on, and reports them when it is done."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 1)
        self.name, self.folder = name, folder
        self.epochs: list[list[list[float]]] = []

    def train_dataloader(self) -> DataLoader[Any]:
        return make(self.name)

    def on_train_epoch_start(self) -> None:
        self.epochs.append([])

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        self.epochs[-1].append(batch[:, 0].tolist())
        loss: torch.Tensor = self.line(batch).mean()
        return loss

    def on_train_end(self) -> None:
        report = describe(self.trainer.train_dataloader, self.epochs)
        write(self.folder, self.name, self.global_rank, report)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-4)


def write(folder: Path, name: str, rank: int, report: dict[str, Any]) -> None:
    (folder / f"{name}-{rank}.json").write_text(json.dumps(report))


def train_with_fabric(fabric: Any, name: str, folder: Path) -> None:
    plain = make(name)
    loader = fabric.setup_dataloaders(plain)
    epochs = [[batch[:, 0].tolist() for batch in loader] for _ in range(2)]
    report = describe(loader._dataloader, epochs)
    write(folder, f"fabric {name}", fabric.global_rank, report)


def main(folder: Path) -> None:
    devices: dict[str, Any] = {"accelerator": "cpu", "devices": 2, "strategy": "ddp_fork"}
    for name in LOADERS:
        # One loader is given as it is; the other ones are made in a hook, where Lightning notes
        # what the constructor is given.
        model = Reporting(name, folder)
        trainer = lightning.Trainer(
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **devices,
        )
        trainer.fit(model, make(name) if name == "ours" else None)
    for name in ("torch", "ours"):
        lightning.Fabric(**devices).launch(train_with_fabric, name, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
