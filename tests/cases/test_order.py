"""Cases 19, 20 and 22, against torch. More of each is in `tests/semantics` and `tests/iterable`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from tests.cases.support import Made, Turnstile
from tests.loaders import LoaderKind
from tests.semantics.support import InThread, iterating, lists


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


class HeldAtZero:
    """Makes samples, each its index, of which the first is held until the others are loaded."""

    def __init__(self) -> None:
        self.door = Turnstile()

    def __call__(self, index: int) -> int:
        if index == 0:
            self.door.hold()
        else:
            self.door.come_in()
        return index


def test_case_19_in_order_a_slow_sample_is_waited_for(parallel: LoaderKind) -> None:
    make = HeldAtZero()
    loader = parallel(Made(12, make), 2, num_workers=2, prefetch_factor=4, in_order=True)
    with iterating(loader) as iterator:
        # Of torch's two workers one is stuck, and has half of the batches before it.
        make.door.wait_for(6 if not parallel.is_ours else 12)
        consumer = InThread(lambda: lists(iterator))
        assert not consumer.done
        make.door.let_go()
        assert consumer.result() == [[i, i + 1] for i in range(0, 12, 2)]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_case_19_otherwise_what_is_ready_comes_first(parallel: LoaderKind, batch_size: int) -> None:
    make = HeldAtZero()
    loader = parallel(Made(4 * batch_size, make), batch_size, num_workers=2, in_order=False)
    with iterating(loader) as iterator:
        # Torch shares batches out before it knows which worker is slow: the other's two come.
        early = lists(next(iterator) for _ in range(2))
        assert 0 not in flat(early)
        assert all(len(batch) == batch_size for batch in early)
        make.door.let_go()
        found = early + lists(iterator)
    assert sorted(flat(found)) == list(range(4 * batch_size))


class OneShardHeld(IterableDataset[int]):
    """Shard 0 is held at its first sample."""

    def __init__(self) -> None:
        self.door = Turnstile()

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        if info.id == 0:
            self.door.hold()
        yield from (10 * info.id + n for n in range(4))


def test_case_20_slow_shard_holds_up_nobody(parallel: LoaderKind) -> None:
    data = OneShardHeld()
    loader = parallel(data, 2, num_workers=3, in_order=False)
    with iterating(loader) as iterator:
        early = lists(next(iterator) for _ in range(4))
        assert sorted(early) == [[10, 11], [12, 13], [20, 21], [22, 23]]
        data.door.let_go()
        assert sorted(lists(iterator)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("samples", "batch_size"), [(1, 1), (2, 8), (3, 2), (8, 3)])
def test_case_22_counts_are_right(
    any_loader: LoaderKind, samples: int, batch_size: int, drop_last: bool, in_order: bool
) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
    if any_loader.num_workers:
        options["num_workers"] = 8
    found = lists(any_loader(range(samples), in_order=in_order, **options))
    whole, rest = divmod(samples, batch_size)
    sizes = [batch_size] * whole + [rest] * (rest > 0 and not drop_last)
    assert sorted(map(len, found)) == sorted(sizes)
    assert len(any_loader(range(samples), **options)) == len(sizes)
    assert sorted(flat(found)) == list(range(sum(sizes)))
