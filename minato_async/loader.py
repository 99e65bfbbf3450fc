"""MinatoLoader: torch's DataLoader, on workers that never wait for a slow sample."""

from __future__ import annotations

import copy
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from minato_async.engine.recorder import Recorder
from minato_async.iteration.iterable import SerialIterableIterator, ShardedIterator
from minato_async.iteration.iterators import LoaderIterator, MapIterator, SerialMapIterator
from minato_async.iteration.kept_costs import KeptCosts
from minato_async.iteration.per_device import DeviceIterator, share_out
from minato_async.options import check_options
from minato_async.replicas.pool import ReplicaPool
from minato_async.resuming.random_states import put
from minato_async.resuming.samplers import generators_of
from minato_async.resuming.state import (
    Progress,
    check_state,
    load_dataset,
    state_of,
    tell_epochs,
)
from minato_async.sample.pinning import pins_memory
from minato_async.scheduling.cpus import usable_cpus
from minato_async.scheduling.schedulers import WorkerScheduler
from minato_async.seeding import install as install_streams
from minato_async.stats import Stats
from minato_async.user_warnings import warn_user

T_co = TypeVar("T_co", covariant=True)

# Guards `_epochs` of every loader: one may be iterated from several threads at once. It is no
# attribute, because loaders are copied and pickled.
_epochs_lock = threading.Lock()


