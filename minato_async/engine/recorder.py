"""Recorders: who is told what becomes of samples, as it happens."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from minato_async.engine.batch import Batch
from minato_async.engine.feed import Block


class Outcome(Enum):
    """What has become of a ticket."""

    #: There is a sample, the user's replacement for a failed one included.
    FINISHED = "finished"
    FAILED = "failed"
    SKIPPED = "skipped"


class Recorder:
    """Told what becomes of samples; this one does nothing about it.

    A recorder is plain state and runs no code of the user's: a call takes no lock, waits for
    nothing and raises nothing. It keeps no block and no batch, which hold objects of the user's.
    To have one told, set the loader's `_recorder` before `iter()`. Without workers, nobody is told;
    of an iterable dataset only what is `taken`.

    A sample is a row of a block. The engine's lock is held in every call but for `began`, `ended`,
    `unparked` and `collated`, which worker threads make without it. What a worker process does is
    told when its replies come; so it sends its times along. They are those of
    `time.perf_counter()`, which is one clock for all processes of a machine.

    The life of a row is: claimed, any number of steps that begin and end, perhaps diverted and
    resumed or handed off in between, settled. If its worker stops in the middle it is returned, and
    claimed, or resumed, again; of a worker that has died the last step is not told. A worker whose
    sample has expired may end its step after the row was settled by another. Rows of a batch that
    is lost are not settled if they were never begun. Of iterable datasets, only `taken` is told.
    """

    #: To be told of everything, and not only of what is rare: `diverted`, `handed_off`, `taken`,
    #: and `settled` for samples that are not finished.
    detailed: bool = False

    def claimed(self, block: Block, rows: Sequence[int], worker: str) -> None:
        """`worker` has tickets of the feed, and will run them one after the other."""

    def returned(self, block: Block, rows: Sequence[int]) -> None:
        """The worker that has `rows` does not finish them: another will."""

    def began(self, block: Block, row: int, step: int, worker: str, when: float) -> None:
        """A step begins. Where there is one only, those of `row` and of what follows it in the
        claim are timed together, and have one beginning and one end."""

    def ended(self, block: Block, rows: Sequence[int], step: int, worker: str, when: float) -> None:
        """The step that has begun is over, whether it has returned or raised; if it was that of
        several rows, of `rows`. There may be none: others have taken them. Of rows that are timed
        together, those that are finished may have been settled before."""

    def diverted(self, block: Block, row: int) -> None:
        """Between two steps `row` has left its worker, and waits in the temp queue."""

    def resumed(self, block: Block, row: int, worker: str) -> None:
        """`worker` goes on with what was diverted."""

    def parked(self, block: Block, row: int, worker: str) -> None:
        """Inside a step `worker` waits for others to go first."""

    def unparked(self, block: Block, row: int, worker: str) -> None:
        """It goes on."""

    def handed_off(self, block: Block, row: int) -> None:
        """The worker of `row` is stuck in a step; another is started in its place."""

    def expired(self, block: Block, row: int) -> None:
        """Nobody waits for the worker of `row` any more. Whoever decides now what becomes of the
        row runs no steps."""

    def settled(self, block: Block, rows: Sequence[int], outcome: Outcome) -> None:
        """It is decided what becomes of `rows`, once for each."""

    def collated(self, batch: Batch, worker: str, began: float, ended: float) -> None:
        """`worker` has made `batch` of its samples, or has failed to."""

    def taken(self, batch: Batch, waited: float) -> None:
        """The consumer has taken `batch`, for which it has waited so many seconds. A void one is
        taken too, and given to nobody."""


class Both(Recorder):
    """Tells two recorders."""

    def __init__(self, first: Recorder, second: Recorder) -> None:
        self._both = first, second
        self.detailed = first.detailed or second.detailed

    def claimed(self, block: Block, rows: Sequence[int], worker: str) -> None:
        for recorder in self._both:
            recorder.claimed(block, rows, worker)

    def returned(self, block: Block, rows: Sequence[int]) -> None:
        for recorder in self._both:
            recorder.returned(block, rows)

    def began(self, block: Block, row: int, step: int, worker: str, when: float) -> None:
        for recorder in self._both:
            recorder.began(block, row, step, worker, when)

    def ended(self, block: Block, rows: Sequence[int], step: int, worker: str, when: float) -> None:
        for recorder in self._both:
            recorder.ended(block, rows, step, worker, when)

    def diverted(self, block: Block, row: int) -> None:
        for recorder in self._both:
            recorder.diverted(block, row)

    def resumed(self, block: Block, row: int, worker: str) -> None:
        for recorder in self._both:
            recorder.resumed(block, row, worker)

    def parked(self, block: Block, row: int, worker: str) -> None:
        for recorder in self._both:
            recorder.parked(block, row, worker)

    def unparked(self, block: Block, row: int, worker: str) -> None:
        for recorder in self._both:
            recorder.unparked(block, row, worker)

    def handed_off(self, block: Block, row: int) -> None:
        for recorder in self._both:
            recorder.handed_off(block, row)

    def expired(self, block: Block, row: int) -> None:
        for recorder in self._both:
            recorder.expired(block, row)

    def settled(self, block: Block, rows: Sequence[int], outcome: Outcome) -> None:
        for recorder in self._both:
            recorder.settled(block, rows, outcome)

    def collated(self, batch: Batch, worker: str, began: float, ended: float) -> None:
        for recorder in self._both:
            recorder.collated(batch, worker, began, ended)

    def taken(self, batch: Batch, waited: float) -> None:
        for recorder in self._both:
            recorder.taken(batch, waited)
