"""Checks that an epoch delivered what it had to: equal work, or the row does not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from minato_async.cli.measure.epoch import Receipt


class CheckFailed(AssertionError):
    """A loader did not do the work it was measured for; its row fails."""


def check_exactly_once(delivered: Iterable[int], expected: Iterable[int]) -> None:
    """The delivered indices, as a multiset, are the expected ones."""
    got, due = Counter(delivered), Counter(expected)
    if got == due:
        return
    missing = sorted((due - got).elements())
    extra = sorted((got - due).elements())
    raise CheckFailed(
        f"not exactly once: {len(missing)} missing {missing[:5]}, {len(extra)} extra {extra[:5]}"
    )


def check_order(delivered: Sequence[int], expected: Sequence[int]) -> None:
    """The delivered indices are the expected ones in the same order."""
    if list(delivered) == list(expected):
        return
    for place, (got, due) in enumerate(zip(delivered, expected, strict=False)):
        if got != due:
            raise CheckFailed(f"not in order: index {got} at position {place}, {due} was due")
    raise CheckFailed(f"not in order: {len(delivered)} samples, {len(expected)} were due")


def check_receipt(receipt: Receipt, length: int, *, ordered: bool = False) -> None:
    """An epoch over indices 0 to ``length`` − 1: exactly once, and in that order if asked.

    A receipt without indices (trivial samples) is checked by its count alone.
    """
    if receipt.samples != length:
        raise CheckFailed(f"{receipt.samples} samples delivered, {length} were due")
    if receipt.indices:
        if ordered:
            check_order(receipt.indices, range(length))
        check_exactly_once(receipt.indices, range(length))
