"""`MinatoLoader` as it is inside real Lightning: Trainer and Fabric."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from tests.frameworks.support import (
    ROOT,
    TIMEOUT,
    BothAtWork,
    FirstComesLast,
    Numbers,
    Stream,
    all_threads_end,
    flat,
    our_workers,
    values,
)
from tests.loaders import on_each_executor

lightning = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import BasePredictionWriter, EarlyStopping  # noqa: E402

from tests.frameworks.lightning_ranks import LENGTH, LOADERS  # noqa: E402

pytestmark = [
    # Lightning's own: it uses a deprecated class of torch's, and advises on numbers of workers.
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but"),
    pytest.mark.filterwarnings("ignore:.*sampler has shuffling enabled"),
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
]


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Notes the batches that it is given; its dropout draws from the training thread's state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 1))
        self.losses: list[float] = []
        self.epochs: list[list[list[float]]] = []
        self.validated: list[list[float]] = []

    def on_train_epoch_start(self) -> None:
        self.epochs.append([])

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        self.epochs[-1].append(batch[:, 0].tolist())
        loss: torch.Tensor = self.layers(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.validated.append(batch[:, 0].tolist())
        self.log("value", 1.0)

    def predict_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return batch[:, 0]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-4)


def trainer(**options: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(accelerator="cpu", devices=1, **(quiet | options))


def make(cls: type[Any], dataset: Any, **options: Any) -> Any:
    """A loader of torch's, or of ours with workers."""
    if cls is MinatoLoader:
        options = {"num_workers": 2, "in_order": True, **options}
    return cls(dataset, batch_size=4, **options)


@pytest.fixture
def global_seeds() -> Iterator[None]:
    """What `seed_everything` changes is as before afterwards."""
    before = dict(os.environ)
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    os.environ.clear()
    os.environ.update(before)
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])


# Training


@on_each_executor
@pytest.mark.parametrize("limit", [None, 3])
def test_fit_is_the_same_with_our_loader(limit: int | None) -> None:
    """With validation in the middle of training, and, limited, epochs that are broken off."""
    got = []
    for cls in (DataLoader, MinatoLoader):
        model, dataset = Model(), Numbers(24)
        trainer(max_epochs=3, val_check_interval=0.5, limit_train_batches=limit).fit(
            model, make(cls, dataset, shuffle=True), make(cls, Numbers(6))
        )
        got.append((model.epochs, model.validated, model.losses))
    stock, ours = got
    assert len(stock[0]) == 3
    assert ours == stock
    assert dataset.loads.on_workers


class Stopping(lightning.Callback):  # type: ignore[misc]
    """Saves a checkpoint after so many steps, and ends the training as a kill would."""

    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.steps = path, steps

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.steps:
            trainer.save_checkpoint(self.path)
            raise KeyError("killed")


@on_each_executor
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("options", [{}, {"in_order": False}, {"persistent_workers": True}])
def test_a_fit_goes_on_in_the_middle_of_an_epoch(
    tmp_path: Path, steps: int, options: dict[str, Any]
) -> None:
    """Lightning saves and loads the loader's state by itself."""

    def loader(dataset: Numbers) -> MinatoLoader[torch.Tensor]:
        generator = torch.Generator().manual_seed(4)
        ours: MinatoLoader[torch.Tensor] = make(
            MinatoLoader, dataset, shuffle=True, generator=generator, **options
        )
        return ours

    whole = Model()
    trainer(max_epochs=2).fit(whole, loader(Numbers(24)))
    first, path = Model(), tmp_path / "checkpoint"
    with pytest.raises(KeyError, match="killed"):
        trainer(max_epochs=2, callbacks=[Stopping(path, steps)]).fit(first, loader(Numbers(24)))
    rest, dataset = Model(), Numbers(24)
    rest.epochs.append([])  # Lightning does not begin it again
    trainer(max_epochs=2).fit(rest, loader(dataset), ckpt_path=path)
    both = [first.epochs[0] + rest.epochs[0], rest.epochs[1]]
    if options.get("in_order") is False:
        assert [sorted(flat(e)) for e in both] == [sorted(flat(e)) for e in whole.epochs]
    else:
        assert both == whole.epochs
    assert dataset.loads.count == 24 - 4 * steps + 24


@on_each_executor
def test_persistent_workers_end_with_the_fit() -> None:
    """Lightning only drops its reference to a loader's iterator."""
    alive: list[int] = []

    class Watching(Model):
        def on_train_epoch_end(self) -> None:
            alive.append(len(our_workers()))

    model, dataset = Watching(), Numbers(24)
    trainer(max_epochs=3, val_check_interval=2, num_sanity_val_steps=1).fit(
        model,
        make(MinatoLoader, dataset, persistent_workers=True),
        make(MinatoLoader, Numbers(6), persistent_workers=True),
    )
    assert model.epochs == [values(DataLoader(dataset, 4))] * 3
    assert min(alive) >= 2  # at least one of each loader's
    all_threads_end()


