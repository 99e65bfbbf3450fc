"""From what identifies a sample to a 64-bit seed."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import operator
import struct
import uuid
from collections.abc import Iterable, Mapping, Set
from pathlib import PurePath
from typing import Any

# The arithmetic below is what every random sample pays, so its numbers stand in it as literals: a
# constant of the code is immortal, and free-threaded Python counts references to every other
# number that another thread made with atomic operations, which made this twice as slow.
#
# 0x9E37...: 2**64 divided by the golden ratio, an odd step that spreads consecutive numbers evenly.
# 0x6A09..., 0xBB67...: the first 64 bits of the fractions of the square roots of 2 and 3.

#: Types whose ``repr`` is the value and nothing else, in every process and version of Python.
_PLAIN = (
    complex,
    range,
    slice,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
)


class UnstableKeyError(TypeError):
    """A sampler's key has no digest that is the same in every process."""


def mix64(number: int) -> int:
    """Map numbers to 64-bit numbers, by their lower 64 bits, so that near ones land far apart.

    One product of 128 bits, its halves folded together: each bit of the result depends on all bits
    of the number. In Python that takes half the time of a finisher that works in 64 bits.
    """
    number &= 0xFFFFFFFFFFFFFFFF
    product = (number ^ 0x6A09E667F3BCC908) * (number ^ 0xBB67AE8584CAA73B)
    return (product ^ product >> 64) & 0xFFFFFFFFFFFFFFFF


def nth(key: int, number: int) -> int:
    """The 64 random bits with this number in the sequence of `key`."""
    return mix64(key + 0x9E3779B97F4A7C15 * number)


def epoch_seed(seed: int, epoch: int) -> int:
    """The part of `sample_seed` that all samples of an epoch share, 64 bits."""
    return nth(mix64(seed), epoch + 1)


def sample_seed(seed: int, epoch: int, index: Any, repeat: int = 0) -> int:
    """The 64-bit seed of one sample.

    `seed` is the loader's base seed, `epoch` the number of the epoch, `index` the sampler's key
    and `repeat` how often this epoch has drawn that key before. The same in every process and on
    every machine.

    Raises `UnstableKeyError` when the key has no stable digest, see `key_number`.
    """
    return seed_in_epoch(epoch_seed(seed, epoch), index, repeat)


def seed_in_epoch(base: int, index: Any, repeat: int = 0) -> int:
    """`sample_seed`, given what `epoch_seed` returned: this is what each sample pays."""
    if type(index) is not int or not -(1 << 63) <= index < 1 << 63:
        index = key_number(index)
    # `nth` written out, for a call costs as much as what it does.
    number = base + 0x9E3779B97F4A7C15 * (index + 1) & 0xFFFFFFFFFFFFFFFF
    product = (number ^ 0x6A09E667F3BCC908) * (number ^ 0xBB67AE8584CAA73B)
    mixed = (product ^ product >> 64) & 0xFFFFFFFFFFFFFFFF
    return nth(mixed, repeat) if repeat else mixed


def key_number(key: Any) -> int:
    """A number for any key: an integer itself, whatever its type, else a 64-bit digest.

    Digests exist for None, numbers, strings, bytes, enum members, paths, dates, UUIDs, classes,
    arrays and tensors, dataclasses, and sequences, mappings and sets of these. Anything else
    raises `UnstableKeyError`: ``hash()`` and ``repr()`` may differ from process to process.
    """
    try:
        number = operator.index(key)
    except TypeError:
        pass
    else:
        if -(1 << 63) <= number < 1 << 63:
            return number
    return int.from_bytes(hashlib.blake2b(_encode(key), digest_size=8).digest(), "little")


def _encode(key: Any) -> bytes:
    """Bytes that differ whenever keys differ: a tag for the kind, the length, the content."""
    tag, content = _content(key)
    return tag + struct.pack("<Q", len(content)) + content


def _content(key: Any) -> tuple[bytes, bytes]:
    match key:
        case None:
            return b"n", b""
        case enum.Enum():
            return b"e", _encode((type(key).__module__, type(key).__qualname__, key.name))
        case int():
            return b"i", str(int(key)).encode()
        case float():
            return b"f", struct.pack("<d", key)
        case str():
            return b"s", key.encode("utf-8", "surrogatepass")
        case bytes() | bytearray() | memoryview():
            return b"b", bytes(key)
        case PurePath():
            return b"p", key.as_posix().encode("utf-8", "surrogatepass")
        case type():
            return b"t", _encode((key.__module__, key.__qualname__))
        case tuple() | list():
            return b"l", _encode_all(key)
        case Set():
            return b"u", b"".join(sorted(map(_encode, key)))
        case Mapping():
            return b"m", b"".join(sorted(map(_encode, key.items())))
        case _ if dataclasses.is_dataclass(key):
            fields = [(f.name, getattr(key, f.name)) for f in dataclasses.fields(key)]
            return b"d", _encode((type(key).__module__, type(key).__qualname__, fields))
        case _ if isinstance(key, _PLAIN):
            return b"r", _encode((type(key).__qualname__, repr(key)))
        # Tensors, numpy's arrays and scalars, and whatever imitates them.
        case _ if hasattr(key, "dtype") and hasattr(key, "tolist"):
            value = key.tolist()
            if value is not key:
                return b"a", _encode((str(key.dtype), value))
    raise UnstableKeyError(
        f"a sampler's key of type {type(key).__module__}.{type(key).__qualname__} has no stable "
        "digest from which to seed its sample; numbers, strings, paths, enum members, dataclasses "
        "and tuples of these have one"
    )


def _encode_all(keys: Iterable[Any]) -> bytes:
    return b"".join(map(_encode, keys))
