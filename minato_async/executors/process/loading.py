"""Loading with worker processes: where the recipe, the transport and the executor come together."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import pickle
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from minato_async.engine.epoch import Order
from minato_async.engine.loading import Loading, Sync
from minato_async.engine.map_epoch import MapEpoch
from minato_async.engine.protocols import RemoteJobSource, Worker
from minato_async.errors import forget_frames
from minato_async.executors.process.dataset_changes import Changes
from minato_async.executors.process.epoch_state import Context
from minato_async.executors.process.executor import ProcessExecutor
from minato_async.executors.process.fork_server import ForkServer, fork_from_here
from minato_async.executors.process.fresh_fork_server import start_afresh
from minato_async.executors.process.map_epoch import ProcessMapEpoch
from minato_async.executors.process.progress import Status
from minato_async.executors.process.sharded_epoch import RemoteShardedEpoch
from minato_async.executors.process.transport.failures import unpacked
from minato_async.executors.process.transport.packing import Packed
from minato_async.executors.process.transport.pickled_plan import PickledPlan
from minato_async.executors.process.transport.shared_memory import SharedMemory
from minato_async.executors.process.worker_main import (
    Plan,
    Runner,
    WorkerContext,
    prepare,
    run_worker,
)
from minato_async.executors.process.worker_samples import EpochPayload
from minato_async.options import Options, start_method
from minato_async.sample.autocast import Autocast
from minato_async.sample.map_recipe import MapRecipe
from minato_async.sample.openmp import find_libraries
from minato_async.scheduling.threshold import Threshold
from minato_async.shards.epoch import ShardEpochPlan
from minato_async.stats import Stats
from minato_async.user_warnings import warn_user

#: Taken by the first to warn, and never released.
_warned = threading.Lock()


class RemoteLoading:
    """What one iterator has to do with other processes."""

    def __init__(
        self,
        loader: DataLoader[Any],
        make_runner: Callable[[WorkerContext], Runner],
        base_seed: int,
        options: Options,
    ) -> None:
        self._memory = SharedMemory()
        try:
            if self._memory.is_small and _warned.acquire(blocking=False):
                size = self._memory.arena_size >> 20
                warn_user(
                    f"only {size} MB of address space are to be had for each worker's shared "
                    "memory: what does not fit is sent through sockets, which is slower. Raise the "
                    "limit of virtual memory (ulimit -v), or use executor='thread'",
                    RuntimeWarning,
                )
            recorded = options.recorder is not None and options.recorder.detailed
            plan = Plan(make_runner, self._memory, base_seed, options.isolated, recorded)
            # Here, in the thread that calls `iter()`: the loader has no threads yet.
            self._fork_server = _new_fork_server(loader, plan)
        finally:
            self._memory.close_file()
        self._numbers = itertools.count(1)
        #: The worker that has opened each shard.
        self._opened_by: dict[int, Worker] = {}
        self._changes = Changes(loader.dataset)

    def new_executor(
        self, source: RemoteJobSource, on_all_ended: Callable[[], None]
    ) -> ProcessExecutor:
        return ProcessExecutor(source, on_all_ended, self._fork_server, self._memory)

    def map_epoch(
        self,
        loader: DataLoader[Any],
        recipe: MapRecipe,
        order: Order,
        window: int | None,
        threshold: Threshold,
    ) -> Callable[[Sync], MapEpoch]:
        context = self._next_epoch(loader, recipe.seeds)
        return partial(ProcessMapEpoch, recipe, order, window, threshold, context)

    def sharded_epoch(
        self, loader: DataLoader[Any], plan: ShardEpochPlan, pipe_seed: int | None
    ) -> Callable[[Sync], Loading]:
        context = self._next_epoch(loader, plan.recipe.seeds, pipe_seed)
        return partial(RemoteShardedEpoch, plan, self._opened_by, context)

    def _next_epoch(
        self, loader: DataLoader[Any], seeds: Any, pipe_seed: int | None = None
    ) -> Context:
        """What the workers have to know of the epoch that begins."""
        number = next(self._numbers)
        payload: Callable[[int], bytes] = _first_payload
        if number > 1:
            grad, autocast = torch.is_grad_enabled(), Autocast.of_this_thread()
            changes = self._changes.before(number, loader.dataset)
            payload = _Payload(EpochPayload(seeds, grad, autocast, changes, pipe_seed))
        return Context(number, payload, _Abandon(self._memory))

    @staticmethod
    def receive(content: Any) -> Any:
        """A batch, unpacked. Not on the event loop: unpacking runs code of the user's."""
        if not isinstance(content, Packed):
            return content
        try:
            return content.unpack()
        except BaseException as error:
            error.add_note("minato_async: unpickling a batch that a worker process has made")
            raise

    def received(self, stats: Stats) -> Stats:
        skipped = tuple((index, _kept(error)) for index, error in stats.skipped)
        return replace(stats, skipped=skipped)


def _kept(error: Any) -> BaseException:
    """`error`, unpacked; whoever keeps it does not keep who asked for it."""
    found = unpacked(error)
    forget_frames(found)
    return found


def _first_payload(known: int) -> bytes:
    return b""


class _Payload:
    """What workers are told of an epoch, without the changes that they know."""

    def __init__(self, payload: EpochPayload) -> None:
        self._payload = payload
        #: By the last epoch that a worker knows: most know the same.
        self._pickled: dict[int, bytes] = {}

    def __call__(self, known: int) -> bytes:
        if known not in self._pickled:
            changes = self._payload.changes
            new = {path: change for path, change in changes.items() if change.epoch > known}
            self._pickled[known] = pickle.dumps(replace(self._payload, changes=new))
        return self._pickled[known]


def _new_fork_server(loader: DataLoader[Any], plan: Plan) -> ForkServer:
    method = start_method(loader.multiprocessing_context)
    if method == "fork":
        find_libraries()
        plan.memory.close_file()  # a copy of this process has it mapped
        return fork_from_here(partial(run_worker, plan))
    context = loader.multiprocessing_context or multiprocessing.get_context(method)
    try:
        pickled_plan = PickledPlan(plan)
    except Exception as error:
        error.add_note(
            f"minato_async: {_unpicklable(loader)} cannot be pickled, which the start method "
            f"{method!r} needs. Use classes and functions from the top level of a module, open "
            "files and the like in the worker (minato_async.per_worker), or set "
            "multiprocessing_context='fork', or executor='thread'"
        )
        raise
    try:
        return start_afresh(context, partial(prepare, pickled_plan, plan.isolated))
    finally:
        pickled_plan.close()


def _unpicklable(loader: DataLoader[Any]) -> str:
    """Names what of `loader` cannot be pickled."""
    for name in ("dataset", "collate_fn", "worker_init_fn", "transforms", "on_error"):
        value = getattr(loader, name)
        if _can_be_packed(value):
            continue
        if name != "dataset":
            return name
        with contextlib.suppress(Exception):
            for attribute, part in value.__getstate__().items():
                if not _can_be_packed(part):
                    return f"the dataset's attribute {attribute!r}"
        return f"the dataset ({type(value).__qualname__})"
    return "what the workers need"


def _can_be_packed(value: Any) -> bool:
    try:
        PickledPlan(value).close()
    except Exception:
        return False
    return True


class _Abandon:
    """Tells the workers what nobody waits for any more. An epoch may outlive the memory: it does
    not keep it."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = weakref.ref(memory)

    def __call__(self, context: int) -> None:
        if (memory := self._memory()) is not None:
            Status(memory.status, 0).abandon(context)
