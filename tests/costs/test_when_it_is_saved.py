"""When a loader writes its cost book to the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minato_async import MinatoLoader
from minato_async.scheduling.cost_book import CostFile


class Numbers:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


def test_once_for_each_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    save = CostFile.save

    def noted(file: CostFile) -> None:
        saved.append(file)
        save(file)

    monkeypatch.setattr(CostFile, "save", noted)
    loader: MinatoLoader[Any] = MinatoLoader(
        Numbers(),  # type: ignore[arg-type]
        batch_size=4,
        num_workers=2,
        costs=tmp_path / "book.npz",
    )
    for epoch in (1, 2, 3):
        iterator = iter(loader)
        assert len(list(iterator)) == 10
        assert next(iterator, None) is None
        assert len(saved) == epoch
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    assert len(saved) == 3
    # What was left early is saved when the next one begins.
    iter(loader).close()
    assert len(saved) == 4
