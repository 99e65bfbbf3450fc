"""The arguments that torch's DataLoader does not have, and their checks."""

from __future__ import annotations

import math
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from minato_async.cpus import cpu_share
from minato_async.engine.scheduler import WorkerScheduler
from minato_async.gil_watch import gil_is_on

if TYPE_CHECKING:
    from minato_async.loader import MinatoLoader

_ITERABLE_MODES = ("sharded", "shared")
EXECUTORS = ("auto", "thread", "process")
#: Whether "auto" means processes where the GIL is on.
PROCESSES_BY_DEFAULT = True
SCHEDULERS = ("throughput", "paper", "fixed")
ASSIGNMENTS = ("dynamic", "batch")

#: Workers that a loader may grow to for each core it may use, for work that waits.
_WORKERS_PER_CORE = 16


@dataclass(frozen=True)
class Options:
    """How an iterator of a loader works: what its constructor was given, checked and completed."""

    num_workers: int
    #: Samples claimed and not yet delivered; None: whatever is drawn.
    window: int | None
    #: Batches drawn and not yet delivered; None: as many as fill the window.
    batches_ahead: int | None
    #: Each sample has random state of its own.
    isolated: bool
    #: Seconds that `next()` waits for a batch; None: as long as it takes.
    timeout: float | None
    #: Steps applied to `dataset[index]`, one after the other.
    transforms: Sequence[Callable[[Any], Any]]
    #: Seconds of cost after which a sample is slow; None: learned.
    timeout_threshold: float | None
    #: Percentile of recent costs that is the learned threshold.
    threshold_percentile: float
    #: Batches observed before the learned threshold holds.
    warmup_batches: int
    #: Seconds after which a sample has failed; None: never.
    sample_timeout: float | None
    on_error: str | Callable[[Any, BaseException], Any]
    scheduler: str | WorkerScheduler
    #: Workers that may run steps at once.
    max_workers: int
    #: "thread" or "process".
    executor: str
    #: Samples are watched for changes of shared data.
    check: bool


def check_options(loader: MinatoLoader[Any]) -> Options:
    """The options of `loader`, whose torch arguments torch has checked already.

    Raises what torch raises for bad values: TypeError for a wrong type, ValueError otherwise;
    NotImplementedError for `executor="process"` elsewhere than on Linux.
    """
    if not hasattr(loader.num_workers, "__index__"):
        raise TypeError(f"num_workers must be an int, got {loader.num_workers!r}")
    if loader.timeout and loader.num_workers == 0:
        raise ValueError(
            "timeout needs workers to wait for: set num_workers > 0, or leave timeout at 0"
        )
    if loader.iterable_mode not in _ITERABLE_MODES:
        raise ValueError(
            f"iterable_mode must be one of {_ITERABLE_MODES}, got {loader.iterable_mode!r}"
        )
    if loader.iterable_mode == "shared" and not isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            'iterable_mode="shared" is for an IterableDataset, and this dataset is map-style: '
            "its samples are shared out among all workers as it is"
        )
    if isinstance(loader.dataset, IterableDataset):
        _check_for_iterable(loader)
    if loader.prefetch_factor is not None and not hasattr(loader.prefetch_factor, "__index__"):
        raise TypeError(
            f"prefetch_factor must be a number of batches or None, got {loader.prefetch_factor!r}"
        )
    if loader.prefetch_factor is not None and loader.prefetch_factor < 1:
        raise ValueError(
            f"prefetch_factor must be at least 1, got {loader.prefetch_factor}: "
            "with no batch drawn ahead the workers have nothing to load"
        )
    _check_count("max_queue_size", loader.max_queue_size, "sample")
    _check_count("max_workers", loader.max_workers, "worker")
    _check_count("max_displacement", loader.max_displacement, "batch", least=0)
    _check_seconds("timeout_threshold", loader.timeout_threshold)
    _check_seconds("sample_timeout", loader.sample_timeout)
    if loader.num_workers == 0:
        for name in ("max_queue_size", "max_workers", "sample_timeout"):
            if getattr(loader, name) is not None:
                raise ValueError(f"{name} needs workers: set num_workers > 0, or leave it out")
    elif loader.max_workers is not None and loader.max_workers < loader.num_workers:
        raise ValueError(
            f"max_workers={loader.max_workers} is less than num_workers={loader.num_workers}, "
            "with which the loader starts"
        )
    percentile: Any = loader.threshold_percentile
    if isinstance(percentile, bool) or not isinstance(percentile, (int, float)):
        raise TypeError(f"threshold_percentile must be a number, got {percentile!r}")
    if not 0 < percentile <= 100:
        raise ValueError(
            f"threshold_percentile must be more than 0 and at most 100, got {percentile}"
        )
    if isinstance(loader.warmup_batches, bool) or not isinstance(loader.warmup_batches, int):
        raise TypeError(f"warmup_batches must be an int, got {loader.warmup_batches!r}")
    if loader.warmup_batches < 0:
        raise ValueError(f"warmup_batches must not be negative, got {loader.warmup_batches}")
    if not isinstance(loader.check, bool):
        raise TypeError(f"check must be True or False, got {loader.check!r}")
    _check_scheduler(loader.scheduler)
    _check_assignment(loader)
    if loader.seed is not None and loader.seed is not False and type(loader.seed) is not int:
        raise TypeError(
            f"seed must be an int, None, or False for no isolation, got {loader.seed!r}"
        )

    ahead = None
    if loader.max_queue_size is None:
        ahead = (loader.prefetch_factor or 1) * loader.num_workers
    return Options(
        num_workers=loader.num_workers,
        window=loader.max_queue_size,
        batches_ahead=ahead,
        isolated=loader.seed is not False,
        timeout=loader.timeout or None,
        transforms=_checked_transforms(loader.transforms),
        timeout_threshold=loader.timeout_threshold,
        threshold_percentile=loader.threshold_percentile,
        warmup_batches=loader.warmup_batches,
        sample_timeout=loader.sample_timeout,
        on_error=_checked_on_error(loader.on_error),
        scheduler=loader.scheduler,
        max_workers=_most_workers(loader),
        executor=_chosen_executor(loader),
        check=loader.check,
    )


