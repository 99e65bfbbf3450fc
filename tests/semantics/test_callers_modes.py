"""What the thread that starts an epoch has set for itself holds where the samples are made."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from minato_async import MinatoLoader
from tests.loaders import (
    PROCESSES,
    SERIAL,
    TORCH,
    TORCH_WORKERS,
    WORKERS,
    LoaderKind,
    on_each_executor,
)

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def modes() -> tuple[bool, bool, torch.dtype, str]:
    """Grad mode, autocast, the dtype that a product has with it, and a context variable."""
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    cast = torch.is_autocast_enabled("cpu")
    return torch.is_grad_enabled(), cast, product.dtype, variable.get()


class Modes:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return modes()


class ModesInTurn(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for _ in range(4):
            yield modes()


def with_modes(samples: list[Any]) -> Any:
    return samples, modes()


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu"),
    "autocast to halves": lambda: torch.autocast("cpu", dtype=torch.float16),
}


@pytest.mark.parametrize("dataset", [Modes(), ModesInTurn()], ids=["map", "iterable"])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(
    "kind", [TORCH, TORCH_WORKERS, SERIAL, WORKERS, PROCESSES], ids=lambda kind: kind.name
)
def test_modes_are_the_callers(kind: LoaderKind, around: str, dataset: Any) -> None:
    token = variable.set("caller's")
    try:
        with AROUND[around]():
            expected = modes()
            found = list(kind(dataset, 2, collate_fn=with_modes))
    finally:
        variable.reset(token)
    assert found
    for samples, collating in found:
        assert {*samples, collating} == {expected}


@on_each_executor
@pytest.mark.parametrize("dataset", [Modes(), ModesInTurn()], ids=["map", "iterable"])
def test_each_epoch_has_those_with_which_it_was_begun(dataset: Any) -> None:
    """Torch's persistent workers have those of the first for good."""
    loader = MinatoLoader(dataset, 2, num_workers=2, persistent_workers=True, collate_fn=with_modes)
    for around in (*AROUND, *reversed(AROUND)):
        with AROUND[around]():
            expected = modes()
            assert {collating for _, collating in loader} == {expected}


@on_each_executor
def test_batches_made_under_inference_mode_can_be_trained_on() -> None:
    """They are made ahead: the block may have ended when they are used."""
    weight = torch.ones(1, requires_grad=True)
    with torch.inference_mode():
        iterator = iter(MinatoLoader(torch.ones(4, 1), num_workers=2))  # type: ignore[arg-type]
    for batch in iterator:
        (batch * weight).sum().backward()
    assert weight.grad == 4


def test_nothing_of_it_stays_in_a_thread_that_loads_for_itself() -> None:
    with torch.autocast("cpu"):
        list(MinatoLoader(Modes(), num_workers=0, collate_fn=list))  # type: ignore[arg-type]
        assert torch.is_autocast_cache_enabled()
    assert not torch.is_autocast_enabled("cpu")
