"""Cases 24 to 27: one sample, whoever makes it; seeding in workers; `set_epoch`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, Subset
from torch.utils.data.distributed import DistributedSampler

from minato_async import MinatoLoader
from tests.cases.support import Made, Turnstile
from tests.loaders import LoaderKind
from tests.semantics.support import iterating, lists


def seed_all(worker_id: int) -> None:
    """As the workers of the Hugging Face Trainer do."""
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_from_info(worker_id: int) -> None:
    """As Lightning's workers do."""
    info = torch.utils.data.get_worker_info()
    assert info is not None
    sequence = np.random.SeedSequence([info.seed, worker_id])
    numpy_seed, torch_seed, random_seed = sequence.spawn(3)
    np.random.seed(numpy_seed.generate_state(4))
    torch.manual_seed(int(torch_seed.generate_state(1)[0]))
    random.seed(int(random_seed.generate_state(1)[0]))


def restore_all(worker_id: int) -> None:
    """By way of whole states, and of what changes a state without drawing."""
    random.setstate(random.Random(1).getstate())
    np.random.set_state(np.random.RandomState(1).get_state())
    torch.set_rng_state(torch.Generator().manual_seed(1).get_state())
    torch.seed()
    random.seed()


def draw_all() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.random(),
        np.random.randn(),
        torch.rand(()).item(),
        torch.randn(()).item(),
    ]


def blurred(sample: list[Any]) -> list[Any]:
    return [*sample, *draw_all(), torch.empty(2).uniform_().tolist()]


WAYS: dict[str, dict[str, Any]] = {
    "one thread": {"num_workers": 1, "executor": "thread"},
    "sixteen threads": {"num_workers": 16, "executor": "thread"},
    "threads, any order": {"num_workers": 3, "executor": "thread", "in_order": False},
    "one process": {"num_workers": 1, "executor": "process"},
    "processes, any order": {"num_workers": 3, "executor": "process", "in_order": False},
    "threads, diverted": {"num_workers": 2, "executor": "thread", "timeout_threshold": 1e-9},
    "processes, diverted": {"num_workers": 2, "executor": "process", "timeout_threshold": 1e-9},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_cases_24_and_25_a_sample_is_the_same_whoever_makes_it(way: dict[str, Any]) -> None:
    """Of two epochs, which differ. `num_workers=0` makes the samples to compare with."""

    def epochs(**options: Any) -> list[dict[int, Any]]:
        dataset = Made(24, lambda index: [index, *draw_all()])
        options = {
            "in_order": True,
            "seed": 7,
            "transforms": [blurred],
            "batch_size": None,
        } | options
        if "timeout_threshold" in options:
            options["in_order"] = False
        loader = MinatoLoader(dataset, collate_fn=list, **options)
        found = [list(loader), list(loader)]
        assert "timeout_threshold" not in options or loader.stats.diverted
        return [{sample[0]: sample for sample in epoch} for epoch in found]

    found = epochs(**way)
    assert found == epochs(num_workers=0)
    first, second = found
    assert all(first[index] != second[index] for index in range(24))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "on_error", ["skip", lambda index, error: [index]], ids=["skip", "replace"]
)
def test_case_24_samples_behind_a_batch_that_is_completed_in_the_middle_of_a_claim(
    parallel: LoaderKind, on_error: Any, steps: int
) -> None:
    """A batch's own random state is not that of the samples which its worker loads next."""

    def make(index: int) -> list[Any]:
        if index in (3, 57):  # from here on batches are not those that were drawn
            raise ValueError
        return [index, torch.rand(()).item()] if steps == 1 else [index]

    def draw(sample: list[Any]) -> list[Any]:
        return [*sample, torch.rand(()).item()]

    def samples(**options: Any) -> dict[int, Any]:
        loader: MinatoLoader[Any] = MinatoLoader(
            Made(160, make),
            batch_size=16,
            seed=7,
            transforms=[draw] * (steps - 1),
            collate_fn=list,
            on_error=on_error,
            **options,
        )
        return {sample[0]: sample for batch in loader for sample in batch}

    options = {"num_workers": 1, "executor": parallel.executor}
    found = samples(in_order=False, **options)
    assert found == samples(in_order=True, **options)
    assert len({sample[1] for sample in found.values() if len(sample) > 1}) == 158


class Stream(IterableDataset[Any]):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, range(4))


@pytest.mark.parametrize("seed_workers", [seed_all, seed_from_info, restore_all])
@pytest.mark.parametrize("dataset", ["map", "iterable"])
def test_case_26_seeding_in_workers_leaves_the_training_thread_alone(
    parallel: LoaderKind, dataset: str, seed_workers: Callable[[int], None]
) -> None:
    """It draws what it would draw without a loader, while workers seed and draw beside it."""
    door = Turnstile()
    inside = Turnstile()

    def init(worker_id: int) -> None:
        seed_workers(worker_id)
        inside.come_in()

    def sample(index: int) -> list[float]:
        # In the midst of a sample too, as some transforms do.
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        drawn = draw_all()
        inside.come_in()
        door.hold()
        return drawn

    def train() -> list[list[float]]:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        drawn = [draw_all()]
        data: Any = Made(8, sample) if dataset == "map" else Stream(sample)
        loader = parallel(data, None, worker_init_fn=init, num_workers=2)
        with iterating(loader) as iterator:
            inside.wait_for(4)
            drawn.append(draw_all())
            door.let_go()
            samples = [[float(number) for number in sample] for sample in iterator]
            drawn.append(draw_all())
        assert len({tuple(sample) for sample in samples}) == 1, "seeded alike, they draw alike"
        return drawn

    def expected() -> list[list[float]]:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        drawn = [draw_all()]
        # What torch's loader draws itself: the base seed of its workers.
        torch.empty((), dtype=torch.int64).random_()
        return [*drawn, draw_all(), draw_all()]

    assert train() == expected()


