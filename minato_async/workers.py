"""What a worker needs before its first sample, and keeps until its last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MISSING = object()


@dataclass(frozen=True)
class WorkerSetup:
    """How the workers of one epoch are set up, whatever executor they belong to."""

    dataset: Any
    num_workers: int
    #: Worker w is told the seed `base_seed` + w, as with torch.
    base_seed: int
    worker_init_fn: Callable[[int], None] | None


class DatasetCopy:
    """One worker's own shallow copy of the dataset.

    `worker_init_fn` may change the copy's attributes, and a dataset that opens its file at the
    first sample opens one for each worker: both work as they do in torch's worker processes.
    What the user changes in the original reaches the copy at the next `refresh`.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._seen: dict[str, Any] = {}
        if _can_be_copied(dataset):
            self.dataset = object.__new__(type(dataset))
            self.refresh(dataset)

    def refresh(self, original: Any) -> None:
        """Take over the attributes that were set in `original` since the last time; what the
        worker itself has changed stays."""
        if self.dataset is original:
            return
        current = dict(vars(original))
        for name, value in current.items():
            if self._seen.get(name, _MISSING) is not value:
                self.dataset.__dict__[name] = value
        for name in self._seen.keys() - current.keys():
            self.dataset.__dict__.pop(name, None)
        self._seen = current


def _can_be_copied(dataset: Any) -> bool:
    """Whether copying the instance dictionary copies the dataset.

    Not if part of it lies elsewhere (slots, a built-in base), and not if it has a finaliser,
    which would release what the original still uses.
    """
    cls: Any = type(dataset)
    return (
        hasattr(dataset, "__dict__")
        and cls.__new__ is object.__new__
        and not hasattr(cls, "__del__")
        and not any(vars(base).get("__slots__") for base in cls.__mro__)
    )