class MinatoLoader(DataLoader[T_co]):
    """A `torch.utils.data.DataLoader` whose workers are threads, or processes where the GIL is on.

    Arguments that are not named below mean what they mean for torch's loader.

    Args:
        dataset: map-style, or an `IterableDataset`. The latter is read in `num_workers` shards,
            each with a shallow copy of the dataset and told by `get_worker_info()` to be that
            worker; any thread may advance any shard, but one at a time. A process has its shard to
            itself.
        batch_size: samples in a batch; None: samples come one by one, uncollated.
        shuffle: draw the indices in a new random order every epoch.
        sampler: yields the indices of an epoch, instead of `shuffle`.
        batch_sampler: yields lists of indices, instead of `batch_size`, `shuffle`, `sampler` and
            `drop_last`.
        num_workers: workers that load, see `executor`; 0: the caller's thread loads, in `next()`.
        collate_fn: makes a batch of a list of samples; runs on a worker.
        drop_last: drop a last batch that is smaller than `batch_size`.
        generator: the source of random order.
        prefetch_factor: batches drawn ahead, for each worker (default 2).
        persistent_workers: keep the workers from one epoch to the next.
        in_order: True: batches are those that the sampler drew, in its order. False: ready
            samples come first, so that a slow one holds up nobody; a short last batch comes last.
            None: as False where the order is random anyway and reproducibility was not asked for,
            by `torch.manual_seed`, a `generator`, a `seed` or
            `torch.use_deterministic_algorithms`; as True everywhere else.
        max_queue_size: samples that may be claimed by workers and not yet delivered, at least
            one batch; None: `prefetch_factor` * `num_workers` batches.
        iterable_mode: for an iterable dataset. "sharded": each shard has its own iterator, as
            with torch. "shared": there is one iterator, read by one worker at a time, and what it
            yields is collated by all; a dataset or `worker_init_fn` that divides the data by
            `get_worker_info()` is told to be the only worker. On processes, one of them has the
            iterator, and all share out the `transforms` and a `collate_fn` that is not torch's.
        seed: base seed of the random state that each sample has for itself: what it draws from
            `random`, `numpy.random`, torch, and generators that its code holds, depends on (seed,
            epoch, index) alone. None: drawn
            as torch draws it, from `generator`. False: off, workers draw from the process-wide
            generators; those of a worker process are its own, seeded as with torch. With
            `num_workers=0` it is off unless a seed is given.
        transforms: steps applied to `dataset[index]`, one after the other. Between two of them a
            slow sample can be diverted, so that its worker goes on with others. To what an
            iterable dataset yields they are applied by the worker that reads the shard; nothing is
            diverted there, for a shard is read from one end to the other. One that raises costs
            the batch that its sample was read for.
        timeout_threshold: seconds inside steps after which a sample is slow; None: learned.
        threshold_percentile: the percentile of recent costs that is the learned threshold.
        warmup_batches: batches observed before the threshold holds, at most a tenth of an epoch.
        scheduler: how the number of workers is chosen, from `num_workers` on. "throughput": what
            loads most; "paper": as MinatoLoader (EuroSys 2026) does; "fixed": it stays. Or a
            `WorkerScheduler` of your own.
        max_displacement: with ready samples first, batches that may pass a ready sample over: they
            were begun after its own and are delivered before. None: any number. Samples go into
            batches in the order in which they become ready, so a batch is overtaken only while it
            is being collated; with a bound the others then wait for it. 0: never. Batches of a
            batch sampler of your own stay as drawn, and are not bound; nor is a short last batch,
            which all others pass.
        assignment: which worker loads what. "dynamic": whoever is free takes what is next. "batch":
            batch n of an epoch, in the order drawn, is loaded whole, sample after sample, and
            collated by worker n modulo `num_workers`, as with torch. For a dataset whose samples
            depend on what their worker has loaded before; slow samples are not diverted then, and
            `in_order=None` is True. Needs `scheduler="fixed"`; not for iterable datasets; with
            `num_workers=0` there is one worker as it is.
        snapshot_every_n_steps: for an iterable dataset with `state_dict`, or whose iterator has it:
            after how many batches of a shard it is asked for its state, which resuming goes on
            from; batches in between are read again. Map-style datasets need none.
        max_workers: workers that may load at once; None: chosen from the CPUs that this process
            may use, beyond them for work that waits. With `scheduler="fixed"`, and for iterable
            datasets on processes, it is `num_workers`.
        sample_timeout: seconds after which a sample has failed. A thread that is in it cannot be
            killed: it is abandoned and replaced. A process is killed and replaced.
        on_error: what to do with a sample that fails. "raise": raise it from `next()`; "skip":
            leave it out, and list it in `stats.skipped`; or a function of its index and the error,
            which returns a sample to take its place.
        executor: what loads. "thread"; "process": worker processes; "auto": processes where the
            GIL is on, on Linux, else threads. Asked anew for every epoch.
        multiprocessing_context: a start method of `multiprocessing`, or a context of it, for
            processes; None: that of `multiprocessing.set_start_method`, or the platform's. One
            whose `Process` is a thread, such as MONAI's, means threads. With
            another than "fork" the dataset, `collate_fn`, `worker_init_fn`, `transforms` and
            `on_error` are pickled at `iter()`, which raises what that raises.
        check: a debugging mode. Steps run one at a time, and one that changes an array or a tensor
            in place that the dataset or a transform refers to raises RuntimeError, which names the
            attribute and the sample. Slow: all that data is read for every sample.
        device: where batches are delivered: a `torch.device`, or its name or index. Each is copied
            while the step before works on another: from pinned memory, on a stream of its own, by a
            thread that is neither a worker's nor the consumer's. What the consumer has the device
            do after `next()`, on the stream that is its current one then, finds the batch there;
            for another stream call `record_stream` yourself. At most `prefetch_factor` batches (2
            if that is None) are on the device before they are taken. With `num_workers=0` it is
            copied in `next()`. None: batches stay where they were collated. See `docs/device.md`.
        device_transform: a function of a batch on the device that returns the batch to deliver:
            augmentations, normalisation, casts. It runs on the prefetch's stream, for one batch
            after the other, in one thread; it is this object itself and no copy. What it draws
            depends on (seed, epoch, indices of the batch) alone. With `device` only, which may be
            "cpu".
        costs: the cost book, which remembers what the sample of each index has cost. Samples that
            it knows to be slow are begun before their turn, as far as the window allows, so that
            they are ready when their batch is due. "auto": kept from one epoch to the next, as long
            as this loader lives. A path: kept in that file from one run to the next, too; one that
            is of another dataset is ignored, with a warning. None: no book. For map-style datasets
            whose keys are integers.

    Raises:
        ValueError, TypeError: for bad arguments, as torch does.
        NotImplementedError: for `executor="process"` elsewhere than on Linux.
        RuntimeError: from `iter()`, if torch does not find `device`.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool | None = None,
        max_queue_size: int | None = None,
        iterable_mode: str = "sharded",
        seed: int | None = None,
        transforms: Sequence[Callable[[Any], Any]] | None = None,
        timeout_threshold: float | None = None,
        threshold_percentile: float = 75.0,
        warmup_batches: int = 100,
        max_displacement: int | None = None,
        scheduler: str | WorkerScheduler = "fixed",
        assignment: str = "dynamic",
        max_workers: int | None = None,
        sample_timeout: float | None = None,
        on_error: str | Callable[[Any, BaseException], Any] = "raise",
        executor: str = "auto",
        check: bool = False,
        snapshot_every_n_steps: int | None = 1,
        device: str | int | torch.device | None = None,
        device_transform: Callable[[Any], Any] | None = None,
        costs: str | os.PathLike[str] | None = "auto",
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        # Kept as given, under their own names: frameworks rebuild a loader from its attributes.
        self.in_order = in_order  # type: ignore[assignment]
        self.max_queue_size = max_queue_size
        self.iterable_mode = iterable_mode
        self.seed = seed
        self.transforms = transforms
        self.timeout_threshold = timeout_threshold
        self.threshold_percentile = threshold_percentile
        self.warmup_batches = warmup_batches
        self.max_displacement = max_displacement
        self.scheduler = scheduler
        self.assignment = assignment
        self.max_workers = max_workers
        self.sample_timeout = sample_timeout
        self.on_error = on_error
        self.executor = executor
        self.check = check
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.device = device
        self.device_transform = device_transform
        self.costs = costs
        options = check_options(self)
        self._epochs = 0
        self._replicas = ReplicaPool()
        self._kept_costs: KeptCosts | None = None
        self._latest: weakref.ref[LoaderIterator] | None = None
        self._progress: Progress | None = None
        self._loaded: dict[str, Any] | None = None
        self._last_stats = Stats()
        if self.seed is not False and (num_workers > 0 or self.seed is not None):
            here = num_workers == 0 or options.executor == "thread"
            install_streams(torch=here or self.device_transform is not None)

    #: Who is told what becomes of samples, if anybody is. Set before workers start.
    _recorder: Recorder | None = None

    def _count_epoch(self) -> int:
        """The number of this `iter()` call, from 0."""
        with _epochs_lock:
            self._epochs += 1
            return self._epochs - 1

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
        if self.num_workers == 0 or not self.persistent_workers:
            return self._get_iterator()
        iterator: Any = self._iterator
        if iterator is None:
            self._iterator = iterator = self._get_iterator()  # type: ignore[assignment]
        else:
            # By torch's name: it may be a wrapper that a subclass has put around ours.
            iterator._reset(self)
        return cast(LoaderIterator, iterator)

    def _get_iterator(self) -> LoaderIterator:  # type: ignore[override]
        """A new iterator. Under this name subclasses of torch's loader ask for one, such as those
        that keep their workers by never coming to the end of an epoch."""
        iterable = isinstance(self.dataset, IterableDataset)
        iterator: LoaderIterator
        if self.pin_memory and not pins_memory(self):
            # torch's words, by which some have it ignored.
            warn_user(
                "'pin_memory' argument is set as true but no accelerator is found, then device "
                "pinned memory won't be used."
            )
        if self.num_workers == 0:
            iterator = SerialIterableIterator(self) if iterable else SerialMapIterator(self)
        else:
            self.check_worker_number_rationality()
            iterator = ShardedIterator(self) if iterable else MapIterator(self)
        # A snapshot of it can be asked for as long as it lives; it is not kept for that.
        self._latest, self._last_stats = weakref.ref(iterator), Stats()
        return iterator

    def per_device(self, devices: Sequence[str | torch.device]) -> tuple[DeviceIterator, ...]:
        """Begin one pass for several devices: an iterator for each, fed by the same workers.

        Each batch goes to one of them. In order, batch i is for device i modulo their number;
        otherwise whoever asks first gets what is ready. Each has a window of its own, so many
        batches as a loader for it alone would draw ahead; `max_queue_size` bounds all together.

        Args:
            devices: such as `["cuda:0", "cuda:1"]`, instead of `device`.

        Raises:
            TypeError: for an iterable dataset.
            ValueError: without workers, without devices, or with `max_displacement`.
        """
        return share_out(self, devices)

    def state_dict(self) -> dict[str, Any]:
        """How far the consumer of the latest iterator is, to be saved with the training's state.

        It counts what `next()` has returned or raised, not what was read ahead; samples that were
        skipped count too. At any time, whether that iterator is alive or not. See docs/resuming.md
        for what is guaranteed.

        Returns:
            A fresh dict of plain types (numbers, strings, lists, dicts), but for what samplers and
            datasets give as their own state, and the keys that a sampler has drawn.
        """
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        return self._state(self._progress)

    def _state(self, progress: Progress | None) -> dict[str, Any]:
        return state_of(self, self._epochs, progress)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Have the next `iter()` go on from where `state_dict` was saved, by a loader like this
        one: over the same data, with the same kind of sampler. Its workers, executor and
        `in_order` may be others.

        Raises:
            TypeError, ValueError: if it is not such a state; nothing has changed then. A sampler
                that does not draw what it drew before raises RuntimeError, from `iter()`.
        """
        state = check_state(self, state_dict)
        put(generators_of(self), state["generators"])
        tell_epochs(self, state)
        load_dataset(self, state)
        with _epochs_lock:
            self._epochs = state["epochs"]
        self._loaded, self._progress = state, None

    @property
    def stats(self) -> Stats:
        """A snapshot of what the latest iterator is loading, or has loaded if it came to its end;
        empty if it was dropped before, and with `num_workers=0`."""
        iterator = None if self._latest is None else self._latest()
        return self._last_stats if iterator is None else iterator.stats

    def _keep_stats(self, iterator: LoaderIterator) -> None:
        """`iterator` has come to its end, and a `for` loop is about to drop it."""
        if self._latest is not None and self._latest() is iterator:
            self._last_stats = iterator.stats

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no workers yet: those of this one stay where they are.
        own: dict[str, Any] = {
            "_iterator": None,
            "_latest": None,
            "_progress": None,
            "_last_stats": Stats(),
            "_kept_costs": None,
        }
        return {**self.__dict__, **own}

    def check_worker_number_rationality(self) -> None:
        """Warn, where torch warns, of more workers than CPUs that this process may use.

        torch's text is about computing processes, which may freeze a machine. Ours is true for
        threads and for processes: torch's constructor calls this before it is known which.
        """
        cpus = usable_cpus()
        if not self.num_workers or self.num_workers <= cpus:
            return
        warn_user(
            f"This DataLoader will create {self.num_workers} workers in total. Our suggested max "
            f"number of worker in current system is {cpus}, which is smaller than what this "
            "DataLoader is going to create. More workers than CPUs help samples that wait, for a "
            "disk or a network. Samples that compute are loaded no faster by them, and each takes "
            "memory for the samples that it is at work on: lower the number then."
        )

    def __aiter__(self) -> LoaderIterator:
        return self.__iter__()
