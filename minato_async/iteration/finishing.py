"""What is done with a batch between collating and delivering: the work of the engine's stage, or,
without workers, of the consumer's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from minato_async.device.backend import backend_for
from minato_async.device.prefetch import Prefetch
from minato_async.device.transform import DeviceTransform
from minato_async.engine.batch import Batch
from minato_async.options import Options, check_options
from minato_async.sample.openmp import use_one_thread_here
from minato_async.sample.pinning import pin, pins_memory
from minato_async.stats import Stats

#: Batches that may be on the device before the consumer takes them, where nothing else is asked
#: for: the one that it takes next, and the one that is copied meanwhile.
_AHEAD = 2


class DeviceSide:
    """The device on which batches are delivered, and what is done there."""

    def __init__(self, loader: DataLoader[Any], options: Options, isolated: bool) -> None:
        assert options.device is not None
        self._prefetch = Prefetch(backend_for(options.device))
        self.pins = pins_memory(loader, self._prefetch.backend.pins)
        self._transform: DeviceTransform | None = None
        if options.device_transform is not None:
            self._transform = DeviceTransform(options.device_transform, isolated)

    def put(self, content: Any, seed: Callable[[], int]) -> Any:
        """Begin to move `content` to the device; `seed` is that of the batch."""
        transform = self._transform
        return self._prefetch.put(content, None if transform is None else partial(transform, seed))

    def rest(self) -> None:
        self._prefetch.rest()

    def told(self, stats: Stats) -> Stats:
        """`stats`, with what it knows."""
        copies = self._prefetch.copies
        return replace(
            stats,
            copied_batches=copies.batches,
            copied_bytes=copies.nbytes,
            copy_seconds=copies.seconds,
            copy_waits=copies.waits,
            copy_waited=copies.waited,
            copy_hidden=1 - min(1.0, copies.waited / copies.busy) if copies.busy else 1.0,
        )


class Finishing:
    """Receives a batch from its executor, pins it, and moves it to the device: as much of that as
    is wanted."""

    def __init__(
        self,
        receive: Callable[[Any], Any],
        pins: bool,
        device: DeviceSide | None,
        seed: Callable[[Batch], int],
    ) -> None:
        self._receive = receive
        self._pins = pins
        self._device = device
        self._seed = seed
        self.doing = ""

    def __call__(self, batch: Batch, content: Any) -> Any:
        use_one_thread_here()
        self.doing = "receiving"
        content = self._receive(content)
        if self._pins:
            self.doing = "pinning"
            content = pin(content)
        if self._device is not None:
            self.doing = "copying to the device and running device_transform on"
            content = self._device.put(content, partial(self._seed, batch))
        return content

    def rest(self) -> None:
        if self._device is not None:
            self._device.rest()

    def told(self, stats: Stats) -> Stats:
        """`stats`, with what it knows."""
        return stats if self._device is None else self._device.told(stats)


def finishing(
    loader: DataLoader[Any], receive: Callable[[Any], Any], seed: Callable[[Batch], int]
) -> tuple[Finishing | None, int | None]:
    """What is to be done with the batches of `loader`, which the executor hands over by `receive`;
    None: that alone, which is for the consumer. And how many batches may be done and not taken;
    None: any number. `seed` gives that of a batch on the device."""
    options = check_options(loader)
    device = None
    if options.device is not None:
        device = DeviceSide(loader, options, options.isolated)
        return Finishing(receive, device.pins, device, seed), loader.prefetch_factor or _AHEAD
    return (Finishing(receive, True, None, seed), None) if pins_memory(loader) else (None, None)


def finish_here(loader: DataLoader[Any], isolated: bool) -> Callable[[Any, Callable[[], int]], Any]:
    """What the consumer's thread does with each batch that it has collated, given what gives its
    seed. `isolated`: what it draws belongs to the batch."""
    options = check_options(loader)
    if options.device is not None:
        return partial(_move_here, DeviceSide(loader, options, isolated))
    return _pin_here if pins_memory(loader) else _leave


def _move_here(device: DeviceSide, content: Any, seed: Callable[[], int]) -> Any:
    moving = device.put(pin(content) if device.pins else content, seed)
    device.rest()
    return moving.take()


def _pin_here(content: Any, seed: Callable[[], int]) -> Any:
    return pin(content)


def _leave(content: Any, seed: Callable[[], int]) -> Any:
    return content
