"""Fixtures of the tests of slow samples."""

from __future__ import annotations

import pytest

from minato_async.scheduling.cpus import IdleCores


@pytest.fixture
def no_core_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the test, the machine seems to be busy, whatever else runs on it."""
    monkeypatch.setattr(IdleCores, "look", lambda self: 0.0)


@pytest.fixture
def cores_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the test, the machine seems to have a core to spare."""
    monkeypatch.setattr(IdleCores, "look", lambda self: 1.0)


@pytest.fixture(autouse=True)
def on_threads(threads_by_default: None) -> None:
    """These tests look into worker threads, or count what samples do."""
