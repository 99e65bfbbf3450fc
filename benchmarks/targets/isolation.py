"""isolation (P10): what the isolation of random state costs a sample.

Measured on a thread of its own, as workers are: what it costs to run Python there on objects that
another thread made is part of the price. Each case runs twice in turn, many times over in short
pieces, without isolation and with it, and before all that without this package; a figure is the
difference of the fastest pieces, with isolation and without the package, for what else the machine
does can only add. Time is the thread's own, on a CPU.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.figures import at_most
from benchmarks.report import Report
from benchmarks.target import Options, Target
from minato_async.cli.measure.table import Table
from minato_async.seeding import SampleStreams, epoch_seed, install, seed_in_epoch

SAMPLES = 200
"""Samples in one piece, some milliseconds in all."""
PIECES = 400
ROUNDS = 3
QUICK = 2
"""Pieces, to try the code."""
TENSORS = [torch.zeros(4), torch.zeros(4)]

Draw = Callable[[], Any]
Found = TypeVar("Found")


def _nothing() -> None:
    pass


def _cases() -> dict[str, Draw]:
    """What a sample does."""
    x = torch.zeros(4)
    stack, rand = torch.stack, torch.rand
    # The module's names are looked up at every call, as transforms do.
    return {
        "draws nothing": _nothing,
        "random": lambda: random.random(),
        "numpy": lambda: np.random.random(),
        "torch": lambda: rand(1),
        "all three": lambda: (random.random(), np.random.random(), rand(1)),
        "numpy, an array": lambda: np.random.random(1),
        "all three, arrays": lambda: (random.random(), np.random.random(1), rand(1)),
        "torch.stack": lambda: stack(TENSORS),
        "torch.rand": lambda: rand(1),
        "tensor.uniform_": lambda: x.uniform_(),
        "tensor.shape": lambda: x.shape,
        "F.pad": lambda: torch.nn.functional.pad(x, (1, 1)),
    }


def _floor(pieces: int) -> dict[str, float]:
    """Fastest seconds of what no isolation by these means can do without."""
    generator, state, rand = torch.Generator(), np.random.RandomState(), torch.rand
    draws: dict[str, Draw] = {
        "torch.Generator.manual_seed": lambda: generator.manual_seed(1),
        "RandomState.seed": lambda: state.seed(1),
        "torch.rand with generator=": lambda: rand(1, generator=generator),
        "torch.rand without": lambda: rand(1),
    }
    return {name: _fastest(draw, pieces) for name, draw in draws.items()}


def _untouched(pieces: int) -> dict[str, float]:
    """Fastest seconds of each case, to be measured before anything is replaced."""
    return {name: _fastest(draw, pieces) for name, draw in _cases().items()}


def _fastest(draw: Draw, pieces: int) -> float:
    return min(_piece(draw, SAMPLES) for _ in range(pieces))


ONE_SAMPLE = ("torch.stack", "torch.rand", "tensor.uniform_", "tensor.shape", "F.pad")
"""Cases that repeat one call within one sample; in the others each call is a sample."""


def _piece(draw: Draw, samples: int) -> float:
    """Seconds for a sample, without isolation."""
    began = time.thread_time()
    for _ in range(samples):
        draw()
    return (time.thread_time() - began) / samples


def _isolated_piece(draw: Draw, samples: int, streams: SampleStreams, every: bool) -> float:
    """Seconds for a sample, with isolation, and a new ticket for every one or one for all."""
    with streams.active():
        streams.begin(functools.partial(seed_in_epoch, epoch_seed(1, 0)))
        if not every:
            streams.ticket = 0
            draw()
            return _piece(draw, samples)
        began = time.thread_time()
        for row in range(samples):
            streams.ticket = row
            draw()
        return (time.thread_time() - began) / samples


def _measure(pieces: int) -> dict[str, tuple[float, float]]:
    """Fastest seconds for a sample of each case: without and with isolation."""
    streams = SampleStreams()
    found = {}
    for name, draw in _cases().items():
        every = name not in ONE_SAMPLE
        plain = isolated = float("inf")
        for _ in range(pieces):
            plain = min(plain, _piece(draw, SAMPLES))
            isolated = min(isolated, _isolated_piece(draw, SAMPLES, streams, every))
        found[name] = plain, isolated
    return found


def _on_a_thread(work: Callable[[int], Found], pieces: int) -> Found:
    found: list[Found] = []
    thread = threading.Thread(target=lambda: found.append(work(pieces)))
    thread.start()
    thread.join()
    return found[0]


def run(options: Options, report: Report) -> None:
    """Measure all cases; the figures are microseconds a sample, or a call of torch."""
    rounds = []
    pieces = QUICK if options.quick else PIECES
    floor = {name: value * 1e6 for name, value in _on_a_thread(_floor, pieces).items()}
    untouched = _on_a_thread(_untouched, pieces)
    install()
    for number in range(options.rounds_or(ROUNDS)):
        rounds.append(_on_a_thread(_measure, pieces))
        report.progress(f"round {number + 1} done")
    report.raw["seconds without and with isolation"] = rounds
    report.raw["seconds without this package"] = untouched
    cost: dict[str, float] = {}
    table = Table(
        "microseconds, the fastest of all rounds",
        ("a sample that draws from", "untouched", "without isolation", "with it", "cost"),
    )
    for name in rounds[0]:
        plain, isolated = (min(found[name][side] for found in rounds) * 1e6 for side in (0, 1))
        before = untouched[name] * 1e6
        cost[name] = isolated - before
        label = f"one call: {name}" if name in ONE_SAMPLE else name
        numbers = (before, plain, isolated, cost[name])
        table.rows.append((label, *(f"{number:.2f}" for number in numbers)))
    report.table(table)
    report.raw["floor"] = floor
    parts = ", ".join(f"{name} {value:.2f}" for name, value in floor.items())
    report.note(f"of which, by themselves: {parts}")
    report.note("F.pad stands for torch's functions in Python; without isolation: on other threads")
    report.figures += [
        at_most("quiet_us", cost["draws nothing"], 0.2),
        at_most("all_three_us", cost["all three"], 6.0),
        at_most("stack_us", cost["torch.stack"], 1.5),
        at_most("rand_us", cost["torch.rand"], 1.5),
        at_most("uniform_us", cost["tensor.uniform_"], 1.5),
    ]


TARGET = Target(
    "isolation",
    "what the isolation of random state costs a sample, and a call of torch",
    "6 us for a sample that draws from all, 1.5 us a torch call",
    run,
    number="P10",
)
