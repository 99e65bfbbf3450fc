"""The torch generators of one sample, and torch's functions that seed or show the global ones."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from minato_async.seeding.current import NO_SAMPLE, Ticketed, current
from minato_async.seeding.rebinding import redirect

#: State of a `TorchStream`: the CPU generator's, the seed for other devices, theirs by name.
TorchState = tuple[bytes, int, dict[str, bytes]]


# Where factories put tensors when the caller does not say. Not the CPU only through a deprecated
# setter, for the newer one works by a mode of its own, which runs before ours.
default_device: Callable[[], Any] = getattr(torch._C, "_get_default_device", lambda: "cpu")


class TorchStream:
    """The numbers that torch gives to the current sample of `streams`: a generator for the CPU,
    reseeded for each sample, and one for each other device that samples draw on."""

    __slots__ = (
        "_device_seed",
        "_devices",
        "_seeded",
        "own",
        "sample",
        "streams",
    )

    def __init__(self, streams: Ticketed) -> None:
        self.streams = streams
        #: The ticket of the sample that the generators' states belong to.
        self.sample: Any = NO_SAMPLE
        #: The generator that `cpu` returns, whatever its state.
        self.own = torch.Generator()
        self._devices: dict[torch.device, torch.Generator] = {}
        self._seeded: set[torch.device] = set()
        self._device_seed = 0

    def cpu(self) -> torch.Generator:
        """The current sample's generator for tensors on the CPU."""
        return self.own if self.sample is self.streams.ticket else self.start()

    def start(self) -> torch.Generator:
        """Begin the current sample's stream; returns its generator for the CPU."""
        streams = self.streams
        # The seed itself, of which this generator uses the lower 32 bits: so `torch.initial_seed`
        # in a worker shows what the loader seeded it with. Of 63 bits, as torch's own are: users
        # put it into tensors.
        seed = self._device_seed = streams.seed() & 0x7FFFFFFFFFFFFFFF
        self.own.manual_seed(seed)
        if self._seeded:
            self._seeded.clear()
        self.sample = streams.ticket
        return self.own

    def seed_devices(self, seed: int) -> None:
        """Let the other devices' generators begin at `seed` when they are next used."""
        self.sample = self.streams.ticket
        self._device_seed = seed
        self._seeded.clear()

    def generator(self, device: torch.device) -> torch.Generator | None:
        """The generator for tensors on `device`; None where torch needs none (meta tensors)."""
        cpu = self.cpu()
        if device.type == "cpu":
            return cpu
        if device.type == "meta":
            return None
        index: int | None = device.index
        if index is None:
            module = torch.get_device_module(device)
            if hasattr(module, "current_device"):
                device = torch.device(device.type, module.current_device())
        generator = self._devices.get(device)
        if generator is None:
            generator = self._devices[device] = torch.Generator(device)
        if device not in self._seeded:
            generator.manual_seed(self._device_seed)
            self._seeded.add(device)
        return generator

    @property
    def begun(self) -> bool:
        """Whether the current sample has drawn from here, or seeded this."""
        return self.sample is self.streams.ticket

    def save(self) -> TorchState:
        """Everything about the stream, picklable without shared memory (so: no tensors)."""
        devices = {str(device): dump(self._devices[device]) for device in self._seeded}
        return dump(self.own), self._device_seed, devices

    def restore(self, state: TorchState) -> None:
        """Go on from a saved stream, as the current sample's."""
        cpu, seed, devices = state
        load(self.own, cpu)
        self.seed_devices(seed)
        for name, content in devices.items():
            generator = self.generator(torch.device(name))
            if generator is not None:
                load(generator, content)


def dump(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def load(generator: torch.Generator, content: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(content), dtype=torch.uint8))


# What the state functions do for a sample. Each takes the stream and then torch's arguments.


def _get_rng_state(stream: TorchStream) -> torch.Tensor:
    return stream.cpu().get_state()


def _set_rng_state(stream: TorchStream, new_state: torch.Tensor) -> None:
    stream.cpu().set_state(new_state)


def _manual_seed(stream: TorchStream, seed: Any) -> torch.Generator:
    seed = int(seed)
    # First, for it refuses what torch refuses.
    generator = stream.own.manual_seed(seed)
    stream.seed_devices(seed)
    return generator


def _seed(stream: TorchStream) -> int:
    seed = stream.own.seed()
    stream.seed_devices(seed)
    return seed


def _initial_seed(stream: TorchStream) -> int:
    return stream.cpu().initial_seed()


_CPU_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
    "manual_seed": _manual_seed,
    "seed": _seed,
    "initial_seed": _initial_seed,
}


def _device_functions(kind: str) -> dict[str, Callable[..., Any]]:
    """The same for the module of one kind of device. Seeding does not touch the device, as it
    must not in a process that uses none."""

    def generator(stream: TorchStream, device: Any) -> torch.Generator:
        if isinstance(device, int):
            device = torch.device(kind, device)
        found = stream.generator(torch.device(device))
        assert found is not None
        return found

    def get_rng_state(stream: TorchStream, device: Any = kind) -> torch.Tensor:
        return generator(stream, device).get_state()

    def set_rng_state(stream: TorchStream, new_state: torch.Tensor, device: Any = kind) -> None:
        generator(stream, device).set_state(new_state)

    def manual_seed(stream: TorchStream, seed: Any) -> None:
        stream.cpu()
        stream.seed_devices(int(seed))

    def seed(stream: TorchStream) -> int:
        number = secrets.randbits(63)
        stream.cpu()
        stream.seed_devices(number)
        return number

    def initial_seed(stream: TorchStream) -> int:
        return generator(stream, kind).initial_seed()

    return {
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "seed": seed,
        "seed_all": seed,
        "initial_seed": initial_seed,
    }


def state_functions() -> list[tuple[FunctionType, Callable[..., Any]]]:
    """torch's seed and state functions, each with what it does for a sample.

    `fork_rng` and the ``..._all`` functions that are not here call these.
    """
    modules: list[tuple[Any, dict[str, Callable[..., Any]]]] = [(torch.random, _CPU_FUNCTIONS)]
    for kind, module in (
        ("cuda", torch.cuda.random),
        ("xpu", torch.xpu.random),
        ("mps", torch.mps),
        ("mtia", getattr(torch, "mtia", None)),
    ):
        modules.append((module, _device_functions(kind)))
    found = []
    for module, functions in modules:
        for name, function in functions.items():
            original = getattr(module, name, None)
            if isinstance(original, FunctionType):
                found.append((original, function))
    return found


def install() -> None:
    """Make torch's seed and state functions ask which thread is calling."""
    for original, for_sample in state_functions():

        def make(
            before: FunctionType, for_sample: Callable[..., Any] = for_sample
        ) -> Callable[..., Any]:
            def dispatch(*args: Any, **kwargs: Any) -> Any:
                stream = current.torch
                if stream is None:
                    return before(*args, **kwargs)
                return for_sample(stream, *args, **kwargs)

            return dispatch

        redirect(original, make)