def test_case_26_workers_that_seed_alike_give_no_duplicates(workers: LoaderKind) -> None:
    """With torch all workers would draw the same numbers; here samples have their own streams."""

    def seed_alike(worker_id: int) -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    data = Made(30, lambda index: tuple(draw_all()))
    samples = list(workers(data, None, worker_init_fn=seed_alike))
    for numbers in zip(*samples, strict=True):
        assert len(set(numbers)) == 30


class Epochs:
    """Samples are the epoch that the dataset was told, and their index."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.epoch, index


class EpochsInside:
    """A dataset that wraps another, as many do."""

    def __init__(self) -> None:
        self.inner = Epochs()

    def set_epoch(self, epoch: int) -> None:
        self.inner.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.inner[index]


class EpochsOfASubset(Subset[tuple[int, int]]):
    def __init__(self) -> None:
        super().__init__(Epochs(), range(12))  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]


def subset() -> Any:
    """As `random_split` makes them: exact ones, whose wholes are told the epoch."""
    return subset_of(Epochs())


def subset_of_a_subset() -> Any:
    return subset_of(subset())


def subset_of(whole: Any) -> Any:
    part: Any = Subset(whole, range(12))
    part.set_epoch = whole.set_epoch
    return part


class EpochsOfAStream(IterableDataset[tuple[int, int]]):
    """Each of the shards yields its part."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 12, step):
            yield self.epoch, index


DATASETS = [
    Epochs,
    EpochsInside,
    EpochsOfASubset,
    subset,
    subset_of_a_subset,
    EpochsOfAStream,
]


def check_epochs(loader: Any, dataset: Any) -> None:
    with iterating(loader):
        for epoch in (0, 7, 3):
            dataset.set_epoch(epoch)
            found = list(loader)
            assert {told for told, _ in found} == {epoch}
            assert sorted(index for _, index in found) == list(range(12))


@pytest.mark.parametrize("make", DATASETS)
def test_case_27_set_epoch_of_the_dataset(
    every_loader: LoaderKind, make: Callable[[], Any]
) -> None:
    dataset = make()
    check_epochs(every_loader(dataset, None), dataset)


@pytest.mark.parametrize("make", DATASETS)
def test_case_27_set_epoch_of_the_dataset_with_persistent_workers(
    workers: LoaderKind, make: Callable[[], Any]
) -> None:
    """Here torch's workers go on with the copy that they got at the start."""
    dataset = make()
    check_epochs(workers(dataset, None, persistent_workers=True), dataset)


@pytest.mark.parametrize("in_order", [True, False])
def test_case_27_set_epoch_after_leaving_the_epoch_before(
    workers: LoaderKind, in_order: bool
) -> None:
    """What was loaded ahead of the epoch that was left does not turn up in the next."""
    dataset = Epochs()
    loader = workers(dataset, None, persistent_workers=True, in_order=in_order)
    with iterating(loader):
        for epoch in range(1, 6):
            dataset.set_epoch(epoch)
            iterator = iter(loader)
            for _ in range(epoch):
                assert next(iterator)[0] == epoch
    with iterating(loader) as iterator:
        assert {told for told, _ in iterator} == {5}


@pytest.mark.parametrize("persistent", [False, True])
def test_case_27_set_epoch_of_the_sampler(parallel: LoaderKind, persistent: bool) -> None:
    def sampler() -> DistributedSampler[int]:
        return DistributedSampler(list(range(20)), num_replicas=2, rank=1, shuffle=True)  # type: ignore[arg-type]

    expected, used = sampler(), sampler()
    loader = parallel(range(20), None, sampler=used, persistent_workers=persistent, in_order=True)
    orders = []
    with iterating(loader):
        for epoch in (0, 5, 2):
            expected.set_epoch(epoch)
            used.set_epoch(epoch)
            orders.append(list(loader))
            assert orders[-1] == list(expected)
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("dataset", ["map", "iterable"])
def test_case_27_nothing_of_the_next_epoch_is_loaded_before_it_is_asked_for(
    workers: LoaderKind, dataset: str
) -> None:
    door = Turnstile()

    def sample(index: int) -> int:
        door.come_in()
        return index

    data: Any = Made(8, sample) if dataset == "map" else Stream(sample)
    loader = workers(data, 2, num_workers=2, persistent_workers=True)
    with iterating(loader) as iterator:
        for epoch in range(2):
            if epoch:
                assert iter(loader) is iterator
            # Whatever a worker does it does before it is idle, and then the epoch is at its end.
            assert len(lists(iterator)) == 4
            door.wait_for(8)
            assert door.came == 0
        assert list(iterator) == []
