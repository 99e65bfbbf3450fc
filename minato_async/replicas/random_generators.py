"""Random generators that objects hold: one of each for every worker.

Where samples have random state of their own, these draw from it. How they do is the affair of
`seeding.held`, which nothing in here imports: it is made known by `follow`.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from typing import Any, Protocol

import numpy as np
import torch

GENERATORS = (np.random.RandomState, np.random.Generator, random.Random, torch.Generator)


class Following(Protocol):
    """Makes generators that follow the sample that draws from them."""

    @property
    def classes(self) -> tuple[type, ...]:
        """Theirs."""

    def held(self, own: Any) -> Any:
        """What stands for `own`, a generator of the worker's own, in a replica: it draws the same
        where no sample runs."""

    def place(self, name: str, held: Any) -> Any:
        """Lets `held`, as `held` has returned it, draw from the stream of the place `name`. Returns
        what knows both, as `generator` and `name`."""


class _NotFollowing:
    """Until there is another one."""

    classes = ()

    def held(self, own: Any) -> Any:
        return own

    def place(self, name: str, held: Any) -> Any:
        raise NotImplementedError


_following: list[Following] = [_NotFollowing()]


def follow(following: Following) -> None:
    """Let replicas that are made from now on have generators which follow the sample."""
    _following[0] = following


def following() -> Following:
    return _following[0]


def is_generator(cls: type) -> bool:
    """Whether each worker has its own of the generators of this class."""
    return cls in GENERATORS or cls in following().classes


def own_generator(held: Any, worker: int) -> Any:
    """A generator of the same kind for `worker`. What it draws depends on the state of `held` and
    on the number of the worker: two workers never draw alike, as copies would."""
    if held is torch.default_generator:
        return held
    if isinstance(held, torch.Generator):
        own = torch.Generator(held.device)
        own.manual_seed(_seed(held.get_state().numpy().tobytes(), worker) % 2**63)
        return own
    if isinstance(held, random.Random):
        return random.Random(_seed(pickle.dumps(held.getstate()), worker))
    if isinstance(held, np.random.Generator):
        bits = held.bit_generator
        seed = _seed(pickle.dumps(bits.state), worker)
        return np.random.Generator(type(bits)(np.random.SeedSequence(seed)))
    seed = _seed(pickle.dumps(held.get_state()), worker)
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))


def _seed(state: bytes, worker: int) -> int:
    digest = hashlib.blake2b(state, digest_size=16, salt=worker.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
