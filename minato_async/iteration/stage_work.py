"""What is done with a batch between collating and delivering: the work of the engine's stage, or,
without workers, of the consumer's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from minato_async.device.backend import backend_for
from minato_async.device.prefetch import Copies, Prefetch
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
    """A device on which batches are delivered, and what is done there."""

    def __init__(self, options: Options, device: torch.device, isolated: bool) -> None:
        self._prefetch = Prefetch(backend_for(device))
        self._transform: DeviceTransform | None = None
        if options.device_transform is not None:
            self._transform = DeviceTransform(options.device_transform, isolated)

    def put(self, content: Any, seed: Callable[[], int]) -> Any:
        """Begin to move `content` to the device; `seed` is that of the batch."""
        transform = self._transform
        return self._prefetch.put(content, None if transform is None else partial(transform, seed))

    def rest(self) -> None:
        self._prefetch.rest()

    @property
    def copies(self) -> Copies:
        """What has been copied to it."""
        return self._prefetch.copies


class Finishing:
    """Receives a batch from its executor, pins it, and moves it to the device, to one of several
    if these share the batches: as much of that as is wanted."""

    def __init__(
        self,
        receive: Callable[[Any], Any],
        pins: bool,
        devices: Sequence[DeviceSide],
        seed: Callable[[Batch], int],
    ) -> None:
        self._receive = receive
        self._pins = pins
        self._devices = devices
        self._seed = seed
        self.doing = ""

    def __call__(self, batch: Batch, content: Any) -> Any:
        use_one_thread_here()
        self.doing = "receiving"
        content = self._receive(content)
        if self._pins:
            self.doing = "pinning"
            content = pin(content)
        if self._devices:
            self.doing = "copying to the device and running device_transform on"
            device = self._devices[batch.consumer or 0]
            content = device.put(content, partial(self._seed, batch))
        return content

    def rest(self) -> None:
        for device in self._devices:
            device.rest()

    def told(self, stats: Stats) -> Stats:
        """`stats`, with what it knows."""
        if not self._devices:
            return stats
        each = [device.copies for device in self._devices]
        busy, waited = sum(one.busy for one in each), sum(one.waited for one in each)
        return replace(
            stats,
            copied_batches=sum(one.batches for one in each),
            copied_bytes=sum(one.nbytes for one in each),
            copy_seconds=sum(one.seconds for one in each),
            copy_waits=sum(one.waits for one in each),
            copy_waited=waited,
            copy_hidden=1 - min(1.0, waited / busy) if busy else 1.0,
        )


def finishing(
    loader: DataLoader[Any],
    receive: Callable[[Any], Any],
    seed: Callable[[Batch], int],
    sharing: Sequence[torch.device] = (),
) -> tuple[Finishing | None, int | None]:
    """What is to be done with the batches of `loader`, which the executor hands over by `receive`;
    None: that alone, which is for the consumer. And how many batches may be done and not taken;
    None: any number. `seed` gives that of a batch on the device. `sharing`: the devices that share
    the batches, instead of the loader's own."""
    options, devices = check_options(loader), sharing
    if not devices and options.device is not None:
        devices = [options.device]
    elsewhere = any(device.type != "cpu" for device in devices)
    pins = pins_memory(loader, elsewhere)
    if options.device is not None or elsewhere:
        sides = [DeviceSide(options, device, options.isolated) for device in devices]
        return Finishing(receive, pins, sides, seed), loader.prefetch_factor or _AHEAD
    return (Finishing(receive, True, (), seed), None) if pins else (None, None)


def finish_here(loader: DataLoader[Any], isolated: bool) -> Callable[[Any, Callable[[], int]], Any]:
    """What the consumer's thread does with each batch that it has collated, given what gives its
    seed. `isolated`: what it draws belongs to the batch."""
    options, pins = check_options(loader), pins_memory(loader)
    if options.device is not None:
        return partial(_move_here, DeviceSide(options, options.device, isolated), pins)
    return _pin_here if pins else _leave


def _move_here(device: DeviceSide, pins: bool, content: Any, seed: Callable[[], int]) -> Any:
    moving = device.put(pin(content) if pins else content, seed)
    device.rest()
    return moving.take()


def _pin_here(content: Any, seed: Callable[[], int]) -> Any:
    return pin(content)


def _leave(content: Any, seed: Callable[[], int]) -> Any:
    return content
