"""What the engine has to know to turn tickets into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Rows(Protocol):
    """One batch's tensors, into which finished samples are written row by row."""

    def write(self, row: int, sample: Any) -> Any:
        """Write what can be written of `sample`; returns what to keep in its place."""

    def collate(self, samples: list[Any]) -> Any:
        """The batch, from what `write` returned and from samples that were never written."""


class RowWriter(Protocol):
    """Decides whether a sample is worth writing straight into its batch."""

    def pays(self, sample: Any) -> bool: ...

    def rows(self, size: int) -> Rows: ...


@dataclass(frozen=True)
class Recipe:
    """How a ticket's index becomes a sample and how samples become a batch."""

    fetch: Callable[[Any], Any]
    collate: Callable[[list[Any]], Any]
    #: Names the step `fetch` in error messages.
    step: str
    #: None: every batch goes through `collate`.
    row_writer: RowWriter | None = None
