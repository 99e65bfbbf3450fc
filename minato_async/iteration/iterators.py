"""Iterators over a loader, for `for` and for `async for`."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Protocol, cast

import torch
from torch.autograd import profiler
from torch.utils.data import DataLoader

from minato_async.device.prefetch import OnDevice
from minato_async.engine.batch import Batch
from minato_async.engine.early_claims import MARGIN, MARGIN_READY_FIRST
from minato_async.engine.engine import Engine
from minato_async.engine.epoch import Epoch, Order
from minato_async.engine.loading import Loading, Sync
from minato_async.engine.map_epoch import MapEpoch
from minato_async.errors import name_batch, name_sample
from minato_async.executors.factory import ExecutorSide, for_samples, shares_objects
from minato_async.executors.process.transport.failures import unpacked, without_variables
from minato_async.iteration.draws import Draw, Draws
from minato_async.iteration.kept_costs import KeptCosts, kept_costs
from minato_async.iteration.order import choose_order
from minato_async.iteration.samplers import may_be_drawn_ahead, samples_in_batch, samples_in_epoch
from minato_async.iteration.stage_work import Finishing, finish_here, finishing
from minato_async.iteration.worker_handles import WorkerHandle
from minato_async.lifecycle.gil_watch import warn_if_on
from minato_async.options import check_options
from minato_async.replicas.loader_method import collate_fn_for_workers, collates_itself
from minato_async.replicas.pool import ReplicaPool, WorkerReplicas
from minato_async.replicas.replica import Code
from minato_async.resuming.random_states import put
from minato_async.resuming.samplers import generators_of
from minato_async.resuming.state import Left, Progress, keeps_base_seed, tell_epochs
from minato_async.sample.map_recipe import Bound, MapRecipe, batch_is_ticket
from minato_async.sample.openmp import find_libraries
from minato_async.sample.worker_setup import WorkerSetup
from minato_async.scheduling.cost_book import EpochCosts
from minato_async.scheduling.schedulers import make_scheduler
from minato_async.scheduling.threshold import Threshold
from minato_async.seeding.epoch_seeds import EpochSeeds, thread_streams
from minato_async.seeding.repeats import RepeatCounter, may_repeat
from minato_async.stats import Stats


class Owner(Protocol):
    """What an iterator asks of the loader that made it, beside torch's attributes."""

    _latest: weakref.ref[Any] | None
    _replicas: ReplicaPool
    #: How far the latest iterator is.
    _progress: Progress | None
    #: What the next iterator goes on from.
    _loaded: dict[str, Any] | None
    _kept_costs: KeptCosts | None

    def _count_epoch(self) -> int:
        """The number of the epoch that begins, from 0."""

    def _keep_stats(self, iterator: Any) -> None:
        """`iterator` has come to its end."""

    def _state(self, progress: Progress | None) -> dict[str, Any]:
        """The state in which the iterator is that has made this `progress`."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


def owner(loader: DataLoader[Any]) -> Owner:
    """`loader`, which is a `MinatoLoader`: this module is imported by that of the class."""
    return cast(Owner, loader)


def code_of(loader: DataLoader[Any]) -> Code:
    """What of the user's runs in the workers of `loader`."""
    options = check_options(loader)
    return Code(
        loader.dataset,
        options.transforms,
        collate_fn_for_workers(loader),
        loader.worker_init_fn,
        options.on_error,
    )


#: The devices that share the batches of an epoch that begins. In a context, for the iterator may
#: be asked for by way of a wrapper that a library has put around it.
sharing: ContextVar[Sequence[torch.device]] = ContextVar("sharing", default=())

#: Batches that one call of `next()` draws at most beyond what may be claimed.
_AT_ONCE = 64
#: Stands for a sample that `on_error="skip"` leaves out.
_SKIPPED = object()


