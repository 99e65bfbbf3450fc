"""Finds the targets: every module of ``benchmarks.targets`` with a ``TARGET``."""

from __future__ import annotations

import importlib
import pkgutil
import re

import benchmarks.targets
from benchmarks.target import Target


def find_targets() -> dict[str, Target]:
    """All targets by name: those with a number first, in its order."""
    found: dict[str, Target] = {}
    for module in pkgutil.iter_modules(benchmarks.targets.__path__):
        target = getattr(
            importlib.import_module(f"{benchmarks.targets.__name__}.{module.name}"), "TARGET", None
        )
        if isinstance(target, Target):
            if target.name in found:
                raise ValueError(f"two targets are called {target.name!r}")
            found[target.name] = target
    return {target.name: target for target in sorted(found.values(), key=_place)}


def _place(target: Target) -> tuple[float, str, str]:
    digits = re.search(r"\d+", target.number)
    return (int(digits[0]) if digits else float("inf")), target.number, target.name
