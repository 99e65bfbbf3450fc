"""Finds the targets: every module of ``benchmarks.targets`` with a ``TARGET``."""

from __future__ import annotations

import importlib
import pkgutil

import benchmarks.targets
from benchmarks.target import Target


def find_targets() -> dict[str, Target]:
    """All targets by name, in the order of their names."""
    found: dict[str, Target] = {}
    for module in pkgutil.iter_modules(benchmarks.targets.__path__):
        target = getattr(
            importlib.import_module(f"{benchmarks.targets.__name__}.{module.name}"), "TARGET", None
        )
        if isinstance(target, Target):
            if target.name in found:
                raise ValueError(f"two targets are called {target.name!r}")
            found[target.name] = target
    return dict(sorted(found.items()))