class LoaderIterator(Iterator[Any], AsyncIterator[Any]):
    """One pass over a loader, through `next()` or `await anext()`.

    The sampler advances only in here, in the thread of the consumer. What libraries look for in
    torch's iterators has torch's names, and torch's meaning.
    """

    _progress: Progress

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = weakref.ref(loader)
        self._kept_loader = loader if collates_itself(loader) else None
        self._index_sampler = loader._index_sampler
        self._dataset_kind = loader._dataset_kind
        self._num_workers = loader.num_workers
        self._persistent_workers = loader.persistent_workers
        self._IterableDataset_len_called = loader._IterableDataset_len_called
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    def _draw_base_seed(self, loader: DataLoader[Any]) -> None:
        """Draw from the generators what torch draws, when torch draws it: the numbers that the
        user's code draws afterwards must be those it would get with torch. Where an epoch is
        resumed it was drawn before the state was saved."""
        loaded = owner(loader)._loaded
        if loaded is not None and keeps_base_seed(loader, loaded):
            self._base_seed = loaded["base_seed"]
            return
        drawn = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        self._base_seed = int(drawn.item())

    def _begun(self, loader: DataLoader[Any], number: int, left: Left) -> None:
        """The epoch of this `number` has begun: what was loaded has been taken."""
        self._progress = Progress(number, self._base_seed, left)
        owner(loader)._progress, owner(loader)._loaded = self._progress, None

    def state_dict(self) -> dict[str, Any]:
        """As `MinatoLoader.state_dict`, of this iterator."""
        return owner(self._living_loader())._state(self._progress)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As `MinatoLoader.load_state_dict`; this iterator goes on from there."""
        loader = self._living_loader()
        owner(loader).load_state_dict(state_dict)
        self._reset(loader)

    def _living_loader(self) -> DataLoader[Any]:
        loader = self._loader()
        if loader is None:
            raise RuntimeError("the loader of this iterator is gone: ask it while it is there")
        return loader

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin another epoch, whatever is left of this one. `loader` calls it where workers
        persist, through whatever a library has put around this iterator."""
        self._IterableDataset_len_called = loader._IterableDataset_len_called
        owner(loader)._latest = weakref.ref(self)

    def _make_recipe(
        self, loader: DataLoader[Any], number: int, replicas: WorkerReplicas | None = None
    ) -> MapRecipe:
        setup = WorkerSetup(code_of(loader), loader.num_workers, self._base_seed, replicas)
        seeds = self._make_seeds(loader, number)
        return MapRecipe(loader, setup, seeds, check_options(loader).check)

    def _make_seeds(self, loader: DataLoader[Any], number: int) -> EpochSeeds:
        given = check_options(loader).seed
        return EpochSeeds(self._base_seed if given is None else given, number)

    @property
    def stats(self) -> Stats:
        """A snapshot of what is being loaded; empty without workers."""
        return Stats()

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        try:
            # Asked first, for a range costs some microseconds, whether anybody records it or not.
            if not profiler._is_profiler_enabled:
                return self._next_data()
            with profiler.record_function(self._profile_name):
                return self._next_data()
        finally:
            # The user may keep an exception. Its traceback must not keep the iterator, and with it
            # the workers: here, and wherever `self` is deleted in the following.
            del self

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        if not profiler._is_profiler_enabled:
            return self._next_data_async()
        return self._profiled_anext()

    async def _profiled_anext(self) -> Any:
        try:
            with profiler.record_function(self._profile_name):
                return await self._next_data_async()
        finally:
            del self

    @abstractmethod
    def _next_data(self) -> Any:
        """The next batch. Raises StopIteration at the end."""

    @abstractmethod
    async def _next_data_async(self) -> Any:
        """As `_next_data`, for a coroutine. Raises StopAsyncIteration at the end."""

    def __aiter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")

    def close(self) -> None:
        """Stop loading and let the workers go, waiting a moment for running steps. Idempotent;
        `next()` then ends the iteration."""

    def _shutdown_workers(self) -> None:
        """`close()`, by the name that scripts call on torch's iterators to end persistent
        workers."""
        self.close()


class SerialIterator(LoaderIterator):
    """Loads in the consumer's thread, one batch at a time (`num_workers=0`)."""

    _closed = False
    _num_yielded = 0

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._closed, self._num_yielded = False, 0
        self._begin(loader, first=False)

    @abstractmethod
    def _begin(self, loader: DataLoader[Any], first: bool) -> None:
        """Begin an epoch. As with torch, later ones draw no base seed."""

    def _next_data(self) -> Any:
        if self._closed:
            raise StopIteration
        batch = self._next()
        self._num_yielded += 1
        return batch

    async def _next_data_async(self) -> Any:
        try:
            return self._next_data()
        except StopIteration:
            raise StopAsyncIteration from None

    @abstractmethod
    def _next(self) -> Any:
        """As `next()`, while not closed."""

    def close(self) -> None:
        self._closed = True


