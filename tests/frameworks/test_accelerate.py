"""`MinatoLoader` inside real Accelerate."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

from minato_async import MinatoLoader
from tests.frameworks.support import (
    FirstComesLast,
    Noisy,
    Numbers,
    all_threads_end,
    flat,
    run_ranks,
    values,
)
from tests.loaders import on_each_executor

accelerate = pytest.importorskip("accelerate")

from minato_async.integrations.accelerate import prepare, skip_first_batches  # noqa: E402
from tests.frameworks.accelerate_ranks import CASES  # noqa: E402


@pytest.fixture
def accelerator() -> Iterator[Any]:
    """An Accelerator for one process, forgotten afterwards: it shares its state with all others."""
    one = accelerate.Accelerator(cpu=True)
    yield one
    one.free_memory()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


class OwnConstructor(MinatoLoader[torch.Tensor]):
    """A user's class, which nobody can construct from its attributes."""

    def __init__(self, path: str) -> None:
        super().__init__(Numbers(12), batch_size=4, num_workers=2, in_order=True)
        self.path = path


# What Accelerate does, and why the adapter is there


def test_accelerate_alone_loses_our_loader(accelerator: Any) -> None:
    prepared = accelerator.prepare(MinatoLoader(Numbers(12), batch_size=4))
    assert type(prepared.base_dataloader) is DataLoader


# prepare


def test_prepare_keeps_the_loader_and_its_options(accelerator: Any) -> None:
    dataset = Numbers(12)
    loader = MinatoLoader(dataset, batch_size=4, num_workers=2, in_order=None, max_queue_size=8)
    prepared = prepare(accelerator, loader)
    inside = prepared.base_dataloader
    assert type(inside) is MinatoLoader
    assert inside.in_order is None
    assert inside.max_queue_size == 8
    assert values(prepared) == values(DataLoader(dataset, 4))
    assert len(prepared) == 3


@on_each_executor
def test_what_is_prepared_loads_on_our_workers(accelerator: Any) -> None:
    dataset = Numbers(12)
    prepared = prepare(accelerator, MinatoLoader(dataset, batch_size=4, num_workers=2))
    list(prepared)
    assert dataset.loads.on_workers


@on_each_executor
def test_a_class_with_its_own_constructor_stays(accelerator: Any) -> None:
    prepared = prepare(accelerator, OwnConstructor("data.bin"))
    assert type(prepared.base_dataloader) is OwnConstructor
    assert prepared.base_dataloader.path == "data.bin"
    assert len(values(prepared)) == 3


def test_all_objects_come_back_in_their_order(accelerator: Any) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ours, stock = MinatoLoader(Numbers(4)), DataLoader(Numbers(4))
    got = prepare(accelerator, model, ours, optimizer, stock)
    assert got[0] is model
    assert type(got[1].base_dataloader) is MinatoLoader
    assert isinstance(got[2], torch.optim.Optimizer)
    assert type(got[3].base_dataloader) is DataLoader


def test_what_was_prepared_before_is_left_alone(accelerator: Any) -> None:
    prepared = prepare(accelerator, MinatoLoader(Numbers(4)))
    inside = prepared.base_dataloader
    assert prepare(accelerator, prepared) is prepared
    assert prepared.base_dataloader is inside


def test_the_original_loader_is_not_changed(accelerator: Any) -> None:
    loader = MinatoLoader(Numbers(12), batch_size=4, num_workers=2, persistent_workers=True)
    list(loader)
    before = dict(vars(loader))
    prepared = prepare(accelerator, loader)
    list(prepared)
    assert vars(loader) == before
    assert prepared.base_dataloader._iterator is not loader._iterator


