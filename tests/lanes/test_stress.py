"""Random costs, steps, windows, workers, resizes, early ends, failures: exactly once in each."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from minato_async import MinatoLoader, checkpoint

from .support import PATIENCE, Made, Tally


@dataclass(frozen=True)
class Case:
    n: int
    steps: int
    batch_size: int
    workers: int
    window: int | None
    in_order: bool
    drop_last: bool
    threshold: float | None
    scheduler: str
    on_error: str
    sleeping: frozenset[int]
    failing: frozenset[int]
    wanted: tuple[int, ...]
    stop_after: int | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 40))
    indices = st.frozensets(st.integers(0, n - 1), max_size=6)
    batch_size = draw(st.integers(1, 6))
    return Case(
        n=n,
        steps=draw(st.integers(1, 4)),
        batch_size=batch_size,
        workers=draw(st.integers(1, 5)),
        window=draw(st.none() | st.integers(1, 24)),
        in_order=draw(st.booleans()),
        drop_last=draw(st.booleans()),
        threshold=draw(st.sampled_from([None, 1e-9, 1e-4, 10.0])),
        scheduler=draw(st.sampled_from(["fixed", "throughput"])),
        on_error=draw(st.sampled_from(["raise", "skip", "replace"])),
        sleeping=draw(indices),
        failing=draw(st.just(frozenset()) | indices),
        wanted=draw(st.lists(st.integers(1, 6), max_size=4).map(tuple)),
        stop_after=draw(st.none() | st.integers(0, 6)),
    )


class Bad(Exception):
    pass


def replaced(index: int, error: BaseException) -> int:
    return -1 - index


def make_loader(case: Case, tally: Tally) -> MinatoLoader[Any]:
    last = case.steps - 1

    def step_of(number: int) -> Any:
        def step(index: int) -> int:
            tally.add((index, number))
            if index in case.sleeping:
                checkpoint()
                time.sleep(0.001)
                checkpoint()
            if number == last and index in case.failing:
                raise Bad(index)
            return index

        return step

    first, *others = map(step_of, range(case.steps))
    return MinatoLoader(
        Made(case.n, first),
        batch_size=case.batch_size,
        num_workers=case.workers,
        max_queue_size=case.window,
        in_order=case.in_order,
        drop_last=case.drop_last,
        transforms=others,
        timeout_threshold=case.threshold,
        warmup_batches=0,
        scheduler=case.scheduler,
        max_workers=6 if case.scheduler == "throughput" else None,
        on_error=replaced if case.on_error == "replace" else case.on_error,
        collate_fn=list,
        timeout=PATIENCE,
    )


def run(iterator: Any, case: Case) -> tuple[list[Any], int]:
    """The batches and the number of failures, up to the end or an early stop."""
    batches: list[Any] = []
    failures = 0
    while case.stop_after is None or len(batches) < case.stop_after:
        if case.wanted:
            # As the worker scheduler does.
            engine = iterator._engine
            with engine._lock:
                wanted = case.wanted[(len(batches) + failures) % len(case.wanted)]
                engine._slots.wanted = min(wanted, engine._slots.most)
            engine._resize()
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
        except Bad:
            failures += 1
    return batches, failures


@settings(max_examples=150)
@given(case=cases())
def test_exactly_once(case: Case) -> None:
    tally = Tally()
    iterator = iter(make_loader(case, tally))
    batches, failures = run(iterator, case)
    ended = case.stop_after is None or len(batches) < case.stop_after
    stats = iterator.stats
    iterator.close()
    del iterator

    delivered = Counter(sample for batch in batches for sample in batch)
    assert all(count == 1 for count in delivered.values()), delivered
    assert all(len(batch) <= case.batch_size for batch in batches)
    possible = set(range(case.n)) - case.failing
    if case.on_error == "replace":
        possible |= {-1 - index for index in case.failing}
    assert set(delivered) <= possible

    # No step runs twice, and none before the one before it has.
    counts = tally.counts
    assert all(count == 1 for count in counts.values())
    for index, step in counts:
        assert step == 0 or counts[index, step - 1] == 1
    if case.in_order:
        assert stats.diverted == 0
    if not ended:
        return
    if case.in_order:
        check_in_order(case, batches)
    else:
        lost = len(possible) % case.batch_size if case.drop_last else 0
        if case.drop_last:
            # The sampler leaves some out too, of which some may be those that fail.
            assert all(len(batch) == case.batch_size for batch in batches)
            assert len(delivered) >= len(possible) - lost - case.batch_size
        else:
            assert set(delivered) == possible
    if case.on_error == "raise" and not case.in_order and not case.drop_last:
        assert failures == len(case.failing)
    if case.on_error == "skip" and not case.drop_last:
        assert {index for index, _ in stats.skipped} == case.failing
    if case.on_error != "raise":
        assert failures == 0
        drawn = case.n - (case.n % case.batch_size if case.drop_last else 0)
        assert counts == {(i, s): 1 for i in range(drawn) for s in range(case.steps)}


def check_in_order(case: Case, batches: list[Any]) -> None:
    expected = []
    for start in range(0, case.n, case.batch_size):
        drawn = list(range(start, min(start + case.batch_size, case.n)))
        if case.drop_last and len(drawn) < case.batch_size:
            break
        if case.on_error == "raise" and case.failing & set(drawn):
            continue
        if case.on_error == "replace":
            drawn = [-1 - index if index in case.failing else index for index in drawn]
        drawn = [index for index in drawn if index not in case.failing]
        if drawn:
            expected.append(drawn)
    assert batches == expected
