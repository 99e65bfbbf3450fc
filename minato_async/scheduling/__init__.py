"""How many workers, how large a claim, how slow is slow: policies that know no engine."""

from minato_async.scheduling.schedulers import (
    FixedScheduler,
    PaperScheduler,
    Reading,
    ThroughputScheduler,
    WorkerScheduler,
)

__all__ = [
    "FixedScheduler",
    "PaperScheduler",
    "Reading",
    "ThroughputScheduler",
    "WorkerScheduler",
]
