"""The training: that it learns, and that its measurements are true.

All run in one child process: making one of torch's optimizers turns the GIL of a free-threaded
interpreter on, which would be of no use to the tests that come after these.
"""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from minato_async.cli.demo.dataset import PhotoCrops
from minato_async.cli.demo.loaders import make_loader
from minato_async.cli.demo.options import LOADERS
from minato_async.cli.demo.training import Task, Training, most_at_once

#: Loader, workers, epochs and samples of a training.
Kind = tuple[str, int, int, int]
#: What each saw, and the seconds that it took.
Trained = dict[Kind, tuple[Training, float]]

ONE_WORKER, TWO_WORKERS = ("torch", 1, 1, 24), ("torch", 2, 1, 24)
LONG, ONE_SAMPLE_LESS = ("minato", 2, 4, 60), ("minato", 2, 4, 59)
EVERY_LOADER = [(loader, 2, 2, 24) for loader in LOADERS]
KINDS: list[Kind] = [*EVERY_LOADER, ONE_WORKER, TWO_WORKERS, LONG, ONE_SAMPLE_LESS]


@pytest.fixture(scope="module")
def trained(same_pictures: Path) -> Trained:
    """All trainings, on the pictures in batches of 5."""
    paths = tuple(str(path) for path in sorted(same_pictures.iterdir()))
    tasks = [
        Task(loader, paths, workers, epochs, 5, samples, seed=3)
        for loader, workers, epochs, samples in KINDS
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.trainings"],
        env=os.environ | {"PYTHON_GIL": "0"},  # as the demo has it; an ordinary Python heeds it not
        input=json.dumps([asdict(task) for task in tasks]),
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert done.returncode == 0, done.stderr
    found = [(Training(**seen), seconds) for seen, seconds in json.loads(done.stdout)]
    return dict(zip(KINDS, found, strict=True))


def test_every_loader_gives_the_training_the_same_samples(trained: Trained) -> None:
    seen = [trained[kind][0] for kind in EVERY_LOADER]

    assert {(one.samples, one.batches) for one in seen} == {(48, 10)}
    assert len({one.checksum for one in seen}) == 1
    assert all(len(one.first_batch) == 2 and len(one.gaps) == 8 for one in seen)
    assert all(1 <= one.most_at_once <= 2 for one in seen)


def test_in_order_the_whole_training_is_the_same(trained: Trained) -> None:
    first, second = (trained[kind][0] for kind in (ONE_WORKER, TWO_WORKERS))

    assert (first.loss, first.accuracy) == (second.loss, second.accuracy)


def test_the_network_learns_and_the_times_add_up(trained: Trained) -> None:
    seen, elapsed = trained[LONG]

    assert seen.accuracy > 0.6  # By chance: 0.25.
    assert seen.loss < 1.0  # By chance: 1.39.
    assert 0 < seen.waited < seen.seconds < elapsed
    assert sum(seen.first_batch) + sum(seen.gaps) < seen.seconds
    assert seen.checksum != trained[ONE_SAMPLE_LESS][0].checksum


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2)], 1),  # One begins as the other ends.
        ([(0, 3), (1, 2), (1.5, 4)], 3),
        ([(0, 10), (1, 2), (3, 4)], 2),
    ],
)
def test_overlapping_spans_are_counted(spans: list[tuple[float, float]], most: int) -> None:
    assert all(most_at_once(order) == most for order in itertools.permutations(spans))


def test_an_unknown_loader_is_refused(pictures: Path) -> None:
    dataset = PhotoCrops(sorted(pictures.iterdir()), samples=4, seed=1)

    with pytest.raises(ValueError, match="no loader 'other'"):
        make_loader("other", dataset, batch_size=2, workers=1)
