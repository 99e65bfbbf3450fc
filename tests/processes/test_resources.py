"""`per_worker` on worker processes, which are forked from one that may have used it."""

from __future__ import annotations

import os

from minato_async import per_worker
from tests.processes.support import Made, processes


def test_a_resource_that_was_used_before_the_fork_is_made_anew() -> None:
    own = per_worker(os.getpid)
    here = own()
    loader = processes(Made(8, lambda _: (own(), os.getpid())), 4, collate_fn=list)
    for maker, worker in (pair for batch in loader for pair in batch):
        assert maker == worker != here
    assert own() == here


def test_what_the_fork_brought_along_is_not_released() -> None:
    """A server would be told of the end of a connection that the parent goes on using."""

    class Connection:
        def __del__(self) -> None:
            released.append(os.getpid())

    released: list[int] = []
    own = per_worker(Connection)
    own()

    def sample(_: int) -> int:
        own()
        return len(released)

    batches = list(processes(Made(8, sample), 4, collate_fn=list))
    assert [count for batch in batches for count in batch] == [0] * 8
