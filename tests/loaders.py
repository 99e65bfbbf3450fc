"""The loaders that a test runs against: torch's own, to prove the test right, and ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from torch.utils.data import DataLoader

from minato_async import MinatoLoader


@dataclass(frozen=True)
class LoaderKind:
    """A loader class with the options that tell one way of running it from another."""

    name: str
    cls: type[DataLoader[Any]]
    num_workers: int
    in_order: bool = True
    executor: str = "thread"

    def __call__(self, dataset: Any, *args: Any, **options: Any) -> DataLoader[Any]:
        """A loader of this kind; `options` go before the kind's own."""
        own = {"num_workers": self.num_workers, "in_order": self.in_order}
        if self.is_ours:
            own["executor"] = self.executor
        return self.cls(dataset, *args, **(own | options))

    @property
    def elsewhere(self) -> bool:
        """Samples run in other processes: what they count or keep is not seen here, and what is
        raised there arrives as its like."""
        return self.is_ours and self.executor == "process"

    @property
    def is_ours(self) -> bool:
        return self.cls is MinatoLoader


TORCH = LoaderKind("torch", DataLoader, 0)
TORCH_WORKERS = LoaderKind("torch-2", DataLoader, 2)
SERIAL = LoaderKind("minato", MinatoLoader, 0)
ONE_WORKER = LoaderKind("minato-1", MinatoLoader, 1)
WORKERS = LoaderKind("minato-3", MinatoLoader, 3)
ANY_ORDER = LoaderKind("minato-3-any-order", MinatoLoader, 3, in_order=False)
PROCESSES = LoaderKind("minato-2-process", MinatoLoader, 2, executor="process")

#: For tests that need not know on which.
on_each_executor = pytest.mark.usefixtures("executor")

#: Kinds whose batches are those that the sampler drew, in its order.
IN_ORDER = (TORCH, SERIAL, ONE_WORKER, WORKERS, PROCESSES)
#: Every kind, for what does not depend on the order. Of torch's the cheap one: to start processes
#: costs half a second, so its workers are for the tests that are about workers.
ALL = (*IN_ORDER, ANY_ORDER)
OURS = tuple(kind for kind in ALL if kind.is_ours)
#: torch's workers and ours, for what torch does only with workers.
PARALLEL = (TORCH_WORKERS, WORKERS)
