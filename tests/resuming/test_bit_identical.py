"""An epoch that is interrupted at any batch goes on in another process, bit for bit."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.resuming import loaders

#: How the epoch was loaded, and how what is left of it.
PAIRS = [
    ("serial", "threads"),
    ("threads", "processes"),
    ("processes", "serial"),
    ("threads", "more threads"),
]


class Interrupted:
    """A run of each kind of loader, and what other processes make of its states."""

    def __init__(self, folder: Path, one: str, other: str) -> None:
        runs = {kind: loaders.uninterrupted(kind, one) for kind in loaders.KINDS}
        self.epochs = {kind: epochs for kind, (epochs, _) in runs.items()}
        #: After how many batches each was interrupted, the end of the epoch last.
        self.received = {
            kind: _some(len(saved)) if other == "processes" else list(range(len(saved)))
            for kind, (_, saved) in runs.items()
        }
        some = {kind: [runs[kind][1][n] for n in self.received[kind]] for kind in runs}
        states, results = folder / "states", folder / "results"
        states.write_bytes(pickle.dumps(some))
        command = [sys.executable, "-m", "tests.resuming.resume_all"]
        subprocess.run([*command, str(states), str(results), other], check=True, timeout=170)
        self.resumed = pickle.loads(results.read_bytes())


def _some(states: int) -> list[int]:
    """To start workers for every state takes a minute: the first, the last two, some between."""
    return sorted({0, 1, states // 2, states - 2, states - 1})


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def interrupted(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Interrupted:
    return Interrupted(tmp_path_factory.mktemp("states"), *request.param)


@pytest.mark.parametrize("kind", loaders.KINDS)
def test_the_rest_and_the_next_epoch_are_the_same(interrupted: Interrupted, kind: str) -> None:
    first, following = interrupted.epochs[kind][1:3]
    resumed = zip(interrupted.received[kind], interrupted.resumed[kind], strict=True)
    for received, (rest, then) in list(resumed)[:-1]:
        assert plain(first[:received] + rest) == plain(first), f"after {received} batches"
        assert plain(then) == plain(following), f"the epoch after, resumed after {received}"


@pytest.mark.parametrize("kind", loaders.KINDS)
def test_after_the_end_comes_the_next_epoch(interrupted: Interrupted, kind: str) -> None:
    after_the_end, _ = interrupted.resumed[kind][-1]
    assert plain(after_the_end) == plain(interrupted.epochs[kind][2])


def plain(batches: Any) -> Any:
    if hasattr(batches, "tolist"):
        return batches.tolist()
    return [plain(part) for part in batches] if isinstance(batches, list) else batches
