"""Seeds: stable, well mixed, and there for every kind of key that identifies a sample."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import uuid
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minato_async.seeding import UnstableKeyError, epoch_seed, sample_seed, seed_in_epoch
from minato_async.seeding.keys import mix64
from tests.seeding.support import python


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Frame:
    video: str
    number: int


KEYS: list[Any] = [
    0,
    1,
    -1,
    2**63,
    -(2**63),
    2**64,
    2**64 + 1,
    None,
    1.5,
    float("nan"),
    1j,
    "",
    "a",
    "b",
    b"a",
    "\udc80",
    (),
    ("a", 1),
    ("a1",),
    ("a", ("b",)),
    ("a", "b"),
    ("ab", ""),
    {"a": 1},
    {"a": 2},
    frozenset({"a", "b"}),
    Colour.RED,
    Colour.BLUE,
    Frame("a", 1),
    Frame("a", 2),
    PurePosixPath("a"),
    slice(1, 2),
    range(3),
    datetime.date(2020, 1, 1),
    uuid.UUID(int=1),
    int,
    np.array([1.5, 2.5]),
    np.array([1, 2]),
    torch.tensor([1.5, 3.5]),
    torch.tensor(1.25),
]


def test_different_keys_have_different_seeds() -> None:
    seeds = [sample_seed(7, 0, key) for key in KEYS]
    assert len(set(seeds)) == len(KEYS)
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.int64(5), 5),
        (np.uint8(5), 5),
        (torch.tensor(5), 5),
        (True, 1),
        (np.int64(-5), -5),
        (np.str_("a"), "a"),
        (np.float64(1.5), 1.5),
        (["a", 1], ("a", 1)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (bytearray(b"a"), b"a"),
        (Path("a") / "b", PurePosixPath("a/b")),
    ],
)
def test_equal_keys_of_different_types_have_the_same_seed(one: Any, other: Any) -> None:
    assert sample_seed(7, 0, one) == sample_seed(7, 0, other)


def test_everything_that_identifies_a_sample_counts() -> None:
    seeds = {
        sample_seed(seed, epoch, index, repeat)
        for seed in (0, 1, 2**63, -1)
        for epoch in (0, 1, 1000)
        for index in (0, 1, 2, "a")
        for repeat in (0, 1, 2)
    }
    assert len(seeds) == 4 * 3 * 4 * 3


def test_two_steps_give_the_same_seed_as_one() -> None:
    assert seed_in_epoch(epoch_seed(3, 5), 7, 2) == sample_seed(3, 5, 7, 2)


def test_seeds_are_what_they_always_were() -> None:
    """A changed seed changes every augmentation of everybody who set one."""
    assert sample_seed(0, 0, 0) == 0x17612DD914E5FAEF
    assert sample_seed(1, 2, 3, 4) == 0xD11D73B02DC2F0A7
    assert sample_seed(1, 2, ("a", None, 1.5)) == 0xD24ED69E74FE37D8


def test_seeds_do_not_depend_on_hash_randomisation() -> None:
    script = """
        from minato_async.seeding import sample_seed
        keys = ("a", frozenset({"a", "b", "c"}), {"x": 1, "y": 2})
        print([sample_seed(1, 0, key) for key in keys])
    """
    assert python(script, "-R") == python(script, "-R")


@pytest.mark.parametrize("key", [object(), lambda: 0, ("a", object())])
def test_a_key_without_a_digest_is_named(key: Any) -> None:
    with pytest.raises(UnstableKeyError, match=r"builtins\.(object|function)"):
        sample_seed(0, 0, key)


def test_no_two_of_a_million_samples_share_a_seed_or_its_lower_half_too_often() -> None:
    base = epoch_seed(12, 3)
    seeds = np.array([seed_in_epoch(base, index) for index in range(200_000)], dtype=np.uint64)
    assert len(np.unique(seeds)) == len(seeds)
    # torch uses the lower half: as few collisions as there are among random numbers (4.7 expected).
    assert len(seeds) - len(np.unique(seeds & np.uint64(0xFFFFFFFF))) < 20
    assert len(seeds) - len(np.unique(seeds >> np.uint64(32))) < 20
    ones = np.unpackbits(seeds.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 0.01


@given(st.integers(0, 2**64 - 1), st.integers(0, 63))
def test_one_bit_of_the_number_changes_many_of_the_result(number: int, bit: int) -> None:
    changed = (mix64(number) ^ mix64(number ^ 1 << bit)).bit_count()
    assert 10 <= changed <= 54
