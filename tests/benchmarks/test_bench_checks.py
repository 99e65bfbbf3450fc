"""A row counts only if the loader did the work: these peers do not, and fail."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from benchmarks.contest import costed
from benchmarks.measure.checks import CheckFailed, check_exactly_once, check_order, check_receipt
from benchmarks.measure.rounds import Contender, Row, interleave
from benchmarks.peers.bare_pool import BARE_POOL
from benchmarks.peers.base import Peer, Plan
from benchmarks.peers.executor_pool import EXECUTOR_POOL
from benchmarks.peers.nodes import NODES, NODES_IN_ORDER
from benchmarks.peers.spdl_pipeline import SPDL, SPDL_INPUT
from benchmarks.peers.torch_loader import TORCH, TORCH_CALLER, TORCH_READY
from benchmarks.report import Report
from benchmarks.workloads.costs import uniform
from benchmarks.workloads.guard import ConcurrencyGuard
from benchmarks.workloads.sleeping import Sleeping
from minato_async.cli.measure.epoch import NoBatch, Receipt, consume, read_costed
from minato_async.cli.measure.statistics import differences, paired

LENGTH = 40
BATCH_SIZE = 8
PATIENCE = 60.0


def wrong(order: Callable[[int], Iterable[int]], *, ordered: bool = False) -> Peer:
    """A peer that delivers the indices ``order`` gives it for a length, in the caller."""

    def load(plan: Plan) -> Iterable[Any]:
        indices = list(order(plan.length))
        for start in range(0, len(indices), plan.batch_size):
            chunk = indices[start : start + plan.batch_size]
            yield plan.collate([plan.dataset[index] for index in chunk])

    return Peer("wrong", "caller", ordered, load)


def run(peer: Peer, workers: int = 2) -> Any:
    """One checked epoch of samples that cost nothing."""
    return costed(
        peer,
        lambda guard: Sleeping(uniform(LENGTH, 0.0), guard),
        length=LENGTH,
        batch_size=BATCH_SIZE,
        workers=workers,
    ).run()


@pytest.mark.parametrize(
    "order",
    [
        lambda n: range(n - 1),
        lambda n: [0, *range(n - 1)],
        lambda n: [*range(n), n - 1],
        lambda n: [*range(n - 2), 0, 0],
    ],
    ids=["one lost", "one twice, one lost", "one twice", "two replaced"],
)
def test_a_peer_that_is_not_exactly_once_fails(order: Callable[[int], Iterable[int]]) -> None:
    with pytest.raises(CheckFailed):
        run(wrong(order))


def test_a_peer_out_of_order_fails_only_if_it_promised_order() -> None:
    def swapped(length: int) -> Iterable[int]:
        return [1, 0, *range(2, length)]

    assert run(wrong(swapped)).receipt.samples == LENGTH
    with pytest.raises(CheckFailed, match="index 1 at position 0, 0 was due"):
        run(wrong(swapped, ordered=True))


def test_an_epoch_without_a_batch_fails() -> None:
    with pytest.raises(NoBatch):
        run(wrong(lambda n: []))


def test_samples_without_indices_are_counted() -> None:
    check_receipt(Receipt(samples=3), 3)
    with pytest.raises(CheckFailed, match="2 samples"):
        check_receipt(Receipt(samples=2), 3)


def test_what_a_check_says() -> None:
    with pytest.raises(CheckFailed, match=r"1 missing \[2\], 1 extra \[0\]"):
        check_exactly_once([0, 0, 1], range(3))
    with pytest.raises(CheckFailed, match="2 samples, 3 were due"):
        check_order([0, 1], range(3))


class Meeting(Dataset[tuple[Any, int, float]]):
    """Samples that wait until ``together`` of them run at once: the guard must then see so many."""

    def __init__(self, barrier: Any, guard: ConcurrencyGuard, inner: Sleeping) -> None:
        self.barrier, self.guard, self.inner = barrier, guard, inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Any, int, float]:
        with self.guard:
            self.barrier.wait(PATIENCE)
            return self.inner.payload, index, 0.0


def test_the_guard_sees_threads_that_really_run_at_once() -> None:
    guard = ConcurrencyGuard(processes=False)
    dataset = Meeting(threading.Barrier(3), guard, Sleeping(uniform(9, 0.0), guard))
    consume(BARE_POOL.load(Plan(dataset, 9, 3, 3)), read_costed)
    assert guard.peak == 3
    guard.check(3)
    with pytest.raises(CheckFailed, match="3 samples ran at once with 2 workers"):
        guard.check(2)


def test_the_guard_sees_processes_that_really_run_at_once() -> None:
    import multiprocessing

    guard = ConcurrencyGuard(processes=True)
    barrier = multiprocessing.get_context("fork").Barrier(2)
    dataset = Meeting(barrier, guard, Sleeping(uniform(4, 0.0), guard))
    loader = DataLoader(dataset, batch_size=1, num_workers=2, multiprocessing_context="fork")
    consume(loader, read_costed)
    assert guard.peak == 2
    guard.check(2)
    with pytest.raises(CheckFailed, match="2 samples ran at once with 1 workers"):
        guard.check(1)


def test_a_peer_with_more_workers_than_it_says_fails_its_row_and_the_others_go_on() -> None:
    barrier = threading.Barrier(4)

    def greedy(plan: Plan) -> Iterator[Any]:
        return iter(BARE_POOL.load(Plan(plan.dataset, plan.length, plan.batch_size, 4)))

    def contender(peer: Peer) -> Any:
        return costed(
            peer,
            lambda guard: (
                Meeting(barrier, guard, Sleeping(uniform(LENGTH, 0.0), guard))
                if peer.name == "greedy"
                else Sleeping(uniform(LENGTH, 0.0), guard)
            ),
            length=LENGTH,
            batch_size=BATCH_SIZE,
            workers=2,
        )

    report = Report("test")
    rows = interleave(
        [contender(Peer("greedy", "threads", False, greedy)), contender(BARE_POOL)],
        2,
        report,
        "meeting",
    )
    assert rows["greedy"].error == "CheckFailed: 4 samples ran at once with 2 workers"
    assert len(rows[BARE_POOL.name].found) == 2
    assert any("greedy failed" in note for note in report.notes)
    assert math.isnan(
        paired(
            rows["greedy"].values(lambda e: e.rate),
            rows[BARE_POOL.name].values(lambda e: e.rate),
        ).median
    )


def test_what_is_only_shown_beside_runs_in_fewer_rounds_and_is_compared_by_those() -> None:
    def contender(peer: Peer, rounds: int | None) -> Contender:
        return costed(
            peer,
            lambda guard: Sleeping(uniform(LENGTH, 0.0), guard),
            length=LENGTH,
            batch_size=BATCH_SIZE,
            workers=2,
            rounds=rounds,
        )

    contenders = [contender(BARE_POOL, None), contender(EXECUTOR_POOL, 1)]
    rows = interleave(contenders, 3, Report("test"), "sleeping")
    every, first = (row.values(lambda epoch: epoch.rate) for row in rows.values())
    assert (len(every), len(first)) == (3, 1)
    assert paired(first, every).median == first[0] / every[0]
    assert differences(every, first).median == every[0] - first[0]


def test_a_failed_row_gives_no_numbers() -> None:
    row = Row("x", [run(TORCH_CALLER)], error="late failure")
    assert row.values(lambda epoch: epoch.rate) == []


@pytest.mark.parametrize(
    "peer",
    [
        TORCH_CALLER,
        TORCH,
        TORCH_READY,
        SPDL,
        SPDL_INPUT,
        NODES,
        NODES_IN_ORDER,
        BARE_POOL,
        EXECUTOR_POOL,
    ],
    ids=lambda peer: peer.name,
)
def test_every_peer_does_the_work_it_is_measured_for(peer: Peer) -> None:
    missing = peer.missing()
    if missing is not None:
        pytest.skip(missing)
    epoch = run(peer)
    assert epoch.receipt.samples == LENGTH
    assert len(epoch.arrivals) == LENGTH // BATCH_SIZE
    assert 0 < epoch.first <= epoch.arrivals[-1] <= epoch.seconds
