"""Which order batches come in, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from minato_async import MinatoLoader
from minato_async.iteration.order import choose_order
from minato_async.scheduling.claim_size import ClaimSize
from tests.loaders import on_each_executor

from .support import Holding, InThread, iterating, lists, once_each, samples_in


class TestStrict:
    @pytest.mark.parametrize("held", [0, 1, 5])
    def test_a_slow_sample_is_waited_for(self, held: int) -> None:
        data = Holding(12, held=[held])
        loader = MinatoLoader(data, 2, num_workers=3, prefetch_factor=4, in_order=True)
        found: list[Any] = []
        with iterating(loader) as iterator:
            consumer = InThread(lambda: found.extend(iterator))
            # All others are loaded, and what is before the held one is delivered; it has no end.
            data.wait_for_calls(range(12))
            assert len(found) <= held // 2
            data.release()
            consumer.result()
        assert lists(found) == [[i, i + 1] for i in range(0, 12, 2)]

    @on_each_executor
    @pytest.mark.parametrize("num_workers", [1, 2, 8])
    @pytest.mark.parametrize("max_queue_size", [None, 1, 30])
    def test_batches_come_as_drawn(self, num_workers: int, max_queue_size: int | None) -> None:
        loader = MinatoLoader(
            range(500), 7, num_workers=num_workers, max_queue_size=max_queue_size, in_order=True
        )
        assert lists(loader) == [batch.tolist() for batch in torch.arange(500).split(7)]

    def test_without_workers_there_is_one_order(self) -> None:
        assert lists(MinatoLoader(range(4), 2, in_order=False)) == [[0, 1], [2, 3]]


class TestReadyFirst:
    @pytest.mark.parametrize("held", [[0], [17], [31], [0, 16, 30]])
    def test_slow_samples_hold_up_nobody(self, held: list[int]) -> None:
        """What is ready fills whole batches, all that it can, while the slow ones are held."""
        data = Holding(32, held=held)
        loader = MinatoLoader(data, 4, num_workers=4, prefetch_factor=2, in_order=False)
        whole = (32 - len(held)) // 4
        # A worker claims samples of one batch at most at a time, so a held sample can keep the
        # rest of its own batch back, and no more.
        early = whole - len(held)
        with iterating(loader) as iterator:
            before = [next(iterator) for _ in range(early)]
            assert not samples_in(before).keys() & set(held)
            assert all(len(batch) == 4 for batch in before)
            data.release()
            found = [*before, *iterator]
        assert samples_in(found) == once_each(range(32))
        assert data.calls == once_each(range(32))

    def test_batches_are_made_of_samples_and_not_of_drawn_batches(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One held sample in every drawn batch: torch's `in_order=False` would deliver nothing."""
        monkeypatch.setattr(ClaimSize, "next", lambda self: 1)
        data = Holding(16, held=[0, 4, 8, 12])
        loader = MinatoLoader(data, 4, num_workers=8, in_order=False)
        with iterating(loader) as iterator:
            before = [next(iterator) for _ in range(3)]
            assert samples_in(before) == once_each(set(range(16)) - data.held)
            data.release()
            (last,) = iterator
        assert sorted(last.tolist()) == [0, 4, 8, 12]

    def test_sizes_are_those_that_were_drawn(self) -> None:
        data = Holding(10, held=[0])
        loader = MinatoLoader(data, 4, num_workers=3, in_order=False)
        with iterating(loader) as iterator:
            first = next(iterator)
            data.release()
            found = [first, *iterator]
        assert sorted(len(batch) for batch in found) == [2, 4, 4]
        assert samples_in(found) == once_each(range(10))

    @on_each_executor
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("num_workers", [1, 3])
    @pytest.mark.parametrize("max_queue_size", [None, 1, 25])
    def test_every_sample_comes_once(
        self, max_queue_size: int | None, num_workers: int, drop_last: bool
    ) -> None:
        loader = MinatoLoader(
            range(203),
            10,
            drop_last=drop_last,
            num_workers=num_workers,
            max_queue_size=max_queue_size,
            in_order=False,
        )
        found = list(loader)
        assert samples_in(found) == once_each(range(200 if drop_last else 203))
        assert sorted(map(len, found)) == ([] if drop_last else [3]) + [10] * 20
        assert len(found) == len(loader)


