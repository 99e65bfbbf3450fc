"""Random generators that objects hold: one of each for every worker."""

from __future__ import annotations

import hashlib
import pickle
import random
from typing import Any

import numpy as np
import torch

GENERATORS = (np.random.RandomState, np.random.Generator, random.Random, torch.Generator)


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