class SerialMapIterator(SerialIterator):
    """Loads a map-style dataset in the consumer's thread."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._begin(loader, first=True)

    def _begin(self, loader: DataLoader[Any], first: bool) -> None:
        # The consumer's own random state is used, as with torch, unless a seed was given.
        self._isolated = type(check_options(loader).seed) is int
        repeats = RepeatCounter() if self._isolated else None
        draws = self._draws = self._sampler_iter = Draws(loader, batch_is_ticket(loader), repeats)
        begin_draws(draws, loader)
        if first:
            self._draw_base_seed(loader)
        number = epoch_number(loader)
        self._recipe = self._make_recipe(loader, number)
        self._begun(loader, number, draws)
        self._finish = finish_here(loader, self._isolated)

    def _next(self) -> Any:
        while True:
            try:
                with self._draws.lock:
                    draw = next(self._draws)
            except StopIteration:
                self._draws.end()
                raise
            try:
                batch = self._load(draw)
            except Exception:
                self._draws.received([draw.positions])
                raise
            self._draws.received([draw.positions])
            if batch is not _SKIPPED:
                return batch

    def _load(self, draw: Draw) -> Any:
        with thread_streams(self._isolated) as streams:
            bound = self._recipe.bind_here(streams)
            samples = self._samples(draw, bound)
            kept = [row for row, sample in enumerate(samples) if sample is not _SKIPPED]
            if kept or not samples:
                samples = [samples[row] for row in kept]
                indices = [draw.indices[row] for row in kept]
                return self._collate(draw.indices, samples, indices, bound)
            return _SKIPPED

    def _samples(self, draw: Draw, bound: Bound) -> list[Any]:
        seed, streams = self._recipe.seed, bound.streams
        indices, _, repeats, positions = draw
        streams.begin(
            lambda row: seed(indices[row], repeats[row] if repeats else 0, positions[row])
        )
        samples = []
        for row, index in enumerate(indices):
            streams.ticket = row
            samples.append(self._sample(bound, index))
        return samples

    def _collate(
        self, indices: list[Any], samples: list[Any], kept: list[Any], bound: Bound
    ) -> Any:
        """The batch of `samples`, whose indices are `kept` of those that were drawn."""
        seed = self._recipe.seed
        bound.streams.begin(lambda _: seed(tuple(indices), 0, 0))
        bound.streams.ticket = samples
        try:
            return self._finish(bound.collate(samples), partial(_seed_on_device, seed, kept))
        except Exception as error:
            named = name_batch(error, indices, samples, "the consumer's thread")
            if named is error:
                raise
            raise named from error

    def _sample(self, bound: Bound, index: Any) -> Any:
        """The sample of `index`, or what `on_error` puts in its place."""
        on_error = self._recipe.on_error
        try:
            return self._run_steps(bound, index)
        except Exception as error:
            if on_error == "skip":
                return _SKIPPED
            if callable(on_error):
                return on_error(index, error)
            raise

    def _run_steps(self, bound: Bound, index: Any) -> Any:
        step, value = 0, index
        try:
            for run in bound.steps:
                value = run(value)
                step += 1
            return value
        except Exception as error:
            where = self._recipe.step_name(step)
            named = name_sample(error, index, where, "the consumer's thread")
            if named is error:
                raise
            raise named from error


class EngineIterator(LoaderIterator):
    """Takes batches from an engine.

    When it is dropped, its engine closes: nothing else refers to it, no thread does.
    """

    _engine: Engine
    _epoch: Loading
    _side: ExecutorSide
    #: What the engine's stage does with each batch; None: nothing.
    _finishing: Finishing | None = None

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._begin(loader)

    def _begin(self, loader: DataLoader[Any]) -> None:
        """Begin an epoch, with new workers."""
        self._options = check_options(loader)
        warn_if_on(self._options.executor)
        self._persistent = loader.persistent_workers
        self._start_epoch(loader, first=True)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if self._can_restart(loader):
            warn_if_on(self._options.executor)
            self._start_epoch(loader, first=False)
        else:
            self._engine.close_soon()
            self._begin(loader)

    def _can_restart(self, loader: DataLoader[Any]) -> bool:
        """Whether the next epoch can be loaded by the same workers. Not by threads, where the GIL
        was turned on since."""
        return self._engine.usable and check_options(loader).executor == self._options.executor

    @abstractmethod
    def _start_epoch(self, loader: DataLoader[Any], first: bool) -> None:
        """Begin an epoch; for the first, start the engine too."""

    def _start_engine(self, side: ExecutorSide) -> None:
        options = self._options
        self._side = side
        find_libraries()
        scheduler = make_scheduler(options.scheduler, options.num_workers)
        self._engine = Engine(
            side.new_executor,
            scheduler,
            options.max_workers,
            options.sample_timeout,
            options.recorder,
        )

    def _draw(self) -> None:
        """Called for every batch that is taken: see to it that there will be others."""
        self._engine.proceed(self._epoch)

    def _make_up(self) -> None:
        """Called before a batch is taken: draw what Ctrl-C after the last one may have prevented,
        or there may be nothing to wait for."""

    def _take_draw_errors(self) -> list[BaseException]:
        """What is left to be raised when all batches are delivered."""
        return []

    def _received(self, batch: Batch) -> None:
        """`batch` is the consumer's, or its failure is."""

    def _receive(self, batch: Batch) -> Any:
        """What the consumer gets: the content of `batch`, which does not keep it."""
        content = self._side.receive(batch.take_content())
        return content.take() if isinstance(content, OnDevice) else content

    # Consumers

    def _next_data(self, consumer: int | None = None) -> Any:
        """The next batch, for this one of several consumers, or for the only one."""
        epoch = self._epoch
        engine, timeout = self._engine, self._options.timeout
        engine.check_process()
        self._make_up()
        while (batch := engine.next_batch(epoch, timeout, consumer)) is not None and batch.void:
            self._received(batch)
            self._draw()
        if batch is None:
            ends, errors = self._let_go(), self._take_draw_errors()
            del self, epoch
            if errors:
                raise errors.pop()
            if ends:
                engine.close()
            raise StopIteration
        content = self._hand_over(batch)
        if batch.failure is None:
            return content
        del self, epoch, engine
        raise_failure(batch)

    async def _next_data_async(self, consumer: int | None = None) -> Any:
        epoch = self._epoch
        engine, timeout = self._engine, self._options.timeout
        engine.check_process()
        while True:
            batch = await engine.next_batch_async(epoch, timeout, consumer)
            if batch is None or not batch.void:
                break
            self._received(batch)
            self._draw()
        if batch is None:
            self._let_go()
            errors = self._take_draw_errors()
            del self, epoch
            if errors:
                raise errors.pop()
            raise StopAsyncIteration
        content = self._hand_over(batch)
        if batch.failure is None:
            return content
        del self, epoch, engine
        raise_failure(batch)

    def _hand_over(self, batch: Batch) -> Any:
        """The content of `batch`; None: it has a failure. Last of all it counts as received: if
        Ctrl-C comes before, it is part of what is left of the epoch."""
        try:
            self._draw()
            content = None if batch.failure is not None else self._receive(batch)
        except Exception:
            self._received(batch)
            raise
        self._received(batch)
        return content

    def _let_go(self) -> bool:
        """At the end of an epoch: whether the engine is on its way to its end too."""
        if not self._epoch.finished:
            return False  # there is something left for other consumers
        if not self._persistent:
            if (loader := self._loader()) is not None:
                owner(loader)._keep_stats(self)
            self._engine.close_soon()
        return not self._persistent

    @property
    def stats(self) -> Stats:
        """A snapshot of this iterator's epoch."""
        stats = self._side.received(self._engine.stats(self._epoch))
        return stats if self._finishing is None else self._finishing.told(stats)

    @property
    def _workers(self) -> list[WorkerHandle]:
        """One handle for each of `num_workers`."""
        return [WorkerHandle(self._engine, number) for number in range(self._num_workers)]

    @property
    def _num_yielded(self) -> int:
        """Batches of this epoch so far; a failed one counts."""
        return self._engine.stats(self._epoch).delivered

    def close(self) -> None:
        self._engine.close()

    def __del__(self) -> None:
        # Without an engine, the constructor failed.
        if hasattr(self, "_engine"):
            self._engine.close_soon()


