"""The demo from its first line to its last."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime

from tqdm import tqdm

from minato_async.cli.demo.dataset import PhotoCrops
from minato_async.cli.demo.options import LOADERS, DemoOptions
from minato_async.cli.demo.photos import NoPhotosError, Photo, find_photos
from minato_async.cli.demo.report import (
    print_gil_note,
    print_plan,
    print_report,
    say,
)
from minato_async.cli.demo.summary import SPEED, Row, complaints, sentence
from minato_async.cli.demo.training import Task, Training
from minato_async.cli.machine import Machine, gil_setting, gil_state
from minato_async.cli.measure.child import SILENCE, ChildFailed, call_in_child, interpreter
from minato_async.cli.measure.memory import PeakMemory
from minato_async.cli.measure.rounds import turns

_PROBES_PER_PHOTO = 3


def run_demo(options: DemoOptions) -> int:
    """Measure every loader in every round and report.

    Returns 0; 1 if a loader failed or the comparison was not of equal work; 2 without photos.
    """
    print_gil_note()
    machine, began = Machine.here(), datetime.now().astimezone()
    try:
        photos = find_photos(options.photos)
    except NoPhotosError as error:
        say(f"No photos to train on: {error}.")
        return 2
    print_plan(options, photos, _sample_costs(options, photos))

    rows, failures = _measure(options, photos)
    print_report(options, rows, machine, began)
    unequal = complaints(rows, options.workers)
    print()
    for loader, why in failures.items():
        say(f"{LOADERS[loader]} failed: {why}")
    for complaint in unequal:
        say(f"Not a fair comparison: {complaint}.")
    if rows and not unequal:
        say(_equal_work(rows))
        print()
    say(sentence(rows))
    return 1 if failures or unequal else 0


def _sample_costs(options: DemoOptions, photos: Sequence[Photo]) -> list[float]:
    """Return the CPU seconds that some samples take, made one after the other."""
    dataset = PhotoCrops([photo.path for photo in photos], len(photos), options.seed)
    costs: list[float] = []
    for epoch in range(_PROBES_PER_PHOTO):
        dataset.set_epoch(epoch)
        for index in range(len(photos)):
            begin = time.thread_time()
            dataset[index]
            costs.append(time.thread_time() - begin)
    return costs


def _measure(
    options: DemoOptions, photos: Sequence[Photo]
) -> tuple[dict[str, Row], dict[str, str]]:
    """Measure in interleaved rounds; return the rows, and why those that failed did."""
    rows = {loader: Row(LOADERS[loader]) for loader in options.loaders}
    trainings, batches = options.rounds * len(rows), options.epochs * options.batches
    tqdm.monitor_interval = 0  # Its thread would look at the bar beside what is measured.
    # On a terminal only. Drawing takes CPU time from what is measured: seldom is often enough.
    with tqdm(
        total=trainings * batches, unit="batch", mininterval=0.5, leave=False, disable=None
    ) as bar:
        for done, (_, loader) in enumerate(turns(options.loaders, options.rounds)):
            row = rows[loader]
            title = f"{done + 1}/{trainings} {row.name}"
            bar.set_description(title)

            def show(trained: int, before: int = done * batches) -> None:
                bar.update(before + trained - bar.n)

            outcome = _train(_task(loader, options, photos), row, show)
            show(batches)
            tqdm.write(f"{title}: {outcome}")
    failures = {loader: row.error for loader, row in rows.items() if row.error is not None}
    return {loader: row for loader, row in rows.items() if row.error is None}, failures


def _train(task: Task, row: Row, on_batch: Callable[[int], object]) -> str:
    """Add one training to a row; return what came of it, for people."""
    if row.error is not None:
        return "left out, it failed before"
    try:
        training = train_in_child(task, on_batch)
    except ChildFailed as error:
        row.error = error.reason
        return "failed"
    row.found.append(training)
    return f"{SPEED.text(SPEED.of(training))} samples/s, {training.seconds:.1f} s"


def train_in_child(
    task: Task, on_batch: Callable[[int], object], silence: float = SILENCE
) -> Training:
    """Train under one loader in a fresh process, and watch its memory.

    A free-threaded interpreter is told to keep the GIL off, unless the user has set it: making any
    of torch's optimizers imports torch._dynamo and with it triton, where that is installed, and
    triton's extension turns the GIL on. A training script has to be started in the same way.

    Args:
        task: What to measure.
        on_batch: Called now and then with the number of batches trained on so far.
        silence: Seconds without a message after which the child is given up.

    Raises:
        ChildFailed: The child failed, or fell silent. It and its workers are gone then.
    """
    # An interpreter with the GIL knows no such option.
    unset = gil_state() != "always" and gil_setting() is None
    python = [*interpreter(), *(["-Xgil=0"] if unset else [])]
    memory = PeakMemory()
    seen = call_in_child(
        "minato_async.cli.demo.training:measure",
        python=python,
        told=on_batch,
        watch=memory.watch,
        silence=silence,
        **asdict(task),
    )
    return Training(**{**seen, "peak_memory": memory.peak})


def _task(loader: str, options: DemoOptions, photos: Sequence[Photo]) -> Task:
    return Task(
        loader=loader,
        paths=tuple(str(photo.path) for photo in photos),
        workers=options.workers,
        epochs=options.epochs,
        batch_size=options.batch_size,
        samples=options.samples,
        seed=options.seed,
    )


def _equal_work(rows: dict[str, Row]) -> str:
    """Say what was the same for all; `complaints` has found nothing against it."""
    seen = next(iter(rows.values())).found[0]
    most = max(training.most_at_once for row in rows.values() for training in row.found)
    return (
        f"Equal work: every training saw the same {seen.samples} samples in {seen.batches} "
        f"batches, pixel for pixel; never more than {most} samples were made at once."
    )
