"""What a loader is doing: a snapshot of its queues, lanes, workers and costs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepCosts:
    """Recent costs of one step, in seconds of wall time inside it.

    Samples that are claimed together are timed together: each counts with their mean.
    """

    name: str
    samples: int
    p50: float
    p75: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class Stats:
    """A snapshot of the epoch that the latest iterator of a loader is loading, or has loaded.

    Taken under the engine's lock, so its numbers belong together. Counts are of this epoch.
    """

    #: Workers that the worker scheduler wants, workers inside a step, threads or processes there
    #: are.
    workers: int = 0
    active: int = 0
    threads: int = 0
    #: Of the active ones, those that serve the slow lane.
    slow_active: int = 0
    #: Workers waiting, inside a slow sample, for a place in the slow lane.
    parked: int = 0
    #: Samples claimed and not delivered, and how many there may be; None: whatever was drawn.
    in_window: int = 0
    window: int | None = 0
    #: Tickets drawn and not claimed.
    unclaimed: int = 0
    #: Samples that the cost book knew to be slow and that were claimed out of turn.
    claimed_early: int = 0
    #: Slow samples that no worker is running.
    temp_queue: int = 0
    #: Batches complete and not taken.
    ready_batches: int = 0
    #: Bytes of tensors and arrays in those batches.
    ready_bytes: int = 0
    #: Batches that the stage between collating and delivering (pinning, say) has begun and the
    #: consumer has not taken, and bytes of those that it is done with.
    in_stage: int = 0
    in_stage_bytes: int = 0
    #: With `device`: batches that were copied there and that the consumer has taken, their bytes,
    #: and seconds that the device copied.
    copied_batches: int = 0
    copied_bytes: int = 0
    copy_seconds: float = 0.0
    #: How many of them were not ready on the device when the consumer took them, and seconds that
    #: its stream then waited for the copy and for `device_transform`.
    copy_waits: int = 0
    copy_waited: float = 0.0
    #: Share of the time for copies and `device_transform` in which the consumer did not wait for
    #: them.
    copy_hidden: float = 1.0
    #: Seconds of cost after which a sample is slow; infinite before there is a threshold.
    threshold: float = float("inf")
    #: Samples finished; of these diverted between two steps; stuck workers in whose place another
    #: was started.
    finished: int = 0
    diverted: int = 0
    handed_off: int = 0
    #: Samples that failed and were replaced by none, and of these skipped: their indices and
    #: errors. Tracebacks keep what they show; so an error has none here, but a note of it.
    failed: int = 0
    skipped: tuple[tuple[object, BaseException], ...] = ()
    #: Most batches by which a ready sample has been passed over.
    displacement: int = 0
    #: Batches that the consumer took, and seconds it spent waiting for them inside `next()`.
    delivered: int = 0
    data_wait: float = 0.0
    #: Of these, seconds in which batches behind the one that was due were ready.
    held_up: float = 0.0
    #: Seconds since the epoch began, and samples finished a second since then.
    seconds: float = 0.0
    throughput: float = 0.0
    steps: tuple[StepCosts, ...] = ()
    #: (seconds since the engine started, workers wanted), whenever that changed.
    worker_history: tuple[tuple[float, int], ...] = field(default=(), repr=False)

    @property
    def copy_rate(self) -> float:
        """Bytes copied to the device in a second of copying; nan if none were."""
        return self.copied_bytes / self.copy_seconds if self.copy_seconds else float("nan")
