"""scheduler: how many workers each worker scheduler runs, and what that loads.

Four workloads: samples that compute, samples that wait, a consumer that is slower than the loader,
and a load that changes while it runs. For each, fixed numbers of workers are swept; then the best
of them and "throughput" run in turn, and "paper" once. Each run of "throughput" is held against the
mean of the fixed runs before and after it, since the machine's speed drifts. An adaptive scheduler
gets three seconds from the start and from each change, as stated; then its rate is compared with
that of the best fixed number, which would have to be known before. Where the consumer is the slower
one, many numbers are best alike: there the smallest that keeps up is taken, and the number of
workers that "throughput" ends with is shown against it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.figures import Figure, at_least
from benchmarks.measure.pauses import PauseWatch
from benchmarks.measure.settle import Settler
from benchmarks.report import Report
from benchmarks.target import Options, Target
from benchmarks.workloads.busy import calibrate, python_work
from benchmarks.workloads.changing import Changing, Phase
from minato_async.cli.measure.statistics import Spread, paired, spread
from minato_async.cli.measure.table import Table

BATCH_SIZE = 8
ADAPTS = 3.0
"""Seconds that a scheduler has to find its number."""
SETTLES = 0.5
"""Seconds after which a fixed number has reached its rate, in the sweep. Beside the others the same
seconds are measured of all."""
MEASURED = 1.5
"""Seconds over which a rate is measured, in each phase."""
SWEEP, QUICK_SWEEP = (2, 4, 8, 16, 32), (2, 8)
ROUNDS = 2
TRIES = 4
GOAL = 0.95
KEEPS_UP = 0.98
"""Of the best rate: a smaller number of workers that reaches it is preferred."""

COMPUTES = Phase(0.0, computes=0.005)
WAITS = Phase(0.0, waits=0.020)


@dataclass(frozen=True)
class Workload:
    """What samples cost, phase by phase, and how long the consumer takes for a batch."""

    phases: Sequence[Phase]
    workers: int = 4
    step: float = 0.0


WORKLOADS = {
    "computing": Workload((COMPUTES,)),
    "waiting": Workload((WAITS,)),
    "slow-consumer": Workload((Phase(0.0, waits=0.008),), workers=16, step=0.020),
    "changing": Workload((COMPUTES, WAITS, COMPUTES)),
}


@dataclass
class Run:
    """One run: samples a second that are finished, or that the consumer takes where it is the
    slower one, and CPU seconds a second inside samples, in each phase, once settled; and how many
    workers ran when."""

    rates: list[float]
    cpu: list[float]
    trace: list[tuple[float, int]]
    seconds: float

    @property
    def rate(self) -> float:
        """Over all phases, of one length each: the same number of samples in each, so the harmonic
        mean."""
        # Next to nothing rather than nothing: it is divided by.
        return len(self.rates) / sum(1.0 / max(rate, 1e-3) for rate in self.rates)

    def workers_at(self, seconds: float) -> int:
        return [workers for since, workers in self.trace if since <= seconds][-1]


def _between(moments: Sequence[float], samples: int, start: float, end: float) -> float:
    """Samples a second between two moments, if there were so many at each of `moments`."""
    inside = [moment for moment in moments if start <= moment <= end]
    if not inside:
        return 0.0
    # Some that come together must not make a rate of their own.
    return (len(inside) - 1) * samples / max(inside[-1] - inside[0], (end - start) / 2)


def _run(
    workload: Workload, scheduler: str, workers: int, speed: float, settles: float, measured: float
) -> Run:
    from minato_async import MinatoLoader

    length = settles + measured
    phases = [Phase(length, phase.computes, phase.waits) for phase in workload.phases]
    dataset = Changing(phases, speed)
    loader = MinatoLoader(
        dataset,
        batch_size=BATCH_SIZE,
        num_workers=workers,
        in_order=False,
        scheduler=scheduler,
        max_workers=None if scheduler == "fixed" else max(SWEEP),
        # Torch's window for the most workers there are, in every run: what is compared are
        # numbers of workers and not windows.
        max_queue_size=2 * max(SWEEP) * BATCH_SIZE,
    )
    arrivals: list[float] = []
    iterator = iter(loader)
    dataset.begin()
    clock, began = time.perf_counter, dataset.began
    end = began + length * len(phases)
    while clock() < end:
        next(iterator)
        arrivals.append(clock() - began)
        if workload.step:
            time.sleep(workload.step)
    seconds, trace = clock() - began, [(0.0, workers), *iterator.stats.worker_history]
    iterator.close()
    starts = [number * length + settles for number in range(len(phases))]
    if workload.step:
        # What fills the window is finished faster than the consumer ever takes it.
        moments, samples = arrivals, BATCH_SIZE
    else:
        moments, samples = sorted(moment for moment, _ in dataset.used), 1
    rates = [_between(moments, samples, start, start + measured) for start in starts]
    used = [
        sum(cpu for moment, cpu in dataset.used if start <= moment <= start + measured) / measured
        for start in starts
    ]
    return Run(rates, used, trace, seconds)


def _best(swept: dict[int, Run]) -> int:
    """The smallest number of workers that is as good as the best."""
    top = max(run.rate for run in swept.values())
    return min(workers for workers, run in swept.items() if run.rate >= KEEPS_UP * top)


def _measure(name: str, options: Options, speed: float, report: Report) -> Figure:
    workload, settler = WORKLOADS[name], Settler()

    def run(scheduler: str, workers: int, settles: float = ADAPTS) -> Run:
        length = (0.05, 0.3) if options.quick else (settles, MEASURED)
        for _ in range(TRIES):
            settler.settle()
            with PauseWatch() as watch:
                found = _run(workload, scheduler, workers, speed, *length)
            report.progress(f"{name}: {scheduler} from {workers}: {found.rate:.0f} samples/s")
            if not watch.paused:
                break
            report.note(f"{name}: the process stood still for {watch.longest:.1f} s, run repeated")
        return found

    sweep = QUICK_SWEEP if options.quick else SWEEP
    swept = {workers: run("fixed", workers, SETTLES) for workers in sweep}
    best = _best(swept)
    fixed, ours = [run("fixed", best)], []
    for _ in range(options.rounds_or(ROUNDS)):
        ours.append(run("throughput", workload.workers))
        fixed.append(run("fixed", best))
    paper = [run("paper", workload.workers)]
    around = [(one.rate + other.rate) / 2 for one, other in pairwise(fixed)]
    ratio = paired([run.rate for run in ours], around)
    rows = {f"fixed {best}": fixed, "throughput": ours, "paper": paper}
    _tables(name, swept, rows, ratio, report)
    return at_least(name, ratio.median, GOAL)


def _tables(
    name: str, swept: dict[int, Run], rows: dict[str, list[Run]], ours: Spread, report: Report
) -> None:
    report.raw[name] = {
        "sweep": {workers: run.rates for workers, run in swept.items()},
        "rows": {
            row: [{"rates": run.rates, "cpu": run.cpu, "trace": run.trace} for run in runs]
            for row, runs in rows.items()
        },
    }
    sweep = Table(f"{name}: fixed numbers of workers", ("workers", *map(str, swept)))
    sweep.rows.append(("samples/s", *(f"{run.rate:.0f}" for run in swept.values())))
    report.table(sweep)
    (fixed_name, fixed), *_ = rows.items()
    table = Table(
        f"{name}: samples/s once settled, against {fixed_name}",
        (
            "scheduler",
            "samples/s",
            "in each phase",
            "CPUs in samples",
            "of the best fixed",
            "changes",
        ),
    )
    for row, runs in rows.items():
        middle = spread(r.rate for r in fixed).median
        ratio = ours if row == "throughput" else spread(run.rate / middle for run in runs)
        phases = " ".join(f"{rate:.0f}" for rate in runs[-1].rates)
        cpu = " ".join(f"{used:.2f}" for used in runs[-1].cpu)
        changes = len(runs[-1].trace) - 1
        rate = spread(run.rate for run in runs).text(0)
        table.rows.append((row, rate, phases, cpu, ratio.text(3), str(changes)))
    report.table(table)
    adaptive = [(row, runs[-1]) for row, runs in rows.items() if row != fixed_name]
    seconds = adaptive[0][1].seconds
    moments = [seconds * number / 20 for number in range(21)]
    trace = Table(f"{name}: workers, second by second", ("s", *(f"{m:.1f}" for m in moments)))
    for row, run in adaptive:
        trace.rows.append((row, *(str(run.workers_at(moment)) for moment in moments)))
    report.table(trace)


def run(options: Options, report: Report) -> None:
    """Measure the four workloads, or those asked for, one after the other."""
    speed = calibrate(python_work)
    for name in options.parts or WORKLOADS:
        report.figures.append(_measure(name, options, speed, report))


TARGET = Target(
    "scheduler",
    'the "throughput" scheduler against the best fixed number of workers',
    ">= 0.95 of its rate on every workload, once 3 s have passed",
    run,
    parts=tuple(WORKLOADS),
)