def test_nobody_asks_for_a_state_that_is_not_saved(
    accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(MinatoLoader, "state_dict", lambda self: asked.append(self) or {})
    values(prepare(accelerator, MinatoLoader(Numbers(12), 4)))
    assert not asked
    accelerator.dataloader_config.use_stateful_dataloader = True
    values(prepare(accelerator, MinatoLoader(Numbers(12), 4)))
    assert len(asked) >= 3


@pytest.fixture
def stateful(accelerator: Any) -> Any:
    accelerator.dataloader_config.use_stateful_dataloader = True
    return accelerator


@on_each_executor
@pytest.mark.parametrize("seedable", [True, False])
@pytest.mark.parametrize("received", [1, 3])
def test_saved_and_loaded_in_the_middle_of_an_epoch(
    stateful: Any, tmp_path: Path, seedable: bool, received: int
) -> None:
    """`use_stateful_dataloader`: Accelerate saves the loader's state with everything else."""
    stateful.dataloader_config.use_seedable_sampler = seedable

    def prepared(dataset: Numbers) -> Any:
        stateful._dataloaders.clear()
        torch.manual_seed(3)
        ours = MinatoLoader(dataset, 4, shuffle=True, num_workers=2, in_order=True)
        return prepare(stateful, ours)

    loader = prepared(Numbers(20))
    first, second, state = values(loader), [], None
    for number, batch in enumerate(loader):
        second.append(batch[:, 0].tolist())
        if number + 1 == received:
            state = stateful.save_state(str(tmp_path / "state"))
    third = values(loader)
    dataset = Numbers(20)
    again = prepared(dataset)
    stateful.load_state(state)
    assert type(again.base_dataloader) is MinatoLoader
    again.set_epoch(1)
    assert values(again) == second[received:]
    assert dataset.loads.count == 20 - 4 * received
    again.set_epoch(2)
    assert values(again) == third
    assert first != second != third


def test_a_wrapper_with_no_place_for_our_loader_is_refused(
    accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on TPUs, where Accelerate puts another one around its own."""
    monkeypatch.setattr(accelerator, "prepare", lambda loader: iter(loader))
    with pytest.raises(NotImplementedError, match="no place to put it back"):
        prepare(accelerator, MinatoLoader(Numbers(4)))


@on_each_executor
def test_ready_first_inside(accelerator: Any) -> None:
    loader = MinatoLoader(FirstComesLast(12), batch_size=4, num_workers=2, in_order=False)
    got = values(prepare(accelerator, loader))
    assert sorted(flat(got)) == list(range(12))
    assert loader.dataset.first not in got[0]


# skip_first_batches


@on_each_executor
@pytest.mark.parametrize("prepared", [True, False])
def test_skipping_keeps_the_loader(accelerator: Any, prepared: bool) -> None:
    loader: Any = MinatoLoader(Numbers(12), batch_size=4, num_workers=2, max_queue_size=8)
    if prepared:
        loader = prepare(accelerator, loader)
    skipping = skip_first_batches(loader, 2)
    inside = getattr(skipping, "base_dataloader", skipping)
    assert type(inside) is MinatoLoader
    assert inside.max_queue_size == 8
    assert values(skipping) == [[8, 9, 10, 11]]
    assert len(values(loader)) == 3


def test_skipping_in_other_loaders_is_accelerates_own(accelerator: Any) -> None:
    skipping = skip_first_batches(accelerator.prepare(DataLoader(Numbers(12), 4)), 2)
    assert type(skipping.base_dataloader) is DataLoader
    assert values(skipping) == [[8, 9, 10, 11]]


def test_skipping_warns_where_the_order_is_not_kept(accelerator: Any) -> None:
    loader = MinatoLoader(Numbers(12), batch_size=4, num_workers=2, in_order=False)
    with pytest.warns(UserWarning, match="some samples will come twice"):
        skip_first_batches(prepare(accelerator, loader), 1)


@on_each_executor
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_with_batches_skipped_is_an_epoch(accelerator: Any, workers: int) -> None:
    """Random streams depend on the number of the epoch: none comes twice."""
    plain = MinatoLoader(Noisy(12), batch_size=4, num_workers=workers, seed=7)
    first, second, third = (values(plain) for _ in range(3))
    loader = MinatoLoader(Noisy(12), batch_size=4, num_workers=workers, seed=7)
    prepared = prepare(accelerator, loader)
    assert values(prepared) == first
    assert values(skip_first_batches(prepared, 1)) == second[1:]
    assert values(prepared) == third


# Epochs, and the end


class EpochSampler(SequentialSampler):
    """Draws other indices in every epoch, which it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return (10 * self.epoch + index for index in super().__iter__())


@on_each_executor
@pytest.mark.parametrize("persistent", [True, False])
def test_the_next_epoch_begins_with_set_epoch(accelerator: Any, persistent: bool) -> None:
    numbers = Numbers(4)
    loader = MinatoLoader(
        numbers,
        batch_size=2,
        num_workers=2,
        sampler=EpochSampler(numbers),
        persistent_workers=persistent,
    )
    prepared = prepare(accelerator, loader)
    epochs = [values(prepared) for _ in range(3)]
    assert epochs == [
        [[0, 1], [2, 3]],
        [[10, 11], [12, 13]],
        [[20, 21], [22, 23]],
    ]


def _our_threads() -> list[threading.Thread]:
    """Those that a test did not begin with; the fixture `nothing_is_left` sees what stays."""
    return [t for t in threading.enumerate() if t is not threading.main_thread()]


@on_each_executor
def test_break_ends_the_workers(accelerator: Any) -> None:
    prepared = prepare(accelerator, MinatoLoader(Numbers(400), batch_size=4, num_workers=2))
    for _ in prepared:
        assert _our_threads()
        break
    all_threads_end()


@on_each_executor
def test_free_memory_ends_persistent_workers(accelerator: Any) -> None:
    loader = MinatoLoader(Numbers(12), batch_size=4, num_workers=2, persistent_workers=True)
    loader = prepare(accelerator, loader)
    list(loader)
    assert _our_threads()
    accelerator.free_memory()
    del loader
    all_threads_end()


# Two ranks


@pytest.fixture(scope="module")
def two_ranks() -> Any:
    """What both ranks got in every case: from torch's loader, and from ours."""
    printed = run_ranks(["-m", "tests.frameworks.accelerate_ranks"], 2)
    return [json.loads(output.splitlines()[-1]) for output in printed]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_get_what_torchs_loader_gives_them(two_ranks: Any, case: str, rank: int) -> None:
    stock, ours = (two_ranks[rank][case][kind] for kind in ("torch", "ours"))
    assert ours.pop("classes") == ["MinatoLoader"] * 2
    assert stock.pop("classes") == ["DataLoader"] * 2
    assert stock["epochs"][0]
    assert ours == stock


def test_the_ranks_share_the_samples(two_ranks: Any) -> None:
    both = [rank["sharded"]["ours"]["epochs"][0] for rank in two_ranks]
    assert {number for rank in both for batch in rank for number in batch} == set(range(18))
    assert both[0] != both[1]
