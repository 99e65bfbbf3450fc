"""The demo from its first line to its last."""

import time
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console

from minato_async.cli.demo.child_process import Measurement, MeasurementError, run_child
from minato_async.cli.demo.dataset import PhotoCrops
from minato_async.cli.demo.messages import Task
from minato_async.cli.demo.options import LOADERS, DemoOptions
from minato_async.cli.demo.photos import NoPhotosError, Photo, find_photos
from minato_async.cli.demo.progress import Display
from minato_async.cli.demo.report import (
    make_console,
    print_gil_note,
    print_plan,
    print_report,
    say,
)
from minato_async.cli.demo.summary import SPEED, Row, complaints, sentence
from minato_async.cli.machine import Machine

_PROBES_PER_PHOTO = 3


def run_demo(options: DemoOptions) -> int:
    """Measure every loader in every round and report.

    Args:
        options: What the user asked for.

    Returns:
        0; 1 if a loader failed or the comparison was not of equal work; 2 without photos.
    """
    console = make_console()
    print_gil_note(console)
    machine, began = Machine.here(), datetime.now().astimezone()
    try:
        photos = find_photos(options.photos)
    except NoPhotosError as error:
        say(console, f"No photos to train on: {error}.", style="red")
        return 2
    print_plan(console, options, photos, _sample_costs(options, photos))

    rows, failures = _measure(console, options, photos)
    print_report(console, options, rows, machine, began)
    unequal = complaints(rows, options.workers)
    console.print()
    for loader, why in failures.items():
        say(console, f"{LOADERS[loader]} failed: {why}", style="red")
    for complaint in unequal:
        say(console, f"Not a fair comparison: {complaint}.", style="red")
    if rows and not unequal:
        say(console, _equal_work(rows))
        console.print()
    say(console, sentence(rows), style="bold")
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
    console: Console, options: DemoOptions, photos: Sequence[Photo]
) -> tuple[dict[str, Row], dict[str, str]]:
    """Measure in interleaved rounds; return the rows, and why those that failed did."""
    measured: dict[str, list[Measurement]] = {loader: [] for loader in options.loaders}
    failures: dict[str, str] = {}
    trainings = options.rounds * len(options.loaders)
    done = 0
    with Display(console, trainings, options.epochs * options.batches) as display:
        for number in range(options.rounds):
            for loader in _turns(options.loaders, number):
                done += 1
                title = f"{done}/{trainings} {LOADERS[loader]}"
                display.start(title)
                if loader in failures:
                    display.finish(f"{title}: left out, it failed before")
                    continue
                try:
                    found = run_child(_task(loader, options, photos), display.on_batch)
                except MeasurementError as error:
                    failures[loader] = str(error)
                    display.finish(f"{title}: failed")
                    continue
                measured[loader].append(found)
                seconds = found.result.seen.seconds
                display.finish(f"{title}: {SPEED.text(SPEED.of(found))} samples/s, {seconds:.1f} s")
    rows = {
        loader: Row(loader, rounds) for loader, rounds in measured.items() if loader not in failures
    }
    return rows, failures


def _turns(loaders: Sequence[str], number: int) -> list[str]:
    """Return the order of a round: each begins one place further, so nobody is always first."""
    shift = number % len(loaders)
    return [*loaders[shift:], *loaders[:shift]]


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
    seen = next(iter(rows.values())).rounds[0].result.seen
    most = max(m.result.seen.most_at_once for row in rows.values() for m in row.rounds)
    return (
        f"Equal work: every training saw the same {seen.samples} samples in {seen.batches} "
        f"batches, pixel for pixel; never more than {most} samples were made at once."
    )