@on_each_executor
def test_workers_persist_between_epochs() -> None:
    class Watching(Model):
        workers: set[int] = set()  # noqa: RUF012

        def on_train_epoch_end(self) -> None:
            self.workers |= our_workers()

    model = Watching()
    loader = make(MinatoLoader, BothAtWork(24), persistent_workers=True, scheduler="fixed")
    trainer(max_epochs=3).fit(model, loader)
    assert len(model.epochs) == 3
    assert len(model.workers) == 2


@on_each_executor
def test_early_stopping_ends_the_workers() -> None:
    model = Model()
    stop = EarlyStopping("value", patience=1)
    trainer(max_epochs=10, callbacks=[stop]).fit(
        model, make(MinatoLoader, Numbers(24)), make(MinatoLoader, Numbers(6))
    )
    assert len(model.epochs) == 2
    # The rest is seen by the fixture `nothing_is_left`.


@on_each_executor
def test_an_error_in_training_ends_the_workers() -> None:
    class Failing(Model):
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            if index == 2:
                raise LookupError("no such thing")
            return super().training_step(batch, index)

    with pytest.raises(LookupError, match="no such thing"):
        trainer(max_epochs=1).fit(Failing(), make(MinatoLoader, Numbers(400)))


def test_overfit_batches_trains_on_the_same_batches() -> None:
    model = Model()
    loader = make(MinatoLoader, Numbers(24), shuffle=True, in_order=None)
    with pytest.warns(UserWarning, match="turning off the train dataloader shuffling"):
        trainer(max_epochs=3, overfit_batches=2).fit(model, loader)
    assert model.epochs == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 3


@on_each_executor
def test_seeding_the_workers_leaves_the_training_alone(global_seeds: None) -> None:
    """Lightning then gives each loader a `worker_init_fn` that seeds the global generators."""
    got = []
    for cls in (DataLoader, MinatoLoader):
        lightning.seed_everything(1, workers=True, verbose=False)
        model = Model()
        fit = trainer(max_epochs=2)
        fit.fit(model, make(cls, Numbers(24), shuffle=True))
        assert fit.train_dataloader.worker_init_fn is not None
        got.append((model.losses, random.random(), numpy.random.rand(), torch.rand(1).item()))
    assert got[0] == got[1]


@on_each_executor
def test_ready_first_in_training() -> None:
    model = Model()
    loader = MinatoLoader(FirstComesLast(12), batch_size=4, num_workers=2, in_order=False)
    trainer(max_epochs=1).fit(model, loader)
    assert sorted(flat(model.epochs[0])) == list(range(12))
    assert loader.dataset.first not in model.epochs[0][0]


# Loaders that Lightning makes afresh

#: For arguments that are not about samplers, a value other than the default.
ARGUMENTS: dict[str, Any] = {
    "in_order": False,
    "max_queue_size": 16,
    "seed": 3,
    "num_workers": 2,
    "collate_fn": torch.stack,
    "timeout": 60,
    "worker_init_fn": print,
    "generator": torch.Generator(),
    "prefetch_factor": 3,
    "persistent_workers": True,
}


class HookModel(Model):
    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments

    def train_dataloader(self) -> Any:
        return MinatoLoader(Numbers(8), 4, shuffle=True, **self.arguments)


@pytest.mark.parametrize("in_hook", [True, False])
@pytest.mark.parametrize("name", [*ARGUMENTS, None])
def test_every_argument_survives(name: str | None, in_hook: bool) -> None:
    arguments = {"num_workers": 2}
    if name is not None:
        arguments[name] = ARGUMENTS[name]
    if in_hook:
        model, loaders = HookModel(arguments), ()
    else:
        model, loaders = Model(), (MinatoLoader(Numbers(8), 4, shuffle=True, **arguments),)
    fit = trainer(max_epochs=1, overfit_batches=1)
    with pytest.warns(UserWarning, match="turning off"):
        fit.fit(model, *loaders)
    used = fit.train_dataloader
    assert type(used) is MinatoLoader
    assert not loaders or used is not loaders[0]
    if name is not None:
        assert getattr(used, name) is ARGUMENTS[name]
    else:
        assert used.in_order is None
    # `fit` keeps its loaders, and so their persistent workers.
    del fit, used


def test_every_argument_is_kept_as_given() -> None:
    """Lightning passes on attributes that have the name of an argument, and not its default."""
    loader = MinatoLoader(Numbers(8))
    own = inspect.signature(MinatoLoader).parameters.values()
    torchs = inspect.signature(DataLoader).parameters
    new = [parameter for parameter in own if parameter.name not in torchs]
    assert new
    for parameter in [*new, inspect.signature(MinatoLoader).parameters["in_order"]]:
        assert vars(loader)[parameter.name] is parameter.default


