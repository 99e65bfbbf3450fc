"""The training: that it learns, and that its measurements are true.

Each runs in a child process, as in the demo: making one of torch's optimizers turns the GIL of a
free-threaded interpreter on, which would be of no use to the tests that come after these.
"""

import itertools
import time
from pathlib import Path

import pytest

from minato_async.cli.demo.child_process import run_child
from minato_async.cli.demo.dataset import PhotoCrops
from minato_async.cli.demo.loaders import make_loader
from minato_async.cli.demo.messages import Task
from minato_async.cli.demo.options import LOADERS
from minato_async.cli.demo.training import Seen, most_at_once


def run(pictures: Path, loader: str, epochs: int = 1, samples: int = 24, workers: int = 2) -> Seen:
    """Train on the pictures in batches of 5."""
    paths = tuple(str(path) for path in sorted(pictures.iterdir()))
    task = Task(loader, paths, workers, epochs, 5, samples, seed=3)
    return run_child(task, on_batch=lambda batches: None).result.seen


def test_every_loader_gives_the_training_the_same_samples(pictures: Path) -> None:
    seen = [run(pictures, loader, epochs=2) for loader in LOADERS]

    assert {(one.samples, one.batches) for one in seen} == {(48, 10)}
    assert len({one.checksum for one in seen}) == 1
    assert all(len(one.first_batch) == 2 and len(one.gaps) == 8 for one in seen)
    assert all(1 <= one.most_at_once <= 2 for one in seen)


def test_in_order_the_whole_training_is_the_same(pictures: Path) -> None:
    first, second = (run(pictures, "torch", workers=workers) for workers in (1, 2))

    assert (first.loss, first.accuracy) == (second.loss, second.accuracy)


def test_the_network_learns_and_the_times_add_up(pictures: Path) -> None:
    begin = time.perf_counter()
    seen = run(pictures, "minato", epochs=4, samples=60)
    elapsed = time.perf_counter() - begin

    assert seen.accuracy > 0.6  # By chance: 0.25.
    assert seen.loss < 1.0  # By chance: 1.39.
    assert 0 < seen.waited < seen.seconds < elapsed
    assert sum(seen.first_batch) + sum(seen.gaps) < seen.seconds
    assert seen.checksum != run(pictures, "minato", epochs=4, samples=59).checksum


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
