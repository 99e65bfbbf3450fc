"""Case 18. Cases 14 to 17 are in `tests/semantics`: see the README."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.loaders import LoaderKind
from tests.semantics.support import assert_same, lists


def test_case_18_lambdas_and_local_classes(every_loader: LoaderKind) -> None:
    offset = 10

    class Local:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, key: Any) -> Any:
            info = get_worker_info()
            return LocalSample(key + offset, None if info is None else info.dataset.told)

        told: Any = None

    class LocalSample:
        def __init__(self, value: int, told: Any) -> None:
            self.value = value
            self.told = told

    class LocalSampler:
        def __iter__(self) -> Any:
            yield from (lambda: [5, 4, 3, 2, 1, 0])()

    loader = every_loader(
        Local(),
        2,
        sampler=LocalSampler(),
        collate_fn=lambda samples: [(s.value, s.told) for s in samples],
        worker_init_fn=lambda worker: setattr(get_worker_info().dataset, "told", "told"),
    )
    told = "told" if every_loader.num_workers else None
    assert list(loader) == [
        [(15, told), (14, told)],
        [(13, told), (12, told)],
        [(11, told), (10, told)],
    ]


def test_case_18_local_stream_of_lambdas(every_loader: LoaderKind) -> None:
    class Local(IterableDataset[Any]):
        def __iter__(self) -> Any:
            info = get_worker_info()
            shard = 0 if info is None else info.id
            return iter([shard] if shard < 2 else [])

    loader = every_loader(Local(), collate_fn=lambda samples: torch.tensor(samples))
    expected = [[0], [1]] if every_loader.num_workers else [[0]]
    assert_same(lists(loader), expected)