def test_iterable_datasets_keep_their_mode() -> None:
    """Lightning makes their loaders afresh for prediction only."""
    loader = MinatoLoader(Stream(12), batch_size=4, num_workers=2, iterable_mode="shared")
    predict = trainer()
    got = predict.predict(Model(), loader)
    used = predict.predict_dataloaders
    assert type(used) is MinatoLoader
    assert used is not loader
    assert used.iterable_mode == "shared"
    assert sorted(flat(batch.tolist() for batch in got)) == list(range(12))


@on_each_executor
def test_a_loader_can_be_pickled_for_other_ranks() -> None:
    """As for the strategy `ddp_spawn`."""
    options = {"in_order": None, "max_queue_size": 16, "seed": 3}
    loader = MinatoLoader(Numbers(8), 4, num_workers=2, persistent_workers=True, **options)
    copy = pickle.loads(pickle.dumps(loader))
    assert {name: getattr(copy, name) for name in options} == options
    assert values(copy) == values(loader)
    del loader, copy


# Prediction


class Writer(BasePredictionWriter):  # type: ignore[misc]
    """Keeps what Lightning says of whose prediction is whose."""

    def write_on_epoch_end(
        self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any
    ) -> None:
        self.predictions = [batch.tolist() for batch in predictions]
        (self.indices,) = batch_indices


@on_each_executor
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("in_order", [None, True])
def test_predictions_are_labelled_right(shuffle: bool, in_order: bool | None) -> None:
    writer = Writer("epoch")
    dataset = FirstComesLast(12)
    loader = MinatoLoader(
        dataset,
        batch_size=4,
        shuffle=shuffle,
        num_workers=2,
        in_order=in_order,
        max_queue_size=12,
    )
    trainer(callbacks=[writer]).predict(Model(), loader)
    assert writer.predictions == writer.indices
    assert sorted(flat(writer.indices)) == list(range(12))


def test_reordering_is_not_done_in_prediction() -> None:
    writer = Writer("epoch")
    loader = MinatoLoader(FirstComesLast(12), batch_size=4, num_workers=2, in_order=False)
    with pytest.warns(UserWarning, match="in_order=False is ignored while Lightning predicts"):
        got = trainer(callbacks=[writer]).predict(Model(), loader)
    assert [batch.tolist() for batch in got] == writer.indices == values(DataLoader(Numbers(12), 4))


# Fabric


@on_each_executor
def test_fabric_takes_the_loader() -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    dataset = Numbers(12)
    loader = fabric.setup_dataloaders(make(MinatoLoader, dataset, persistent_workers=True))
    assert type(loader._dataloader) is MinatoLoader
    assert [values(loader) for _ in range(2)] == [values(DataLoader(Numbers(12), 4))] * 2
    assert dataset.loads.on_workers


# Two ranks


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """By loader: what each rank was given."""
    folder = tmp_path_factory.mktemp("ranks")
    env = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.frameworks.lightning_ranks", str(folder)],
        cwd=ROOT,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    names = [*LOADERS, "fabric torch", "fabric ours"]
    return {
        name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]
        for name in names
    }


@pytest.mark.parametrize("name", ["ours", "ours, persistent", "ours, processes"])
def test_two_ranks_train_on_the_same_batches(two_ranks: Any, name: str) -> None:
    for stock, ours in zip(two_ranks["torch"], two_ranks[name], strict=True):
        assert ours["class"] == "MinatoLoader"
        assert ours["sampler"] == "DistributedSampler"
        assert ours["in_order"] is True
        assert ours["on_workers"]
        assert ours["epochs"] == stock["epochs"]
        assert ours["epochs"][0] != ours["epochs"][1], "set_epoch was not seen"
    if name == "ours":
        assert [rank["max_queue_size"] for rank in two_ranks[name]] == [8, 8]


def test_two_ranks_share_the_samples_in_any_order(two_ranks: Any) -> None:
    reports = two_ranks["ours, any order"]
    assert [report["in_order"] for report in reports] == [None, None]
    for epoch in (0, 1):
        given = [sorted(flat(report["epochs"][epoch])) for report in reports]
        drawn = [sorted(flat(report["epochs"][epoch])) for report in two_ranks["torch"]]
        assert given == drawn
        assert sorted(given[0] + given[1]) == list(range(LENGTH))


def test_two_ranks_of_fabric(two_ranks: Any) -> None:
    for stock, ours in zip(two_ranks["fabric torch"], two_ranks["fabric ours"], strict=True):
        assert ours["class"] == "MinatoLoader"
        assert ours["sampler"] == "DistributedSampler"
        assert ours["on_workers"]
        assert ours["epochs"] == stock["epochs"]
        assert ours["epochs"][0] != ours["epochs"][1], "set_epoch was not seen"
