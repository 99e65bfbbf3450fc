"""Loading with worker processes: where the recipe, the transport and the executor come together."""

from __future__ import annotations

import itertools
import pickle
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from minato_async.autocast import Autocast
from minato_async.changes import Changes
from minato_async.dataset import finisher, pins_memory
from minato_async.engine.remote_epoch import Context
from minato_async.executors.base import RemoteJobSource
from minato_async.executors.processes import ProcessExecutor
from minato_async.executors.progress import Status
from minato_async.options import Options
from minato_async.pinning import PinThread
from minato_async.process_samples import EpochPayload
from minato_async.process_worker import Desk, Plan, Runner, run_worker
from minato_async.randomness import EpochSeeds
from minato_async.stats import Stats
from minato_async.transport.failures import unpacked
from minato_async.transport.memory import SharedMemory
from minato_async.transport.packing import Packed
from minato_async.user_code import warn_user

if TYPE_CHECKING:
    from minato_async.loader import MinatoLoader


#: Taken by the first to warn, and never released.
_warned = threading.Lock()


class RemoteLoading:
    """What one iterator has to do with other processes."""

    def __init__(
        self,
        loader: MinatoLoader[Any],
        make_runner: Callable[[Desk], Runner],
        base_seed: int,
        options: Options,
    ) -> None:
        self._memory = SharedMemory()
        if self._memory.is_small and _warned.acquire(blocking=False):
            size = self._memory.region_size >> 20
            warn_user(
                f"only {size} MB of address space are to be had for each worker's shared memory: "
                "what does not fit is sent through sockets, which is slower. Raise the limit of "
                "virtual memory (ulimit -v), or use executor='thread'",
                RuntimeWarning,
            )
        self._plan = Plan(make_runner, self._memory, base_seed, options.isolated)
        self._numbers = itertools.count(1)
        #: What copies batches to pinned memory, where that is wanted.
        self._pins = PinThread(finisher(loader)) if pins_memory(loader) else None
        self._changes = Changes(loader.dataset)

    def new_executor(
        self, source: RemoteJobSource, on_all_ended: Callable[[], None]
    ) -> ProcessExecutor:
        main = partial(run_worker, self._plan)
        if self._pins is not None:
            on_all_ended = partial(self._pins.end, on_all_ended)
        return ProcessExecutor(source, on_all_ended, main, self._memory)

    def next_epoch(
        self, loader: MinatoLoader[Any], seeds: EpochSeeds, pipe_seed: int | None = None
    ) -> Context:
        """What the workers have to know of the epoch that begins."""
        number = next(self._numbers)
        payload = b""
        if number > 1:
            grad, autocast = torch.is_grad_enabled(), Autocast.of_this_thread()
            changes = self._changes.since_last(loader.dataset)
            payload = pickle.dumps(EpochPayload(seeds, grad, autocast, changes, pipe_seed))
        finish = None if self._pins is None else self._pins.put
        return Context(number, payload, _Abandon(self._memory), finish)

    def receive(self, content: Any) -> Any:
        """A batch, unpacked, in the consumer's thread: unpacking runs code of the user's."""
        if not isinstance(content, Packed):
            return content
        try:
            return content.unpack()
        except BaseException as error:
            error.add_note("minato_async: unpickling a batch that a worker process has made")
            raise

    def received(self, stats: Stats) -> Stats:
        skipped = tuple((index, unpacked(error)) for index, error in stats.skipped)
        return replace(stats, skipped=skipped)


class _Abandon:
    """Tells the workers what nobody waits for any more. An epoch may outlive the memory: it does
    not keep it."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = weakref.ref(memory)

    def __call__(self, context: int) -> None:
        if (memory := self._memory()) is not None:
            Status(memory.status, 0).abandon(context)
