"""Fixtures of the tests of torch's semantics."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_threads(threads_by_default: None) -> None:
    """Tests that do not say what loads count what samples do, in their own process."""
