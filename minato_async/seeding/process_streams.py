"""The random state of the samples that a worker process runs.

What they draw is what threads give them. But torch's global generators are the process's own here:
they are seeded when a sample begins, and torch's functions draw from them as they always do. So
everything follows the sample that draws in C++ too, and a draw costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from minato_async.seeding.current import NO_SAMPLE
from minato_async.seeding.streams import SampleStreams
from minato_async.seeding.torch_random import TorchState, dump, load


class ProcessStreams(SampleStreams):
    """`SampleStreams` for the only thread of a worker process that runs samples."""

    __slots__ = ("_draws", "_ticket")

    def __init__(self) -> None:
        self._draws = True
        self._ticket: Any = None
        super().__init__()

    def _make_torch(self) -> Any:
        return ProcessTorchStream(self)

    @property
    def hooked(self) -> None:
        return None

    def begin(self, resolve: Callable[[Any], int], draws: bool = True) -> None:
        super().begin(resolve, draws)
        self._draws = draws

    def _set_ticket(self, ticket: Any) -> None:
        self._ticket = ticket
        # None: there is no sample.
        if self._draws and ticket is not None and self.torch.sample is not ticket:
            self.torch.start()

    # The generators must be ready before the sample's first draw, which nobody sees.
    ticket = property(attrgetter("_ticket"), _set_ticket)


class ProcessTorchStream:
    """The numbers that torch gives to the current sample of `streams`: the global generators."""

    __slots__ = ("_devices", "_fresh", "_seed", "own", "sample", "streams")

    def __init__(self, streams: ProcessStreams) -> None:
        self.streams = streams
        #: The ticket of the sample that the generators' states belong to.
        self.sample: Any = NO_SAMPLE
        self.own = torch.default_generator
        self._seed = 0
        # For comparison.
        self._fresh = torch.Generator()
        # Modules of devices that may come into use. After a fork from a process that uses them
        # they cannot.
        self._devices: list[Any] = [
            module
            for module in (torch.cuda, torch.xpu)
            if module._is_compiled() and not module._is_in_bad_fork()
        ]
        for module in self._devices:
            # Carried out when the device is first used, in the middle of a sample.
            module._lazy_call(lambda module=module: self._seed_devices(module), seed_all=True)

    def cpu(self) -> torch.Generator:
        """The current sample's generator for tensors on the CPU."""
        return self.own if self.sample is self.streams.ticket else self.start()

    def start(self) -> torch.Generator:
        """Begin the current sample's stream; returns its generator for the CPU."""
        streams = self.streams
        seed = self._seed = streams.seed() & 0x7FFFFFFFFFFFFFFF
        self.own.manual_seed(seed)
        for module in self._devices:
            if module._initialized:
                self._seed_devices(module)
        self.sample = streams.ticket
        return self.own

    def _seed_devices(self, module: Any) -> None:
        for generator in module.default_generators:
            generator.manual_seed(self._seed)

    def _generators(self) -> dict[str, torch.Generator]:
        """Those of other devices that are in use."""
        return {
            str(generator.device): generator
            for module in self._devices
            if module._initialized
            for generator in module.default_generators
        }

    @property
    def begun(self) -> bool:
        """Whether the current sample has drawn from here, or seeded this."""
        if self.sample is not self.streams.ticket:
            return False
        fresh = dump(self._fresh.manual_seed(self._seed))
        if dump(self.own) != fresh:
            return True
        return any(
            dump(generator) != dump(torch.Generator(generator.device).manual_seed(self._seed))
            for generator in self._generators().values()
        )

    def save(self) -> TorchState:
        """Everything about the stream, as `TorchStream.save`. What is drawn next begins anew."""
        devices = {name: dump(generator) for name, generator in self._generators().items()}
        state = dump(self.own), self._seed, devices
        self.start()
        return state

    def restore(self, state: TorchState) -> None:
        """Go on from a saved stream, as the current sample's."""
        cpu, seed, devices = state
        load(self.own, cpu)
        self._seed = seed
        generators = self._generators()
        for module in self._devices:
            if module._initialized:
                self._seed_devices(module)
        for name, content in devices.items():
            if (generator := generators.get(name)) is not None:
                load(generator, content)
        self.sample = self.streams.ticket
