"""Generators of the running sample, for code that takes them explicitly."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from minato_async.seeding.current import current
from minato_async.seeding.held import Following, Place, reseed


class SampleRng:
    """The generators of one sample, each a stream of its own. Made by `sample_rng`."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Any, Place]] = {}

    def _of(self, kind: str, make: Callable[[], Any]) -> Any:
        if kind not in self._made:
            following = Following()
            generator = following.held(make())
            if current.streams is None:
                seed = torch.empty((), dtype=torch.int64).random_()
                reseed(generator, int(seed.item()))
            self._made[kind] = generator, following.place(f"sample_rng().{kind}", generator)
        generator, place = self._made[kind]
        place.here()
        return generator

    @property
    def python(self) -> random.Random:
        """The one of the standard library's kind."""
        generator: random.Random = self._of("python", lambda: random.Random(0))
        return generator

    @property
    def numpy(self) -> np.random.Generator:
        """The one of numpy's kind."""
        generator: np.random.Generator = self._of("numpy", lambda: np.random.default_rng(0))
        return generator

    @property
    def torch(self) -> torch.Generator:
        """The one for `generator=` of torch's functions, on the CPU."""
        generator: torch.Generator = self._of("torch", torch.Generator)
        return generator


def sample_rng() -> SampleRng:
    """Explicit random generators for the sample that the calling thread runs.

    To be called in the dataset or a transform, for each sample, and not kept: what a sample draws
    from them depends on the loader's seed, the epoch and the index, like all that it draws, and
    not on what else draws. Within a sample, every call goes on with the same three generators.

    Where samples have no random state of their own (`seed=False`, `num_workers=0` without a seed,
    outside of a loader) each call gives new generators, seeded from torch's global one.
    """
    streams: Any = current.streams
    if streams is None:
        return SampleRng()
    held = streams.held
    if held.explicit is None:
        held.explicit = SampleRng()
    rng: SampleRng = held.explicit
    return rng