def _check_for_iterable(loader: MinatoLoader[Any]) -> None:
    """What promises something of single samples is refused rather than ignored: an iterator does
    not yield one sample without the one before."""
    for name, default in (
        ("sample_timeout", None),
        ("on_error", "raise"),
        ("max_displacement", None),
        ("check", False),
    ):
        if getattr(loader, name) != default:
            raise ValueError(
                f"{name} is for map-style datasets: an iterable dataset is read sample by sample, "
                "and none can be left out or overtaken; leave it out"
            )


def _chosen_executor(loader: MinatoLoader[Any]) -> str:
    if loader.executor not in EXECUTORS:
        raise ValueError(f"executor must be one of {EXECUTORS}, got {loader.executor!r}")
    starts = starts_processes(loader.multiprocessing_context)
    if loader.executor == "auto":
        by_default = PROCESSES_BY_DEFAULT and can_fork() and starts
        return "process" if by_default and gil_is_on() else "thread"
    if loader.executor == "process" and not can_fork():
        raise NotImplementedError(
            'executor="process" is built for Linux so far: use executor="thread"'
        )
    if loader.executor == "process" and not starts:
        raise ValueError(
            f"multiprocessing_context={loader.multiprocessing_context!r} starts threads and not "
            'processes: use executor="thread" or leave it out, or give another context'
        )
    return loader.executor


def can_fork() -> bool:
    """Whether worker processes are built for this platform."""
    return sys.platform == "linux"


def starts_processes(context: Any) -> bool:
    """Whether a loader's `multiprocessing_context` starts processes. Those of some libraries start
    threads, which torch's loader then takes for its workers."""
    if context is None:
        return True
    start = getattr(context, "Process", None)
    # Of another callable it shows when it has made one.
    return issubclass(start, BaseProcess) if isinstance(start, type) else callable(start)


def start_method(context: Any) -> str:
    """How the user wants processes to be started; `context` is the loader's
    `multiprocessing_context`."""
    if context is not None:
        method: str = context.get_start_method()
        return method
    # Not plainly asked for: that would settle it, and the user may set another one later.
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _most_workers(loader: MinatoLoader[Any]) -> int:
    if loader.scheduler == "fixed":
        return loader.num_workers
    if loader.max_workers is not None:
        return loader.max_workers
    return max(loader.num_workers, math.ceil(cpu_share() * _WORKERS_PER_CORE))


def _check_count(name: str, value: Any, unit: str, least: int = 1) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        units = f"{unit}es" if unit.endswith("ch") else f"{unit}s"
        raise TypeError(f"{name} must be a number of {units} or None, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least} {unit}, got {value}")


def _check_scheduler(scheduler: Any) -> None:
    if isinstance(scheduler, str):
        if scheduler not in SCHEDULERS:
            raise ValueError(
                f"scheduler must be one of {SCHEDULERS} or a WorkerScheduler, got {scheduler!r}"
            )
    elif not isinstance(scheduler, WorkerScheduler):
        raise TypeError(
            f"scheduler must be one of {SCHEDULERS} or have the methods start and decide and an "
            f"interval in seconds, as a WorkerScheduler, got {scheduler!r}"
        )


def _check_assignment(loader: MinatoLoader[Any]) -> None:
    assignment: Any = loader.assignment
    if assignment not in ASSIGNMENTS:
        raise ValueError(f"assignment must be one of {ASSIGNMENTS}, got {assignment!r}")
    if assignment != "batch":
        return
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            'assignment="batch" is for map-style datasets: each shard of an iterable dataset is '
            "read from beginning to end as it is; leave it out"
        )
    if loader.scheduler != "fixed":
        raise ValueError(
            'assignment="batch" needs scheduler="fixed": which worker makes which batch depends on '
            f"how many there are, got scheduler={loader.scheduler!r}"
        )


def _check_seconds(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None, got {value!r}")
    if not value > 0:
        raise ValueError(f"{name} must be more than 0 seconds, got {value}")


def _checked_transforms(transforms: Any) -> Sequence[Callable[[Any], Any]]:
    if transforms is None:
        return ()
    if not isinstance(transforms, (list, tuple)):
        raise TypeError(f"transforms must be a list of callables or None, got {transforms!r}")
    for number, transform in enumerate(transforms):
        if not callable(transform):
            raise TypeError(f"transforms[{number}] is not callable: {transform!r}")
    return tuple(transforms)


def _checked_on_error(on_error: Any) -> str | Callable[[Any, BaseException], Any]:
    if callable(on_error) or on_error in ("raise", "skip"):
        checked: str | Callable[[Any, BaseException], Any] = on_error
        return checked
    if isinstance(on_error, str):
        raise ValueError(f"on_error must be 'raise', 'skip' or a callable, got {on_error!r}")
    raise TypeError(f"on_error must be 'raise', 'skip' or a callable, got {on_error!r}")
