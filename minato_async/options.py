"""The arguments that torch's DataLoader does not have, and their checks."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from minato_async.engine.recorder import Recorder
from minato_async.lifecycle.gil_watch import gil_is_on
from minato_async.scheduling.cpus import cpu_share
from minato_async.scheduling.schedulers import WorkerScheduler

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
    """How a loader works: what its constructor was given beside torch's arguments, checked and
    completed. Who needs torch's takes the loader, as a `DataLoader`, as well."""

    num_workers: int
    #: As given: None leaves it to `choose_order`.
    in_order: bool | None
    #: "sharded" or "shared".
    iterable_mode: str
    #: As given: None: drawn as torch draws it; False: samples have no random state of their own.
    seed: int | None
    #: "dynamic" or "batch".
    assignment: str
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
    #: The cost book. None: none; "auto": it is kept with the loader; or the path of a file.
    costs: str | os.PathLike[str] | None
    #: Batches read of a shard from one snapshot of its own state to the next.
    snapshot_every: int
    #: Where batches are delivered; None: where they were collated.
    device: torch.device | None
    #: What is done with each batch there.
    device_transform: Callable[[Any], Any] | None
    #: Who is told what becomes of samples, if anybody is.
    recorder: Recorder | None = None


def check_options(loader: DataLoader[Any]) -> Options:
    """The options of `loader`, whose torch arguments torch has checked already. They are read from
    its attributes: users and frameworks set them between two epochs.

    Raises what torch raises for bad values: TypeError for a wrong type, ValueError otherwise;
    NotImplementedError for `executor="process"` elsewhere than on Linux.
    """
    # A `MinatoLoader`, or what has its attributes: this module is imported by that of the class.
    given: Any = loader
    if not hasattr(given.num_workers, "__index__"):
        raise TypeError(f"num_workers must be an int, got {given.num_workers!r}")
    if given.timeout and given.num_workers == 0:
        raise ValueError(
            "timeout needs workers to wait for: set num_workers > 0, or leave timeout at 0"
        )
    if given.iterable_mode not in _ITERABLE_MODES:
        raise ValueError(
            f"iterable_mode must be one of {_ITERABLE_MODES}, got {given.iterable_mode!r}"
        )
    if given.iterable_mode == "shared" and not isinstance(given.dataset, IterableDataset):
        raise ValueError(
            'iterable_mode="shared" is for an IterableDataset, and this dataset is map-style: '
            "its samples are shared out among all workers as it is"
        )
    if isinstance(given.dataset, IterableDataset):
        _check_for_iterable(given)
    if given.prefetch_factor is not None and not hasattr(given.prefetch_factor, "__index__"):
        raise TypeError(
            f"prefetch_factor must be a number of batches or None, got {given.prefetch_factor!r}"
        )
    if given.prefetch_factor is not None and given.prefetch_factor < 1:
        raise ValueError(
            f"prefetch_factor must be at least 1, got {given.prefetch_factor}: "
            "with no batch drawn ahead the workers have nothing to load"
        )
    _check_count("max_queue_size", given.max_queue_size, "sample")
    _check_count("max_workers", given.max_workers, "worker")
    _check_count("snapshot_every_n_steps", given.snapshot_every_n_steps, "batch")
    _check_count("max_displacement", given.max_displacement, "batch", least=0)
    _check_seconds("timeout_threshold", given.timeout_threshold)
    _check_seconds("sample_timeout", given.sample_timeout)
    if given.num_workers == 0:
        for name in ("max_queue_size", "max_workers", "sample_timeout"):
            if getattr(given, name) is not None:
                raise ValueError(f"{name} needs workers: set num_workers > 0, or leave it out")
    elif given.max_workers is not None and given.max_workers < given.num_workers:
        raise ValueError(
            f"max_workers={given.max_workers} is less than num_workers={given.num_workers}, "
            "with which the loader starts"
        )
    percentile: Any = given.threshold_percentile
    if isinstance(percentile, bool) or not isinstance(percentile, (int, float)):
        raise TypeError(f"threshold_percentile must be a number, got {percentile!r}")
    if not 0 < percentile <= 100:
        raise ValueError(
            f"threshold_percentile must be more than 0 and at most 100, got {percentile}"
        )
    if isinstance(given.warmup_batches, bool) or not isinstance(given.warmup_batches, int):
        raise TypeError(f"warmup_batches must be an int, got {given.warmup_batches!r}")
    if given.warmup_batches < 0:
        raise ValueError(f"warmup_batches must not be negative, got {given.warmup_batches}")
    if not isinstance(given.check, bool):
        raise TypeError(f"check must be True or False, got {given.check!r}")
    _check_scheduler(given.scheduler)
    _check_assignment(given)
    if given.costs is not None and not isinstance(given.costs, (str, os.PathLike)):
        raise TypeError(f"costs must be 'auto', a path, or None, got {given.costs!r}")
    if given.costs == "":
        raise ValueError("costs must be 'auto', a path, or None, got an empty string")
    if given.seed is not None and given.seed is not False and type(given.seed) is not int:
        raise TypeError(f"seed must be an int, None, or False for no isolation, got {given.seed!r}")

    ahead = None
    if given.max_queue_size is None:
        ahead = (given.prefetch_factor or 1) * given.num_workers
    return Options(
        num_workers=given.num_workers,
        in_order=given.in_order,
        iterable_mode=given.iterable_mode,
        seed=given.seed,
        assignment=given.assignment,
        window=given.max_queue_size,
        batches_ahead=ahead,
        isolated=given.seed is not False,
        timeout=given.timeout or None,
        transforms=_checked_transforms(given.transforms),
        timeout_threshold=given.timeout_threshold,
        threshold_percentile=given.threshold_percentile,
        warmup_batches=given.warmup_batches,
        sample_timeout=given.sample_timeout,
        on_error=_checked_on_error(given.on_error),
        scheduler=given.scheduler,
        max_workers=_most_workers(given),
        executor=_chosen_executor(given),
        check=given.check,
        device=_checked_device(given.device),
        device_transform=_checked_device_transform(given),
        recorder=getattr(given, "_recorder", None),
        snapshot_every=given.snapshot_every_n_steps or 1,
        costs=given.costs,
    )


