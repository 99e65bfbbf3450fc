"""Fixtures that run a case on several loaders."""

from __future__ import annotations

import pytest

from tests.cases import kinds
from tests.loaders import LoaderKind


def _name(kind: LoaderKind) -> str:
    return kind.name


@pytest.fixture(params=kinds.WORKERS, ids=_name)
def workers(request: pytest.FixtureRequest) -> LoaderKind:
    """Our loader with workers, on each executor."""
    kind: LoaderKind = request.param
    return kind


@pytest.fixture(params=kinds.OURS, ids=_name)
def ours(request: pytest.FixtureRequest) -> LoaderKind:
    """Our loader, with workers and without."""
    kind: LoaderKind = request.param
    return kind


@pytest.fixture(params=kinds.PARALLEL, ids=_name)
def parallel(request: pytest.FixtureRequest) -> LoaderKind:
    """torch's worker processes, and our workers."""
    kind: LoaderKind = request.param
    return kind


@pytest.fixture(params=kinds.ALL, ids=_name)
def any_loader(request: pytest.FixtureRequest) -> LoaderKind:
    """torch's loader without workers, and ours with and without."""
    kind: LoaderKind = request.param
    return kind


@pytest.fixture(params=kinds.EVERY, ids=_name)
def every_loader(request: pytest.FixtureRequest) -> LoaderKind:
    """torch's loader and ours, each with workers and without."""
    kind: LoaderKind = request.param
    return kind
