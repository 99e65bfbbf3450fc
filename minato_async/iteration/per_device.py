"""One pass over a loader for several devices: an iterator each, fed by the same workers."""

from __future__ import annotations

import weakref
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from minato_async.iteration.iterators import LoaderIterator, MapIterator, owner, sharing
from minato_async.options import check_options
from minato_async.stats import Stats


class DeviceIterator(LoaderIterator):
    """The batches of one pass that are for one of several devices.

    All iterators of a pass share its workers, which end with the last of them. They may be
    consumed by several threads, or in turn by one. What is meant for one that was dropped or closed
    is not delivered.
    """

    def __init__(self, shared: MapIterator, consumer: int | None, device: torch.device) -> None:
        self.device = device
        self._shared = shared
        self._consumer = consumer
        #: The pass. The next one over the loader is not for this iterator, whoever loads it.
        self._epoch = weakref.ref(shared._epoch)
        self._closed = False
        self._dropped = weakref.finalize(self, shared.leave_soon, self._epoch, consumer)
        # At interpreter exit the engine ends by itself.
        self._dropped.atexit = False
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    def _next_data(self) -> Any:
        if self._has_ended:
            raise StopIteration
        shared, consumer = self._shared, self._consumer
        # A traceback must not keep the iterator: see `LoaderIterator.__next__`.
        del self
        try:
            return shared._next_data(consumer)
        finally:
            del shared

    def _next_data_async(self) -> Coroutine[Any, Any, Any]:
        return _ended() if self._has_ended else self._shared._next_data_async(self._consumer)

    @property
    def _has_ended(self) -> bool:
        return self._closed or self._shared._epoch is not self._epoch()

    def state_dict(self) -> dict[str, Any]:
        """As `MinatoLoader.state_dict`: of the pass, all devices together."""
        return self._shared.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Refused: a pass for several devices goes on when it is begun.

        Raises:
            RuntimeError: which says what to do.
        """
        raise RuntimeError(
            "one device cannot go back by itself: give the state to the loader's load_state_dict, "
            "and call per_device again"
        )

    @property
    def stats(self) -> Stats:
        """A snapshot of the pass, all devices together."""
        return self._shared.stats

    def __len__(self) -> int:
        """Batches of the pass, for all devices together."""
        return len(self._shared)

    def close(self) -> None:
        """Take no more: what is meant for this device is dropped. Idempotent; `next()` then ends
        the iteration."""
        self._closed = True
        self._dropped()


async def _ended() -> Any:
    raise StopAsyncIteration


def share_out(
    loader: DataLoader[Any], devices: Sequence[str | torch.device]
) -> tuple[DeviceIterator, ...]:
    """Begin a pass over `loader`: an iterator for each of `devices`.

    Raises ValueError, TypeError: for what cannot be shared out.
    """
    if isinstance(devices, (str, torch.device)) or not isinstance(devices, Sequence):
        raise TypeError(f"devices must be a list of devices, got {devices!r}")
    if not devices:
        raise ValueError("devices must name at least one device")
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            "per_device is for map-style datasets: which batch an iterable dataset gives next is "
            "not known before it is there; give each device a loader of its own"
        )
    options = check_options(loader)
    if not options.num_workers:
        raise ValueError("per_device needs workers that load for all devices: set num_workers > 0")
    if getattr(loader, "max_displacement", None) is not None and len(devices) > 1:
        raise ValueError(
            "max_displacement is for one consumer: a device that is slow to take its batches would "
            "hold up the others; leave it out"
        )
    # All of them before workers start: torch raises for what is no device.
    named = [torch.device(device) for device in devices]
    reset = sharing.set(named)
    try:
        begun = iter(loader)
        shared = owner(loader)._latest
        shared = None if shared is None else shared()
    finally:
        sharing.reset(reset)
    assert isinstance(shared, MapIterator)
    del begun
    if len(named) == 1:
        return (DeviceIterator(shared, None, named[0]),)
    return tuple(DeviceIterator(shared, number, device) for number, device in enumerate(named))
