"""Iterable datasets on worker processes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Container, Iterator
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.lanes.support import until
from tests.processes.module_level import Stream
from tests.processes.support import PATIENCE, Countdown, fork, kill_me, processes
from tests.semantics.support import iterating, outcomes


@pytest.mark.parametrize("persistent", [False, True])
def test_each_shard_has_a_process_of_its_own(persistent: bool) -> None:
    loader = processes(Stream(60), 4, num_workers=3, persistent_workers=persistent)
    with iterating(loader):
        epochs = [torch.cat(list(loader)) for _ in range(3)]
    for found in epochs:
        assert sorted(found[:, 0].tolist()) == list(range(60))
        homes = {(shard, pid) for _, shard, pid in found.tolist()}
        assert len(homes) == len({pid for _, pid in homes}) == 3
        assert os.getpid() not in {pid for _, pid in homes}
    assert all(torch.equal(found[:, :2], epochs[0][:, :2]) for found in epochs)
    if persistent:
        assert all(torch.equal(found, epochs[0]) for found in epochs)


@pytest.mark.parametrize("mode", ["sharded", "shared"])
@pytest.mark.parametrize(
    ("end", "how"),
    [
        (kill_me, "was killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "was killed by SIGTERM"),
        (lambda: os._exit(3), "exited with status 3"),
    ],
    ids=["SIGKILL", "SIGTERM", "exit"],
)
def test_worker_that_dies_ends_its_shard_with_an_error_that_names_it(
    mode: str, end: Any, how: str
) -> None:
    dataset = Stream(40, Countdown(1), end)
    with iterating(processes(dataset, 2, num_workers=2, iterable_mode=mode)) as iterator:
        found = outcomes(iterator)
    (error,) = [result for result in found if isinstance(result, Exception)]
    shard = int(mode == "sharded")
    assert f"reads shard {shard} {how}, after {6 - 3 * shard} batches" in str(error)
    assert f"shard {shard}" in error.__notes__[0]
    rest = torch.cat([batch for batch in found if not isinstance(batch, Exception)])[:, 0].tolist()
    # The other shard is whole; of this one came what was read before, and once.
    before = list(range(1, 13, 2))
    if mode == "shared":
        assert rest == list(range(12))
    else:
        assert sorted(rest) == sorted([*range(0, 40, 2), *before])


def test_small_window_is_kept_for_the_batch_that_is_due() -> None:
    """Whoever is there first has a shard of its own, and would fill the window from it before
    another has begun with what comes earlier."""
    for _ in range(5):
        loader = processes(Stream(30), 1, num_workers=3, max_queue_size=2, timeout=PATIENCE)
        assert torch.cat(list(loader))[:, 0].tolist() == list(range(30))


def test_a_replacement_knows_what_was_changed_since_the_first_epoch() -> None:
    lives = Countdown(1)

    class Marked(IterableDataset[Any]):
        first = second = killing = 0

        def __iter__(self) -> Iterator[Any]:
            for _ in range(4):
                if self.killing and lives.take():
                    kill_me()
                yield torch.tensor([self.first, self.second])

    dataset = Marked()
    loader = processes(dataset, 4, num_workers=1, persistent_workers=True)
    with iterating(loader):
        assert [batch.tolist() for batch in loader] == [[[0, 0]] * 4]
        dataset.first = 1
        assert [batch.tolist() for batch in loader] == [[[1, 0]] * 4]
        dataset.second, dataset.killing = 2, True
        (error,) = outcomes(iter(loader))
        assert "was killed by SIGKILL" in str(error)
        assert [batch.tolist() for batch in loader] == [[[1, 2]] * 4]


@pytest.mark.parametrize("mode", ["sharded", "shared"])
def test_worker_that_dies_while_it_has_nothing_to_do_ends_its_shard_too(mode: str) -> None:
    options = {"num_workers": 2, "iterable_mode": mode, "timeout": PATIENCE}
    with iterating(processes(Stream(40), 2, **options)) as iterator:
        found = [next(iterator) for _ in range(2)]
        until(lambda: not iterator.stats.active and iterator.stats.ready_batches == 4)
        victim = psutil.Process(found[0][0, 2].item())
        siblings = psutil.Process().children()[0].children
        before = set(siblings())
        victim.kill()
        until(lambda: len(before ^ set(siblings())) == 2)  # it was replaced
        found += outcomes(iterator)
    (error,) = [result for result in found if isinstance(result, Exception)]
    read = 3 if mode == "sharded" else 6
    assert f"reads shard 0 was killed by SIGKILL, after {read} batches" in str(error)
    rest = torch.cat([batch for batch in found if not isinstance(batch, Exception)])[:, 0].tolist()
    expected = {"sharded": [*range(0, 12, 2), *range(1, 40, 2)], "shared": range(12)}
    assert sorted(rest) == sorted(expected[mode])


def test_worker_that_dies_before_an_epoch_costs_it_nothing() -> None:
    loader = processes(Stream(12), 2, persistent_workers=True)
    with iterating(loader) as iterator:
        first = torch.cat(list(iterator))
        siblings = psutil.Process().children()[0].children
        before = set(siblings())
        psutil.Process(first[0, 2].item()).kill()
        until(lambda: len(before ^ set(siblings())) == 2)
        second = torch.cat(list(loader))
    assert torch.equal(first[:, :2], second[:, :2])


class Drawn(IterableDataset[Any]):
    """Samples that have drawn random numbers, or have not, before the steps do; of several kinds
    and sizes. `fails`: ordinals at which the iterator raises, and goes on."""

    def __init__(self, n: int, fails: Container[int] = (), kind: type = list) -> None:
        self.n = n
        self.fails = fails
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        return self.Iterator(self)

    class Iterator(Iterator[Any]):
        def __init__(self, of: Any) -> None:
            self.of = of
            self.at = -1

        def __next__(self) -> Any:
            self.at += 1
            if self.at == self.of.n:
                raise StopIteration
            if self.at in self.of.fails:
                raise OSError(self.at)
            drawn = random.random() if self.at % 3 else 0.0
            return self.of.kind([self.at, drawn, torch.rand(1000)])


class Unsendable(list[Any]):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise SystemExit("cannot be pickled")


def plain(batch: Any) -> Any:
    """Something that can be compared, and that other processes can make of `Unsendable`."""
    if isinstance(batch, list):
        return [plain(part) for part in batch]
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


class TestShared:
    """One iterator, whose samples are transformed and collated by all processes."""

    @pytest.mark.parametrize(
        ("batch_size", "drop_last", "isolated"),
        [(4, False, True), (4, True, True), (None, False, True), (4, False, False)],
    )
    @pytest.mark.parametrize("kind", [list, Unsendable])
    def test_everything_is_as_on_threads(
        self, batch_size: Any, drop_last: bool, isolated: bool, kind: type
    ) -> None:
        def draw(sample: Any) -> Any:
            return kind([*sample, random.random() if isolated else 0.0])

        def fail(sample: Any) -> Any:
            if sample[0] in (5, 8, 41):
                raise KeyError(sample[0])
            return sample

        def load(executor: str) -> list[Any]:
            torch.manual_seed(1)
            loader = processes(
                Drawn(42, (0, 10, 40), kind),
                batch_size,
                num_workers=3,
                executor=executor,
                drop_last=drop_last,
                transforms=[draw, fail],
                collate_fn=plain,
                iterable_mode="shared",
                seed=None if isolated else False,
            )
            found = []
            with iterating(loader) as iterator:
                for result in outcomes(iterator):
                    if isinstance(result, Exception):
                        (note,) = result.__notes__
                        found.append((repr(result), note.split(", worker")[0], result.__context__))
                    elif isolated:
                        found.append(result)
                    else:
                        found.append(str([s[0] for s in result] if batch_size else result[0]))
            return found

        assert load("process") == load("thread")

    @pytest.mark.parametrize("steps", ["transforms", "collate_fn"])
    def test_several_are_at_work_while_one_reads(self, steps: str) -> None:
        together = fork.Barrier(3)

        def wait(value: Any) -> Any:
            together.wait(PATIENCE)
            return value

        options: dict[str, Any] = {steps: [wait] if steps == "transforms" else wait}
        loader = processes(Stream(6), None, num_workers=3, iterable_mode="shared", **options)
        found = torch.stack(list(loader))
        assert found[:, 0].tolist() == list(range(6))
        assert len(set(found[:, 2].tolist())) == 1

    def test_iterator_may_use_its_sample_again(self) -> None:
        class Again(IterableDataset[Any]):
            def __iter__(self) -> Iterator[Any]:
                sample = torch.zeros(1000)
                for _ in range(8):
                    yield sample.add_(1)

        loader = processes(Again(), 4, iterable_mode="shared", transforms=[torch.clone])
        assert [batch[:, 7].tolist() for batch in loader] == [[1, 2, 3, 4], [5, 6, 7, 8]]

    @pytest.mark.parametrize("deaths", [1, 3])
    def test_killed_while_it_finishes_what_another_has_read(self, deaths: int) -> None:
        lives, dead = Countdown(deaths), fork.Semaphore(0)

        class Numbers(IterableDataset[Any]):
            def __iter__(self) -> Iterator[Any]:
                for value in range(12):
                    if value == 6:
                        # The process that reads is in here while the other finishes what it read.
                        for _ in range(deaths):
                            dead.acquire(timeout=PATIENCE)
                    yield value

        def deadly(value: int) -> int:
            if value == 5 and lives.take():
                dead.release()
                kill_me()
            return value

        loader = processes(Numbers(), 2, iterable_mode="shared", transforms=[deadly])
        with iterating(loader) as iterator:
            found = [r if isinstance(r, Exception) else r.tolist() for r in outcomes(iterator)]
        expected: list[Any] = [[i, i + 1] for i in range(0, 12, 2)]
        if deaths == 3:
            assert "SIGKILL, 3 times, over shard 0, sample 4 to 5" in str(found.pop(2))
            del expected[2]
        assert found == expected

    def test_worker_init_fn_sets_up_every_process(self) -> None:
        together = fork.Barrier(2)

        def set_up(number: int) -> None:
            info = get_worker_info()
            assert (number, info.id, info.num_workers) == (0, 0, 1)
            info.dataset.mark = 7

        def marked(value: Any) -> Any:
            together.wait(PATIENCE)
            return get_worker_info().dataset.mark

        loader = processes(
            Stream(4),
            None,
            iterable_mode="shared",
            transforms=[marked],
            worker_init_fn=set_up,
        )
        assert list(loader) == [7] * 4

    def test_epochs_of_persistent_workers(self) -> None:
        def load(executor: str) -> list[Any]:
            loader = processes(
                Drawn(10),
                3,
                executor=executor,
                iterable_mode="shared",
                persistent_workers=True,
                transforms=[lambda sample: [*sample, torch.rand(1)]],
                seed=3,
            )
            with iterating(loader):
                next(iter(loader))  # an epoch that is given up
                return [[plain(batch) for batch in loader] for _ in range(2)]

        found = load("process")
        assert found[0] != found[1]
        assert found == load("thread")