class TestBatchesOfTheUsers:
    """What a batch sampler of the user's put together stays together, in any order."""

    BATCHES = ([0, 1], [2, 3, 4], [5], [6, 7, 8, 9])

    def test_whole_batches_overtake(self) -> None:
        data = Holding(10, held=[0])
        loader = MinatoLoader(data, batch_sampler=self.BATCHES, num_workers=3, in_order=False)
        with iterating(loader) as iterator:
            before = lists(next(iterator) for _ in range(3))
            assert sorted(before) == [[2, 3, 4], [5], [6, 7, 8, 9]]
            data.release()
            assert lists(iterator) == [[0, 1]]

    def test_samples_that_are_not_batched_overtake(self) -> None:
        data = Holding(4, held=[0])
        loader = MinatoLoader(data, batch_size=None, num_workers=2, in_order=False)
        with iterating(loader) as iterator:
            assert sorted(next(iterator) for _ in range(3)) == [1, 2, 3]
            data.release()
            assert list(iterator) == [0]

    def test_batches_that_the_dataset_fetches_overtake(self) -> None:
        class Fetches(Holding):
            def __getitems__(self, indices: list[int]) -> list[int]:
                return [self[index] for index in indices]

        data = Fetches(6, held=[0])
        loader = MinatoLoader(data, 2, num_workers=2, in_order=False)
        with iterating(loader) as iterator:
            assert sorted(lists(next(iterator) for _ in range(2))) == [[2, 3], [4, 5]]
            data.release()
            assert lists(iterator) == [[0, 1]]


class MyRandomSampler(RandomSampler):
    """May have an order that means something."""


class MyBatchSampler(BatchSampler):
    """May have put together what belongs together."""


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def distributed(**options: Any) -> DistributedSampler[Any]:
    return DistributedSampler(range(9), num_replicas=2, rank=0, **options)  # type: ignore[arg-type]


def plain(sampler: Any) -> dict[str, Any]:
    return {"batch_sampler": BatchSampler(sampler, 2, False)}


#: Arguments of a loader, whether `in_order=None` keeps the order, and whether samples may change
#: places between batches once it is not kept.
CASES: dict[str, tuple[Callable[[], dict[str, Any]], bool, bool]] = {
    "sequential": (lambda: {}, True, True),
    "shuffle": (lambda: {"shuffle": True}, False, True),
    "shuffle, generator": (lambda: {"shuffle": True, "generator": seeded()}, True, True),
    "random": (lambda: {"sampler": RandomSampler(range(9))}, False, True),
    "random, generator": (
        lambda: {"sampler": RandomSampler(range(9), generator=seeded())},
        True,
        True,
    ),
    "random, the loader's generator": (
        lambda: {"sampler": RandomSampler(range(9)), "generator": seeded()},
        True,
        True,
    ),
    "random with replacement": (
        lambda: {"sampler": RandomSampler(range(9), replacement=True)},
        False,
        True,
    ),
    "subclass of random": (lambda: {"sampler": MyRandomSampler(range(9))}, True, True),
    "subset random": (lambda: {"sampler": SubsetRandomSampler([1, 2])}, True, True),
    "weighted random": (lambda: {"sampler": WeightedRandomSampler([0.5, 0.5], 4)}, True, True),
    "list": (lambda: {"sampler": [3, 1, 2]}, True, True),
    "distributed": (lambda: {"sampler": distributed()}, False, True),
    "distributed, not shuffled": (lambda: {"sampler": distributed(shuffle=False)}, True, True),
    "torch's batch sampler, random": (lambda: plain(RandomSampler(range(9))), False, True),
    "torch's batch sampler, in turn": (lambda: plain(SequentialSampler(range(9))), True, True),
    "subclass of torch's batch sampler": (
        lambda: {"batch_sampler": MyBatchSampler(RandomSampler(range(9)), 2, False)},
        True,
        False,
    ),
    "list of batches": (lambda: {"batch_sampler": [[0, 1], [2]]}, True, False),
    "no batches, random": (lambda: {"batch_size": None, "shuffle": True}, True, False),
}


