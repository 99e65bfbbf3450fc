"""The cost book: what the sample of each index has cost, kept from one epoch to the next, and in a
file from one run to the next."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from minato_async.user_warnings import warn_user

#: A sample that costs so many times the mean is slow, for the book: it may hold up its batch.
SLOW = 2.0
#: Seconds below which no sample is slow: to claim it early costs about as much as it may gain.
LEAST = 1e-3
#: Samples that were timed together are noted one by one only if they took so many seconds together,
#: and each on average, or if the book knows slow ones, which may be among them: to note one takes
#: some 0.3 µs, under the engine's lock.
WORTH_NOTING, _WORTH_NOTING_EACH = 2e-3, 50e-6
#: Share of all costs that those of slow samples must be for the book to be of use; and seconds that
#: the book takes for each sample then, which must be less than what it may gain. A thread that has
#: to wait for a core makes some trivial samples look slow.
_MATTERS, _TAKES = 0.02, 1e-6
#: Share of the samples that may be unknown for those to be tried out early.
_FEW = 0.25
#: How far a remembered cost goes towards a new one.
_FOLLOWS = 0.5
#: Indices that a book may have: four bytes each.
MOST = 1 << 24
#: Samples that are drawn ahead at most, as indices, to see which are slow.
_FARTHEST = 1 << 14
#: Seconds after which what was learned is written to the file in the middle of an epoch.
SAVE_EVERY = 60.0
_VERSION = 1
#: Exact types of the indices that have a cost: of others, code of the user's might run.
_INTEGERS = frozenset({int, np.int64, np.int32})


class CostBook:
    """Remembered costs, in seconds, of the samples of a dataset with `length` indices.

    The consumer reads, saves and begins epochs; workers note costs, under the engine's lock, in
    the `EpochCosts` of their epoch. Each cost is read and written in one piece, so that no lock is
    shared by two epochs which are loaded at once.
    """

    def __init__(self, length: int) -> None:
        #: 0: unknown.
        self.costs = np.zeros(length, np.float32)
        #: Seconds of all samples, and how many there were, older epochs counting less.
        self._seconds = self._tickets = 0.0
        self._latest: EpochCosts | None = None
        #: An epoch has begun, and not been saved since it ended.
        self.unsaved = False
        # Two threads may call `iter()` on one loader.
        self._lock = threading.Lock()

    @property
    def length(self) -> int:
        return len(self.costs)

    @property
    def mean(self) -> float:
        """Mean cost of a sample, in seconds; 0: unknown."""
        return self._seconds / self._tickets if self._tickets else 0.0

    def begin_epoch(self) -> EpochCosts:
        """What is known at the beginning of an epoch, which adds to it."""
        with self._lock:
            self._take_latest()
            self._seconds, self._tickets = self._seconds / 2, self._tickets / 2
            self._latest = EpochCosts(self.costs, self.mean)
            self.unsaved = True
            return self._latest

    def _take_latest(self) -> None:
        if self._latest is not None:
            seconds, tickets = self._latest.take()
            self._seconds, self._tickets = self._seconds + seconds, self._tickets + tickets

    def contents(self) -> dict[str, Any]:
        """What is written to a file."""
        with self._lock:
            self._take_latest()
            return {"costs": self.costs, "totals": np.array([self._seconds, self._tickets])}

    def restore(self, contents: Any) -> None:
        """Take over `contents`, of a book of the same length."""
        self.costs[:] = contents["costs"]
        self._seconds, self._tickets = map(float, contents["totals"])

    def fill_in(self, costs: Any) -> None:
        """Take from `costs` what is not known here."""
        unknown = self.costs == 0
        self.costs[unknown] = costs[unknown]


class EpochCosts:
    """What one epoch knows of costs, and finds out. Whose method says nothing else is called under
    the engine's lock: no code of the user's is run there, so only integers have costs."""

    def __init__(self, costs: np.ndarray[Any, np.dtype[np.float32]], mean: float) -> None:
        #: Read and written faster than the array itself.
        self._costs: Any = costs.data
        self._length = len(costs)
        self._seconds, self._tickets = 0.0, 0
        #: Mean cost of a sample as of the beginning of the epoch, and that from which one is slow.
        self.mean = mean
        self.limit = max(SLOW * mean, LEAST)
        slow = costs[costs > self.limit] if mean else costs[:0]
        matters = slow.sum() >= (_MATTERS * mean + _TAKES) * self._length
        #: Cost of the slowest; 0: none is known to be slow, or too few to matter.
        self.slowest = float(slow.max()) if matters and len(slow) else 0.0
        #: Indices that were asked for, and how many had no cost.
        self._asked = self._unknown = 0

    def observe(
        self,
        indices: Sequence[Any],
        row: int,
        tickets: int,
        seconds: float,
        long: Sequence[tuple[int, float]] = (),
    ) -> None:
        """The samples of `tickets` of the `indices`, from number `row` on, have cost `seconds`
        together. Of them, the numbers in `long` are known to have cost so much each."""
        self.count(tickets, seconds)
        if tickets == 1:
            self._note(indices[row], seconds)
        elif self.slowest or seconds > max(WORTH_NOTING, tickets * _WORTH_NOTING_EACH):
            known = {number: cost for number, cost in long if row <= number < row + tickets}
            others = max(0.0, seconds - sum(known.values())) / max(1, tickets - len(known))
            for number in range(row, row + tickets):
                self._note(indices[number], known.get(number, others))

    def count(self, tickets: int, seconds: float) -> None:
        """As `observe`, for the mean alone."""
        self._seconds += seconds
        self._tickets += tickets

    def _note(self, index: Any, seconds: float) -> None:
        if type(index) in _INTEGERS and 0 <= index < self._length:
            before = self._costs[index]
            self._costs[index] = before + _FOLLOWS * (seconds - before) if before else seconds

    def take(self) -> tuple[float, int]:
        """The seconds and tickets since this was called last. By the consumer: what a worker adds
        meanwhile may be missed, which a mean can bear."""
        taken = self._seconds, self._tickets
        self._seconds, self._tickets = 0.0, 0
        return taken

    def slow_rows(self, indices: Sequence[Any]) -> Sequence[tuple[int, float]]:
        """The numbers of those `indices` whose samples are slow, and what each costs, in seconds.
        Where the book knows most, those that it does not know are among them, with 0. By the
        consumer, when it draws them."""
        if not self.slowest:
            return ()
        costs, length, limit = self._costs, self._length, self.limit
        found, unknown = [], []
        for row, index in enumerate(indices):
            if type(index) in _INTEGERS and 0 <= index < length:
                cost = costs[index]
                if cost > limit:
                    found.append((row, cost))
                elif not cost:
                    unknown.append((row, 0.0))
        self._asked += len(indices)
        self._unknown += len(unknown)
        return found + unknown if self._unknown <= _FEW * self._asked else found

    def lookahead(self, workers: int, margin: float) -> int:
        """How many samples ahead the slowest sample has to be known to be begun `margin` times its
        cost before it is due: as many as the `workers` make meanwhile."""
        if not self.slowest:
            return 0
        return min(_FARTHEST, int(margin * workers * self.slowest / self.mean) + 1)


class CostFile:
    """Keeps a book in the file at `path`.

    It is written as a whole, beside the old one, and renamed: a process that is killed at any
    moment leaves the one or the other. A file that is not this dataset's book is left as it is.
    """

    def __init__(self, path: str | os.PathLike[str], book: CostBook, dataset: str) -> None:
        self._path = Path(os.fspath(path))
        self._book = book
        self._dataset = dataset
        #: The file is somebody else's, or cannot be written: what to say was said.
        self._useless = False
        self._saved = monotonic()

    def load(self) -> None:
        """Take over what the file has, if it is of this dataset. Warns if it is not."""
        if (contents := self._read()) is not None:
            self._book.restore(contents)

    def save_now_and_then(self) -> None:
        """In the middle of an epoch."""
        if monotonic() - self._saved > SAVE_EVERY:
            self.save()

    def save_epoch(self) -> None:
        """What an epoch has found out, once: at its end, or when the next one begins."""
        if self._book.unsaved:
            self._book.unsaved = False
            self.save()

    def save(self) -> None:
        """Write the book. Warns, once, if that cannot be done."""
        self._saved = monotonic()
        # Ranks of one training have a book each and one file: what each has seen is in it.
        others = None if self._useless else self._read()
        if self._useless:
            return
        if others is not None:
            self._book.fill_in(others["costs"])
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            with open(new, "wb") as file:
                contents = self._book.contents()
                np.savez(file, version=_VERSION, dataset=self._dataset, **contents)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError as error:
            new.unlink(missing_ok=True)
            self._refuse(f"cannot be written ({error})")

    def _read(self) -> dict[str, Any] | None:
        """What the file has, None: nothing to be used."""
        try:
            with np.load(self._path, allow_pickle=False) as file:
                found = dict(file)
            version, dataset = int(found["version"]), str(found["dataset"])
            if version == _VERSION:
                found["costs"] = _seconds(found["costs"])
                found["totals"] = _seconds(found["totals"]).reshape(2)
            length = len(found["costs"])
        except FileNotFoundError:
            return None
        except Exception as error:  # of a damaged one, zipfile and numpy raise nearly anything
            self._refuse(f"cannot be read as a cost book ({type(error).__name__}: {error})")
            return None
        if version != _VERSION:
            self._refuse(f"is of version {version}, and this release reads {_VERSION}")
        elif dataset != self._dataset or length != self._book.length:
            self._refuse(
                f"is of another dataset: {dataset} with {length} samples, and this is "
                f"{self._dataset} with {self._book.length}"
            )
        else:
            return found
        return None

    def _refuse(self, why: str) -> None:
        self._useless = True
        warn_user(
            f"the cost book {str(self._path)!r} {why}: it is ignored and left as it is, and costs "
            "are kept for this run only",
            RuntimeWarning,
        )


def _seconds(found: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What a file has, as a row of costs. Raises TypeError or ValueError if it cannot be one."""
    costs = np.asarray(found, np.float64)
    if costs.ndim != 1 or not np.isfinite(costs).all() or (costs < 0).any():
        raise ValueError("these are no seconds")
    return costs
