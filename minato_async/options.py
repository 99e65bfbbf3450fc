"""The arguments that torch's DataLoader does not have, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

_ITERABLE_MODES = ("sharded", "shared")
_SCHEDULERS = ("fixed",)


@dataclass(frozen=True)
class Options:
    """How an iterator of a loader works: what its constructor was given, checked and completed.

    `window` is in samples, None for "whatever is drawn"; `batches_ahead` in batches, None for
    "as many as fill the window".
    """

    num_workers: int
    window: int | None
    batches_ahead: int | None
    #: Each sample has random state of its own.
    isolated: bool
    #: Seconds that `next()` waits for a batch; None: as long as it takes.
    timeout: float | None


def check_options(loader: DataLoader[Any], max_queue_size: int | None, scheduler: str) -> Options:
    """The options of `loader`, whose torch arguments torch has checked already.

    Raises what torch raises for bad values: TypeError for a wrong type, ValueError otherwise;
    NotImplementedError for what is not built yet.
    """
    if loader.timeout and loader.num_workers == 0:
        raise ValueError(
            "timeout needs workers to wait for: set num_workers > 0, or leave timeout at 0"
        )
    if loader.prefetch_factor is not None and loader.prefetch_factor < 1:
        raise ValueError(
            f"prefetch_factor must be at least 1, got {loader.prefetch_factor}: "
            "with no batch drawn ahead the workers have nothing to load"
        )
    if max_queue_size is not None:
        if isinstance(max_queue_size, bool) or not isinstance(max_queue_size, int):
            raise TypeError(
                f"max_queue_size must be a number of samples or None, got {max_queue_size!r}"
            )
        if max_queue_size < 1:
            raise ValueError(f"max_queue_size must be at least 1 sample, got {max_queue_size}")
        if loader.num_workers == 0:
            raise ValueError("max_queue_size needs workers that fill it: set num_workers > 0")
    mode = getattr(loader, "iterable_mode", "sharded")
    if mode not in _ITERABLE_MODES:
        raise ValueError(f"iterable_mode must be one of {_ITERABLE_MODES}, got {mode!r}")
    if mode == "shared" and not isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            'iterable_mode="shared" is for an IterableDataset, and this dataset is map-style: '
            "its samples are shared out among all workers as it is"
        )
    seed = getattr(loader, "seed", None)
    if seed is not None and seed is not False and type(seed) is not int:
        raise TypeError(f"seed must be an int, None, or False for no isolation, got {seed!r}")
    if scheduler not in _SCHEDULERS:
        raise ValueError(f"scheduler must be one of {_SCHEDULERS}, got {scheduler!r}")

    ahead = None
    if max_queue_size is None:
        ahead = (loader.prefetch_factor or 1) * loader.num_workers
    return Options(
        loader.num_workers, max_queue_size, ahead, seed is not False, loader.timeout or None
    )
