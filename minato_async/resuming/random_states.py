"""The states of random generators that a sampler draws from, as plain values."""

from __future__ import annotations

import base64
import contextlib
import random
import sys
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

#: State by the name of its generator.
States = dict[str, Any]


class Source(Protocol):
    """A generator, as far as its state goes."""

    #: It belongs to the whole process: whoever sets it sets it back.
    shared: bool

    def get(self) -> Any:
        """Its state, of plain types."""

    def set(self, state: Any) -> None: ...


class TorchGenerator:
    def __init__(self, generator: torch.Generator, shared: bool = False) -> None:
        self._generator = generator
        self.shared = shared

    def get(self) -> Any:
        return _text(self._generator.get_state().numpy().tobytes())

    def set(self, state: Any) -> None:
        self._generator.set_state(torch.frombuffer(_data(state), dtype=torch.uint8))


class PythonRandom:
    """The hidden generator of the module `random`."""

    shared = True

    def get(self) -> Any:
        version, numbers, gauss = random.getstate()
        return [version, _text(array("I", numbers).tobytes()), gauss]

    def set(self, state: Any) -> None:
        version, numbers, gauss = state
        random.setstate((version, tuple(array("I", bytes(_data(numbers)))), gauss))


class NumpyRandom:
    """The hidden `RandomState` of the module `numpy.random`."""

    shared = True

    def get(self) -> Any:
        name, numbers, *rest = sys.modules["numpy"].random.get_state()
        return [str(name), _text(numbers.tobytes()), *rest]

    def set(self, state: Any) -> None:
        import numpy as np

        name, numbers, *rest = state
        np.random.set_state((name, np.frombuffer(_data(numbers), np.uint32), *rest))


def _text(data: bytes) -> str:
    # So that a state can be written as JSON.
    return base64.b64encode(data).decode()


def _data(text: str) -> bytearray:
    return bytearray(base64.b64decode(text))


def process_wide() -> dict[str, Source]:
    """Every generator of the process that a sampler may draw from without being given one."""
    found: dict[str, Source] = {
        "torch": TorchGenerator(torch.default_generator, shared=True),
        "python": PythonRandom(),
    }
    if "numpy" in sys.modules:
        found["numpy"] = NumpyRandom()
    return found


def note(sources: Mapping[str, Source]) -> States:
    return {name: source.get() for name, source in sources.items()}


def put(sources: Mapping[str, Source], states: States) -> None:
    for name, state in states.items():
        if name in sources:
            sources[name].set(state)


@contextlib.contextmanager
def as_noted(sources: Mapping[str, Source], states: States) -> Iterator[None]:
    """Within this, the generators go on from `states`; those of the whole process are afterwards
    what they were before."""
    before = {n: s.get() for n, s in sources.items() if s.shared and n in states}
    put(sources, states)
    try:
        yield
    finally:
        put(sources, before)