@pytest.mark.usefixtures("unseeded")
@pytest.mark.parametrize(("arguments", "kept", "mixes"), CASES.values(), ids=CASES)
class TestChoice:
    """The table of section 5 of the design: where `in_order=None` reorders."""

    def loader(self, arguments: Callable[[], dict[str, Any]], **more: Any) -> MinatoLoader[Any]:
        return MinatoLoader(range(9), **arguments(), **more)  # type: ignore[arg-type]

    def test_none_reorders_only_what_is_random_anyway(
        self, arguments: Callable[[], dict[str, Any]], kept: bool, mixes: bool
    ) -> None:
        order = choose_order(self.loader(arguments), None)
        assert (order.as_drawn, order.by_position) == (kept, kept)

    def test_never_where_torch_was_seeded(
        self, arguments: Callable[[], dict[str, Any]], kept: bool, mixes: bool
    ) -> None:
        torch.manual_seed(0)
        order = choose_order(self.loader(arguments), None)
        assert (order.as_drawn, order.by_position) == (True, True)

    @pytest.mark.usefixtures("deterministic_algorithms")
    def test_never_with_deterministic_algorithms(
        self, arguments: Callable[[], dict[str, Any]], kept: bool, mixes: bool
    ) -> None:
        order = choose_order(self.loader(arguments), None)
        assert (order.as_drawn, order.by_position) == (True, True)

    def test_true_keeps_the_order(
        self, arguments: Callable[[], dict[str, Any]], kept: bool, mixes: bool
    ) -> None:
        order = choose_order(self.loader(arguments), True)
        assert (order.as_drawn, order.by_position) == (True, True)

    def test_false_does_not_but_leaves_the_users_batches_whole(
        self, arguments: Callable[[], dict[str, Any]], kept: bool, mixes: bool
    ) -> None:
        order = choose_order(self.loader(arguments), False)
        assert (order.as_drawn, order.by_position) == (not mixes, False)


class MakesALoader:
    """Whether a loader that is made in a sample keeps the order."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> bool:
        if index:
            torch.manual_seed(index)
        return choose_order(MinatoLoader(range(9), shuffle=True), None).by_position


class HoldingFirst(Holding):
    """Holds back whichever sample is asked for first."""

    def __init__(self, n: int) -> None:
        super().__init__(n, held=())
        self._first = threading.Lock()

    def sample(self, index: int) -> Any:
        if self._first.acquire(blocking=False):
            self.held.add(index)
        return super().sample(index)


def _as_if_unseeded(state: torch.Tensor) -> None:
    """Set torch's generator to `state`, with the seed of one that nobody has seeded."""
    unseeded = torch.Generator()
    unseeded.seed()
    changed = state.clone()
    # The seed is the first thing in there.
    changed[:8] = unseeded.get_state()[:8]
    torch.set_rng_state(changed)


