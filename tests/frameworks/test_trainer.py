"""`MinatoLoader` inside the real Trainer of transformers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from minato_async import MinatoLoader
from tests.frameworks.support import PATIENCE, Loads, our_workers
from tests.loaders import on_each_executor

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from minato_async.integrations.accelerate import TrainerMixin  # noqa: E402

BATCH = 4


class Points(Dataset[dict[str, torch.Tensor]]):
    """Points on a line, by name as the Trainer wants them; notes who loaded which one."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.loads = Loads(length)
        self.later_one = multiprocessing.get_context("fork").Event()
        #: Sample 0 is not ready before one of a later batch is.
        self.first_comes_last = False

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= BATCH:
            self.later_one.set()
        elif index == 0 and self.first_comes_last:
            assert self.later_one.wait(PATIENCE), "no later sample was loaded meanwhile"
        self.loads.add(index)
        x = torch.tensor([index / self.length])
        return {"x": x, "labels": 3 * x + 1}


class Line(torch.nn.Module):
    """Fits the points; its dropout draws from the training thread's random state."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        guess = self.line(self.dropout(x))
        return {"loss": torch.nn.functional.mse_loss(guess, labels), "logits": x}


class OurTrainer(TrainerMixin, transformers.Trainer):  # type: ignore[misc]
    minato_options = {"max_queue_size": 16}  # noqa: RUF012


@pytest.fixture(autouse=True)
def forget_state() -> Iterator[None]:
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def make(cls: type[Any], folder: Path, dataset: Points, workers: int, **options: Any) -> Any:
    torch.manual_seed(0)
    arguments = {
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "num_train_epochs": 2,
        "learning_rate": 0.05,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_num_workers": workers,
        "dataloader_pin_memory": False,
    }
    args = transformers.TrainingArguments(output_dir=str(folder), **(arguments | options))
    return cls(model=Line(), args=args, train_dataset=dataset, eval_dataset=dataset)


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@on_each_executor
def test_training_is_the_same_with_our_loader(tmp_path: Path) -> None:
    stock = make(transformers.Trainer, tmp_path, Points(20), workers=0)
    stock.train()
    dataset = Points(20)
    ours = make(OurTrainer, tmp_path, dataset, workers=2)
    ours.train()
    assert len(losses(stock)) == 10
    assert losses(ours) == losses(stock)
    assert dataset.loads.on_workers
    assert ours.evaluate()["eval_loss"] == stock.evaluate()["eval_loss"]


@on_each_executor
def test_persistent_workers_end_with_the_trainer(tmp_path: Path) -> None:
    """The fixture `nothing_is_left` sees whether they do."""
    dataset = Points(20)
    trainer = make(OurTrainer, tmp_path, dataset, workers=2, dataloader_persistent_workers=True)
    trainer.train()
    trainer.evaluate()
    trainer.evaluate()
    assert len(losses(trainer)) == 10
    assert dataset.loads.on_workers
    assert our_workers()


def test_the_loaders_are_ours_with_all_options(tmp_path: Path) -> None:
    dataset = Points(20)
    trainer = make(
        OurTrainer,
        tmp_path,
        dataset,
        workers=2,
        dataloader_prefetch_factor=3,
        dataloader_persistent_workers=True,
        dataloader_drop_last=True,
    )
    train, evaluation = trainer.get_train_dataloader(), trainer.get_eval_dataloader()
    for loader in (train, evaluation, trainer.get_test_dataloader(dataset)):
        inside = loader.base_dataloader
        assert type(inside) is MinatoLoader
        assert inside.num_workers == 2
        assert inside.prefetch_factor == 3
        assert inside.persistent_workers
        assert inside.max_queue_size == 16
        assert inside.drop_last is False, "left to the batch sampler"
        assert inside.batch_sampler.drop_last
        assert inside.in_order is True
    # The Trainer keeps the loader for evaluation if its workers are persistent.
    assert trainer.get_eval_dataloader() is evaluation


@on_each_executor
@pytest.mark.parametrize("in_order", [True, False])
def test_predictions_come_in_order(tmp_path: Path, in_order: bool) -> None:
    """Also where the user has allowed training to reorder, which `TrainingArguments` says once."""
    dataset = Points(20)
    dataset.first_comes_last = True
    trainer = make(OurTrainer, tmp_path, dataset, workers=2, dataloader_in_order=in_order)
    assert trainer.get_train_dataloader().base_dataloader.in_order is in_order
    predicted = trainer.predict(dataset).predictions
    assert predicted[:, 0].tolist() == [(torch.tensor(i) / 20).item() for i in range(20)]


@on_each_executor
def test_resuming_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """The Trainer skips what it has trained on, through a loader that Accelerate makes afresh."""
    whole = make(OurTrainer, tmp_path, Points(20), workers=2, save_strategy="steps", save_steps=3)
    whole.train()
    dataset = Points(20)
    resumed = make(OurTrainer, tmp_path, dataset, workers=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert dataset.loads.on_workers
    # Two batches of the first epoch were left, and all of the second.
    assert dataset.loads.count == (2 + 5) * BATCH
    assert losses(resumed) == losses(whole)


def test_the_trainers_own_function_is_back_after_training(tmp_path: Path) -> None:
    module = transformers.trainer
    before = module.skip_first_batches
    make(OurTrainer, tmp_path, Points(8), workers=1, num_train_epochs=1).train()
    assert module.skip_first_batches is before is accelerate.skip_first_batches


def test_a_loader_of_another_class_stays(tmp_path: Path) -> None:
    class Special(DataLoader[Any]):
        pass

    class TheirTrainer(transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return Special(self.train_dataset, batch_size=2)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return DataLoader(self.eval_dataset, batch_size=2)

    class Both(TrainerMixin, TheirTrainer):
        pass

    trainer = make(Both, tmp_path, Points(8), workers=0)
    assert type(trainer.get_train_dataloader()) is Special
    evaluation = trainer.get_eval_dataloader()
    assert type(evaluation) is MinatoLoader
    assert evaluation.batch_size == 2
    assert len(list(evaluation)) == 4
