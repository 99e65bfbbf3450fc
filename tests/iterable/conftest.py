"""Fixtures of the tests of iterable datasets."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_threads(threads_by_default: None) -> None:
    """These tests look into worker threads, or count what samples do."""
