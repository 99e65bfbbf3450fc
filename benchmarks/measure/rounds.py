"""Rounds of several contenders, interleaved in one process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.measure.settle import Settler
from benchmarks.report import Report
from minato_async.cli.measure import rounds as shared
from minato_async.cli.measure.epoch import Epoch

Row = shared.Row[Epoch]
Rows = dict[str, Row]


@dataclass(frozen=True)
class Contender:
    """Something that runs one epoch: a peer with its workload, or the loader itself.

    ``run`` builds everything it needs, consumes one epoch, checks it, and returns it. ``rounds``:
    only in so many, the first ones, for what decides no figure and is shown beside.
    """

    name: str
    run: Callable[[], Epoch]
    rounds: int | None = None


def interleave(contenders: Sequence[Contender], rounds: int, report: Report, work: str) -> Rows:
    """Run ``rounds`` rounds and return the rows by contender's name.

    A contender that raises fails its own row, for good; the others go on. ``work`` names the
    workload in progress messages and in the JSON.
    """
    rows: Rows = {contender.name: Row(contender.name) for contender in contenders}
    settler = Settler()
    for number, contender in shared.turns(contenders, rounds):
        row = rows[contender.name]
        if row.error is None and (contender.rounds is None or number < contender.rounds):
            _run_one(contender, row, settler, report, f"{work}, round {number + 1}/{rounds}")
    report.raw[work] = {
        row.name: {"error": row.error, "epochs": [epoch.as_json() for epoch in row.found]}
        for row in rows.values()
    }
    return rows


def _run_one(contender: Contender, row: Row, settler: Settler, report: Report, where: str) -> None:
    for left in settler.settle():
        report.note(f"{left} was still there before {contender.name} ({where})")
    try:
        epoch = contender.run()
    except Exception as error:
        row.error = f"{type(error).__name__}: {error}"
        report.progress(traceback.format_exc())
        report.note(f"{contender.name} failed ({where}): {row.error}")
        return
    row.found.append(epoch)
    report.progress(f"{where}: {contender.name} {epoch.seconds:.3f} s, {epoch.rate:.1f} samples/s")