def _check_for_iterable(given: Any) -> None:
    """What promises something of single samples is refused rather than ignored: an iterator does
    not yield one sample without the one before."""
    for name, default in (
        ("sample_timeout", None),
        ("on_error", "raise"),
        ("max_displacement", None),
        ("check", False),
    ):
        if getattr(given, name) != default:
            raise ValueError(
                f"{name} is for map-style datasets: an iterable dataset is read sample by sample, "
                "and none can be left out or overtaken; leave it out"
            )


def _chosen_executor(given: Any) -> str:
    if given.executor not in EXECUTORS:
        raise ValueError(f"executor must be one of {EXECUTORS}, got {given.executor!r}")
    starts = starts_processes(given.multiprocessing_context)
    if given.executor == "auto":
        by_default = PROCESSES_BY_DEFAULT and can_fork() and starts
        return "process" if by_default and gil_is_on() else "thread"
    if given.executor == "process" and not can_fork():
        raise NotImplementedError(
            'executor="process" is built for Linux so far: use executor="thread"'
        )
    if given.executor == "process" and not starts:
        raise ValueError(
            f"multiprocessing_context={given.multiprocessing_context!r} starts threads and not "
            'processes: use executor="thread" or leave it out, or give another context'
        )
    chosen: str = given.executor
    return chosen


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


def _most_workers(given: Any) -> int:
    workers: int = given.num_workers
    most: int | None = given.max_workers
    if given.scheduler == "fixed":
        return workers
    if most is not None:
        return most
    return max(workers, math.ceil(cpu_share() * _WORKERS_PER_CORE))


def _checked_device(device: Any) -> torch.device | None:
    if device is None:
        return None
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        raise TypeError(f"device must be a torch.device, its name, or None, got {device!r}")
    try:
        checked = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be a torch.device or its name, got {device!r}") from error
    if checked.type == "meta":
        raise ValueError("device='meta' has no memory to deliver batches in")
    return checked


def _checked_device_transform(given: Any) -> Callable[[Any], Any] | None:
    transform: Callable[[Any], Any] | None = given.device_transform
    if transform is None:
        return None
    if not callable(transform):
        raise TypeError(f"device_transform must be a callable or None, got {transform!r}")
    if given.device is None:
        raise ValueError(
            "device_transform runs on the device on which batches are delivered: give device, "
            "which may be 'cpu', too"
        )
    return transform


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


def _check_assignment(given: Any) -> None:
    assignment: Any = given.assignment
    if assignment not in ASSIGNMENTS:
        raise ValueError(f"assignment must be one of {ASSIGNMENTS}, got {assignment!r}")
    if assignment != "batch":
        return
    if isinstance(given.dataset, IterableDataset):
        raise ValueError(
            'assignment="batch" is for map-style datasets: each shard of an iterable dataset is '
            "read from beginning to end as it is; leave it out"
        )
    if given.scheduler != "fixed":
        raise ValueError(
            'assignment="batch" needs scheduler="fixed": which worker makes which batch depends on '
            f"how many there are, got scheduler={given.scheduler!r}"
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
