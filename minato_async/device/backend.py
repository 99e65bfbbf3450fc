"""What a prefetch asks of a device: a stream of its own, and marks in streams.

An accelerator works through what is put into a stream one piece after the other, while the program
goes on; two streams know nothing of each other. So whoever reads what another stream writes waits
for a mark in that stream, and memory is not used again before all who read it have passed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A place in a stream. Any thread."""

    def reached(self) -> bool:
        """Whether the device has done all that was put into the stream before."""

    def wait(self) -> None:
        """Block the calling thread until that is so."""

    def seconds_since(self, earlier: Mark) -> float:
        """Seconds between two marks of this device that are reached, of whichever streams;
        negative if `earlier` was reached later."""


class Backend(Protocol):
    """One device, as a prefetch sees it."""

    @property
    def device(self) -> torch.device: ...

    def prefetching(self) -> AbstractContextManager[object]:
        """Within this block, the calling thread's work for the device goes into the prefetch's
        stream, and what it allocates there belongs to that stream."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, on the device. Within `prefetching`: it may return before the copy is made,
        and refers to `tensor` no more."""

    def mark(self) -> Mark:
        """Where the prefetch's stream is now. Within `prefetching`."""

    def hand_over(self, ready: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        """Makes the calling thread's stream wait for `ready`, and keeps the memory of `tensors`
        until that stream is done with them, whenever they are freed. Returns a mark of where that
        stream was before."""


class Reached:
    """A mark where nothing goes on beside the program."""

    def reached(self) -> bool:
        return True

    def wait(self) -> None:
        """It is reached."""

    def seconds_since(self, earlier: Mark) -> float:
        return 0.0


class PlainBackend:
    """A device without streams: the CPU, where nothing is copied; and MPS, which works through all
    that the program's threads have it do one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prefetching(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)

    def mark(self) -> Mark:
        return Reached()

    def hand_over(self, ready: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        return Reached()


class Event:
    """A mark in a stream of an accelerator."""

    def __init__(self, stream: torch.Stream) -> None:
        self.event = torch.Event(stream.device, enable_timing=True)
        self.event.record(stream)

    def reached(self) -> bool:
        return self.event.query()

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, Event)
        return earlier.event.elapsed_time(self.event) / 1000


class AcceleratorBackend:
    """A device with streams: CUDA, and what else `torch.accelerator` knows."""

    def __init__(self, device: torch.device) -> None:
        index: Any = device.index
        if index is None:
            index = torch.accelerator.current_device_index()
        self.device = torch.device(device.type, index)
        self._stream = torch.Stream(self.device)

    def prefetching(self) -> AbstractContextManager[object]:
        # Makes its device the thread's own, too.
        return self._stream

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)

    def mark(self) -> Mark:
        return Event(self._stream)

    def hand_over(self, ready: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        stream = torch.accelerator.current_stream(self.device)
        asked = Event(stream)
        assert isinstance(ready, Event)
        ready.event.wait(stream)
        for tensor in tensors:
            if tensor.device == self.device:
                # The memory belongs to the prefetch's stream: without this the allocator would
                # give it to the next copy as soon as the consumer has dropped the tensor, though
                # its stream is still to read it. An event would have to be recorded when the last
                # reference goes, which nobody is told of but the allocator.
                tensor.record_stream(stream)
        return asked


def backend_for(device: torch.device) -> Backend:
    """The backend of `device`. Raises RuntimeError if torch does not find it."""
    if device.type == "cpu":
        return PlainBackend(device)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != device.type:
        found = "no accelerator" if accelerator is None else f"{accelerator.type!r}"
        raise RuntimeError(f"device={str(device)!r} was asked for, but torch finds {found} here")
    return PlainBackend(device) if device.type == "mps" else AcceleratorBackend(device)
