"""What `executor` may be, and what of processes is not built."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from minato_async import MinatoLoader
from tests.processes.support import Made, flat, processes
from tests.semantics.support import iterating


def test_executor_must_be_known() -> None:
    with pytest.raises(ValueError, match="executor must be one of"):
        MinatoLoader(range(4), executor="fibre")  # type: ignore[arg-type]


@pytest.mark.parametrize(("gil", "children"), [(True, 1), (False, 0)])
def test_auto_is_processes_where_the_gil_is_on(
    gil: bool, children: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minato_async.options.gil_is_on", lambda: gil)
    with iterating(MinatoLoader(range(4), num_workers=1)) as iterator:  # type: ignore[arg-type]
        next(iterator)
        assert len(psutil.Process().children()) == children


def test_gil_that_is_turned_on_between_epochs_ends_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = MinatoLoader(Made(4), num_workers=1, persistent_workers=True)  # type: ignore[arg-type,var-annotated]
    monkeypatch.setattr("minato_async.options.gil_is_on", lambda: False)
    assert flat(loader) == list(range(4))
    assert psutil.Process().children() == []
    monkeypatch.setattr("minato_async.options.gil_is_on", lambda: True)
    with iterating(loader):
        assert flat(loader) == list(range(4))
        assert len(psutil.Process().children()) == 1


def test_dataset_may_be_given_attributes_while_it_is_looked_at() -> None:
    """By a thread of its own, say; here by an attribute that is a proxy and is looked at."""

    class Proxy:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            dataset.__dict__.setdefault("seen", 1)
            return Proxy

    dataset: Any = Made(4)
    dataset.proxy = Proxy()
    dataset.more = 1
    assert flat(processes(dataset, 2)) == list(range(4))