class MapIterator(EngineIterator):
    """Over a map-style dataset: draws one batch for each that it takes."""

    _epoch: MapEpoch

    def leave_soon(self, epoch: weakref.ref[MapEpoch], consumer: int | None) -> None:
        """One of several consumers of `epoch` is gone: see `Engine.leave_soon`."""
        if consumer is not None and self._epoch is epoch():
            self._engine.leave_soon(self._epoch, consumer)

    def _begin(self, loader: DataLoader[Any]) -> None:
        self._drawn_all = False
        #: For the last batch that was taken, what had to be drawn was: Ctrl-C did not prevent it.
        self._drawn = False
        #: What the worker threads have each for itself.
        self._replicas: WorkerReplicas | None = None
        super()._begin(loader)

    def _start_epoch(self, loader: DataLoader[Any], first: bool) -> None:
        given = check_options(loader)
        if first:
            # As torch with workers, which samplers that draw in `__iter__` can tell: the sampler is
            # asked once more below, and later epochs draw no base seed.
            if not resumes(loader):
                iter(self._index_sampler)
            self._draw_base_seed(loader)
        counts = given.isolated and may_repeat(loader)
        # Its lock serialises the sampler between consumers: a generator cannot be advanced by two
        # threads. In a forked child it may be one that nobody will release: there is another then.
        draws = Draws(loader, batch_is_ticket(loader), RepeatCounter() if counts else None)
        begin_draws(draws, loader)
        number = epoch_number(loader)
        if first:
            # What workers have loaded in former epochs must not show where that counts.
            pool = ReplicaPool() if given.assignment == "batch" else owner(loader)._replicas
            self._replicas = WorkerReplicas(pool) if shares_objects(self._options) else None
        recipe = self._make_recipe(loader, number, self._replicas)
        devices = sharing.get()
        shared_by = len(devices) or 1
        order = replace(choose_order(loader, given.in_order), consumers=shared_by)
        threshold = self._threshold(loader)
        if first:
            self._start_engine(for_samples(loader, recipe, self._base_seed, self._options))
        window = self._begin_costs(loader, order)
        start = self._side.map_epoch(loader, recipe, order, window, threshold)
        seed = partial(_seed_of, recipe.seed)
        self._finishing, bound = finishing(loader, self._side.receive, seed, devices)
        self._epoch = self._engine.begin(partial(self._with_costs, start), self._finishing, bound)
        self._draws = self._sampler_iter = draws
        self._begun(loader, number, draws)
        #: Batches to draw ahead; None: as many as the window holds.
        ahead = self._options.batches_ahead
        self._most_ahead = None if ahead is None else ahead * shared_by
        self._drawn_all = False
        #: What the sampler raised, if it did: to be raised after all that it drew before.
        self._draw_errors: list[BaseException] = []
        self._draw()

    def _begin_costs(self, loader: DataLoader[Any], order: Order) -> int | None:
        """Have what the samples cost remembered, and see how far ahead to draw so that the slow
        ones are known in time. Returns the window of the epoch."""
        options = self._options
        self._costs: EpochCosts | None = None
        #: The same, if any are known to be slow.
        self._slow_costs: EpochCosts | None = None
        #: Samples to draw beyond the window, and how many of the epoch may be drawn so early.
        self._lookahead = self._drawn_early = 0
        kept = owner(loader)._kept_costs = kept_costs(loader, owner(loader)._kept_costs)
        self._cost_file = None if kept is None else kept.file
        if kept is None or order.workers is not None:
            return options.window
        self._costs = costs = kept.book.begin_epoch()
        self._slow_costs = costs if costs.slowest else None
        batch = samples_in_batch(loader)
        if order.consumers == 1 and not resumes(loader):
            self._drawn_early = may_be_drawn_ahead(loader)
        if self._drawn_early:
            margin = MARGIN if order.as_drawn else MARGIN_READY_FIRST
            self._lookahead = costs.lookahead(options.num_workers, margin)
        if not self._lookahead or options.batches_ahead is None:
            return options.window
        # What is drawn does not bound what is claimed any more.
        return options.batches_ahead * batch

    def _with_costs(self, start: Callable[[Sync], MapEpoch], sync: Sync) -> MapEpoch:
        epoch = start(sync)
        if self._costs is not None:
            # Of several consumers, one may be far behind the others: nobody knows what is due.
            alone = len(sharing.get()) <= 1
            epoch.remember(self._costs, claims_early=alone and self._num_workers > 1)
        return epoch

    def _threshold(self, loader: DataLoader[Any]) -> Threshold:
        options = self._options
        warmup = options.warmup_batches * samples_in_batch(loader)
        if (length := samples_in_epoch(loader)) is not None:
            warmup = min(warmup, length // 10)
        return Threshold(options.threshold_percentile, warmup, options.timeout_threshold)

    def _draw(self) -> None:
        """Draw batches until enough are ahead of the consumer."""
        epoch, draws, costs = self._epoch, False, self._slow_costs
        with self._draws.lock:
            self._drawn = False
            early = _AT_ONCE
            while not self._drawn_all:
                if not self._wants_more(epoch):
                    if not (self._lookahead and early and self._looks_ahead(epoch)):
                        break
                    early -= 1
                draws = True
                try:
                    draw = next(self._draws)
                except StopIteration:
                    self._drawn_all = True
                    self._engine.end_draw(epoch)
                except Exception as error:
                    # What was drawn before is delivered first, then this is raised. Its traceback
                    # would keep the iterator: it refers to this frame.
                    without_variables(error)
                    self._drawn_all = True
                    self._draw_errors.append(error)
                    self._engine.end_draw(epoch)
                except BaseException as interrupt:
                    # Ctrl-C does not wait. A generator that it hit has ended: whoever goes on
                    # all the same must not take that for the end of the epoch.
                    self._drawn_all = True
                    cut_short = RuntimeError(f"the sampler was interrupted by {interrupt!r}")
                    self._draw_errors.append(cut_short)
                    self._engine.end_draw(epoch)
                    raise
                else:
                    slow = () if costs is None else costs.slow_rows(draw.indices)
                    self._engine.draw(epoch, *draw, slow)
            if not draws:
                self._engine.proceed(epoch)
            self._drawn = True
        if self._cost_file is not None:
            self._cost_file.save_now_and_then()

    def _make_up(self) -> None:
        # Not while another consumer waits for the sampler: a batch may be ready.
        if not self._drawn and self._draws.lock.acquire(blocking=False):
            try:
                self._draw()
            finally:
                self._draws.lock.release()
        self._drawn = False

    def _take_draw_errors(self) -> list[BaseException]:
        with self._draws.lock:
            errors, self._draw_errors = self._draw_errors, []
        return errors

    def _received(self, batch: Batch) -> None:
        self._draws.received(batch.positions)

    def _let_go(self) -> bool:
        # Not where the iteration was ended from outside, by the sampler's failure, or for one of
        # several consumers.
        epoch = self._epoch
        if epoch.finished and not (epoch.abandoned or self._draw_errors):
            self._draws.end()
        if self._cost_file is not None:
            self._cost_file.save_epoch()
        return super()._let_go()

    def _wants_more(self, epoch: Epoch) -> bool:
        most = self._most_ahead
        if most is not None:
            return epoch.batches_ahead < most
        # Empty batches take no place in the window, so they are bounded by their number.
        return max(epoch.feed.outstanding, epoch.batches_ahead) < epoch.feed.window

    def _looks_ahead(self, epoch: Epoch) -> bool:
        """Whether to draw beyond what may be claimed, to see which samples are slow."""
        feed = epoch.feed
        return feed.drawn < self._drawn_early and feed.drawn - feed.position < self._lookahead


def resumes(loader: DataLoader[Any]) -> bool:
    """Whether the next iterator goes on in the middle of an epoch."""
    loaded = owner(loader)._loaded
    return loaded is not None and loaded["epoch"] is not None


def epoch_number(loader: DataLoader[Any]) -> int:
    """Of the epoch that begins, or goes on."""
    loaded = owner(loader)._loaded
    if loaded is not None and loaded["epoch"] is not None:
        number: int = loaded["epoch"]["number"]
        return number
    return owner(loader)._count_epoch()


def begin_draws(draws: Draws, loader: DataLoader[Any]) -> None:
    """Have `draws` begin an epoch, or go on with the one that was loaded."""
    loaded = owner(loader)._loaded
    if loaded is None:
        draws.open()
        return
    if loaded["epoch"] is None:
        draws.open(loaded["sampler_states"])
    else:
        # Again, whatever they were told since: it is that epoch which goes on.
        tell_epochs(loader, loaded)
        draws.resume(loader, loaded["epoch"])
        # To draw again has set them back.
        put(generators_of(loader), loaded["generators"])


def _seed_on_device(seed: Callable[[Any, int, int], int], indices: Sequence[Any]) -> int:
    """The seed of what is drawn on the device for the batch of `indices`: unlike the one with which
    it is collated."""
    return seed(("device", *indices), 0, 0)


def _seed_of(seed: Callable[[Any, int, int], int], batch: Batch) -> int:
    return _seed_on_device(seed, batch.indices)


def raise_failure(batch: Batch) -> NoReturn:
    """Raise the failure that `batch` carries, whose traceback then refers to this frame: so
    neither the frame nor the batch may keep the failure."""
    assert batch.failure is not None
    failure, batch.failure = unpacked(batch.failure), None
    try:
        raise failure
    finally:
        del failure
