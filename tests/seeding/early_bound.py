"""A module of user code that binds random functions at import, before any loader is made."""

from random import choice, gauss, getrandbits, random, randrange, seed, shuffle, uniform
from typing import Any

from numpy.random import normal, rand, randint, sample
from numpy.random import seed as numpy_seed
from torch import manual_seed
from torch import rand as torch_rand
from torch.random import initial_seed


def draw() -> list[Any]:
    """One value from each."""
    numbers = list(range(9))
    shuffle(numbers)
    return [
        numbers,
        random(),
        getrandbits(40),
        choice(range(100)),
        gauss(0, 1),
        gauss(0, 1),
        randrange(100),
        uniform(0, 1),
        rand(),
        normal(),
        randint(0, 100),
        float(sample()),
        torch_rand(1).item(),
        initial_seed(),
    ]


def seed_all() -> None:
    """Seed every library."""
    seed(1)
    numpy_seed(1)
    manual_seed(1)
