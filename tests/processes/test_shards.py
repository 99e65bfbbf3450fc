"""Iterable datasets on worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import IterableDataset

from tests.processes.module_level import Stream
from tests.processes.support import Countdown, processes
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


def test_killed_worker_ends_its_shard_with_an_error_that_names_it() -> None:
    with iterating(processes(Stream(40, Countdown(1)), 2, num_workers=2)) as iterator:
        found = outcomes(iterator)
    (error,) = [result for result in found if isinstance(result, Exception)]
    assert "reads shard 1 was killed by SIGKILL" in str(error)
    rest = torch.cat([batch for batch in found if not isinstance(batch, Exception)])[:, 0].tolist()
    # The other shard is whole, and of this one nothing came twice.
    assert [index for index in rest if index % 2 == 0] == list(range(0, 40, 2))
    assert len(set(rest)) == len(rest)


def test_what_cannot_be_read_elsewhere_is_read_by_threads_with_a_warning() -> None:
    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    with pytest.warns(RuntimeWarning, match='iterable_mode="shared" is loaded by threads'):
        batches = list(processes(Numbers(), 5, iterable_mode="shared"))
    assert torch.cat(batches).tolist() == list(range(10))
