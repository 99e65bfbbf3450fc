"""How often an epoch has drawn an index before: the k of a sample's random state."""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from minato_async.seeding.keys import key_number


def may_repeat(loader: DataLoader[Any]) -> bool:
    """Whether an epoch of `loader` may draw an index more than once.

    Counting costs as much as a trivial sample does, so it is left out where torch's own samplers
    make it needless.
    """
    batch_sampler: Any = loader.batch_sampler
    sampler: Any = loader.sampler
    if batch_sampler is not None:
        if type(batch_sampler) is not BatchSampler:
            return True
        sampler = batch_sampler.sampler
    if type(sampler) is RandomSampler:
        return sampler.replacement or sampler.num_samples > len(sampler.data_source)
    return type(sampler) is not SequentialSampler


class RepeatCounter:
    """Counts the draws of each index in one epoch. Used by the consumer that draws."""

    def __init__(self) -> None:
        self._drawn: dict[Any, int] = {}

    def count(self, indices: Sequence[Any]) -> Sequence[int]:
        """For each index how often it was drawn before; empty if none was."""
        drawn = self._drawn
        repeats = []
        for index in indices:
            if type(index) is not int and type(index) is not str:
                # What has one digest has one seed. A tensor is equal to none by its hash, and a
                # list has no hash.
                try:
                    index = key_number(index)
                except Exception:  # seeded by its position, which comes once, or not at all
                    repeats.append(0)
                    continue
            before = drawn.get(index, 0)
            drawn[index] = before + 1
            repeats.append(before)
        return repeats if any(repeats) else ()

    def state(self) -> dict[str, Any]:
        """The counts, as plain values: those of integers packed, for they may be a million."""
        small = [k for k in self._drawn if type(k) is int and -(1 << 63) <= k < 1 << 63]
        counts = [self._drawn[key] for key in small]
        others = [
            [k, n]
            for k, n in self._drawn.items()
            if type(k) is str or not -(1 << 63) <= k < 1 << 63
        ]
        return {"keys": _packed(small), "counts": _packed(counts), "others": others}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from the counts in `state`."""
        self._drawn = dict(zip(_unpacked(state["keys"]), _unpacked(state["counts"]), strict=True))
        self._drawn.update((key, count) for key, count in state["others"])


def _packed(numbers: Sequence[int]) -> str:
    return base64.b64encode(zlib.compress(array("q", numbers).tobytes())).decode()


def _unpacked(packed: str) -> Sequence[int]:
    return array("q", zlib.decompress(base64.b64decode(packed)))
