"""Defaults for jobs that the deadline watch leaves alone."""

from __future__ import annotations


class UnwatchedJob:
    """A job without samples that could be slow one by one."""

    __slots__ = ()

    @property
    def elapsed(self) -> float:
        return 0.0

    def hand_off(self) -> bool:
        return False

    def conclude(self) -> None:
        """Nothing is left to be done."""

    def expire(self, seconds: float) -> bool:
        return False