class TestChoiceInAction:
    """That loaders go by the table."""

    @pytest.mark.usefixtures("unseeded")
    @pytest.mark.parametrize("shuffled", ["shuffle", "sampler"])
    def test_random_order_is_given_up(self, shuffled: str) -> None:
        data = HoldingFirst(9)
        how: Any = {"shuffle": True} if shuffled == "shuffle" else {"sampler": distributed()}
        loader = MinatoLoader(data, 1, num_workers=2, prefetch_factor=5, **how)
        with iterating(loader) as iterator:
            early = samples_in(next(iterator) for _ in range(len(loader) - 1))
            assert not early.keys() & data.held
            data.release()
            assert samples_in(iterator).keys() == data.held

    @staticmethod
    def assert_order_is_kept(options: Callable[[], dict[str, Any]]) -> None:
        """With the first sample held until all the others are loaded, batches are torch's."""
        torch.manual_seed(5)
        state = torch.get_rng_state()
        expected = [batch.item() for batch in DataLoader(range(9), **options())]  # type: ignore[arg-type]
        # As in a program that did not seed, but for what is drawn: order is to be kept by what the
        # loader was given.
        _as_if_unseeded(state)
        data = Holding(9, held=expected[:1])
        loader = MinatoLoader(data, num_workers=2, prefetch_factor=5, **options())
        with iterating(loader) as iterator:
            consumer = InThread(lambda: [batch.item() for batch in iterator])
            data.wait_for_calls(range(9))
            data.release()
            assert consumer.result() == expected

    def test_a_seed_alone_gives_torchs_batches(self) -> None:
        torch.manual_seed(5)
        expected = [batch.tolist() for batch in DataLoader(range(9), 2, shuffle=True)]
        torch.manual_seed(5)
        data = Holding(9, held=expected[0][:1])
        loader = MinatoLoader(data, 2, shuffle=True, num_workers=2, prefetch_factor=5)
        with iterating(loader) as iterator:
            consumer = InThread(lambda: lists(iterator))
            data.wait_for_calls(range(9))
            data.release()
            assert consumer.result() == expected

    @pytest.mark.parametrize(
        "options",
        [
            dict,
            lambda: {"shuffle": True, "generator": seeded()},
            lambda: {"shuffle": True, "in_order": True},
            lambda: {"sampler": MyRandomSampler(range(9))},
        ],
        ids=["in turn", "generator", "in_order", "subclass"],
    )
    def test_other_orders_are_kept(self, options: Callable[[], dict[str, Any]]) -> None:
        self.assert_order_is_kept(options)

    def test_deterministic_algorithms_keep_it(self, deterministic_algorithms: None) -> None:
        self.assert_order_is_kept(lambda: {"shuffle": True})

    @pytest.mark.usefixtures("unseeded")
    def test_deterministic_algorithms_may_be_asked_for_later(
        self, deterministic_algorithms: None
    ) -> None:
        """What counts is what the user has asked for when the epoch begins."""
        torch._C._set_deterministic_algorithms(False)
        loader = MinatoLoader(range(9), shuffle=True)
        assert not choose_order(loader, None).by_position
        torch._C._set_deterministic_algorithms(True)
        assert choose_order(loader, None).by_position

    @pytest.mark.usefixtures("unseeded")
    @pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, -1, -(2**31)])
    def test_whatever_the_seed(self, seed: int) -> None:
        loader = MinatoLoader(range(9), shuffle=True)
        assert not choose_order(loader, None).by_position
        torch.manual_seed(seed)
        assert choose_order(loader, None).by_position
        assert not choose_order(loader, False).by_position
        torch.seed()  # a random one again
        assert not choose_order(loader, None).by_position

    @pytest.mark.usefixtures("unseeded")
    @on_each_executor
    @pytest.mark.parametrize("seed", [None, 7])
    def test_a_loader_that_a_sample_makes_keeps_the_order(self, seed: int | None) -> None:
        """Whether the program or the sample has seeded anything or not: the sample is to be the
        same, whatever runs it."""
        if seed is not None:
            torch.manual_seed(seed)
        found = list(MinatoLoader(MakesALoader(), None, num_workers=1, in_order=True))
        assert found == [True] * 2

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_drop_last_of_the_batch_sampler_counts(self, drop_last: bool) -> None:
        sampler = BatchSampler(RandomSampler(range(9)), 2, drop_last)
        given = MinatoLoader(range(9), batch_sampler=sampler)
        made = MinatoLoader(range(9), 2, drop_last=drop_last)
        assert choose_order(given, None).drop_last is drop_last
        assert choose_order(made, None).drop_last is drop_last
