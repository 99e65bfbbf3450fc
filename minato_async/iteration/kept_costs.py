"""A loader's cost book, and the file that it is kept in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from minato_async.options import check_options
from minato_async.scheduling.cost_book import MOST, CostBook, CostFile


@dataclass(frozen=True)
class KeptCosts:
    """The cost book of one loader, used by its consumers."""

    #: The option that asked for it.
    given: str | os.PathLike[str]
    book: CostBook
    #: None: it is kept with the loader alone.
    file: CostFile | None


def kept_costs(loader: DataLoader[Any], known: KeptCosts | None) -> KeptCosts | None:
    """The book for an epoch that `loader` is about to begin: the one that is `known`, or a new one;
    None: there is none."""
    given = check_options(loader).costs
    if given is None:
        return None
    dataset: Any = loader.dataset
    try:
        length = len(dataset)
    except Exception:  # there may be none, and it is the user's code
        return None
    if not 0 < length <= MOST:
        return None
    if known is not None and known.given == given and known.book.length == length:
        if known.file is not None:
            known.file.save_epoch()  # it may have been left early
        return known
    book, file = CostBook(length), None
    if given != "auto":
        file = CostFile(given, book, type(dataset).__qualname__)
        file.load()
    return KeptCosts(given, book, file)
