from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lifetime.support import Gate


@pytest.fixture(autouse=True)
def nothing_is_held() -> Iterator[None]:
    """A test that fails must not keep workers, and with them the next tests, waiting."""
    yield
    while Gate.made:
        Gate.made.pop().let_go()


@pytest.fixture(autouse=True)
def on_threads(threads_by_default: None) -> None:
    """These tests look into worker threads, or count what samples do."""
