"""A worker process: it takes requests, and runs the user's code."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import pickle
import random
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils.data._utils import collate as torch_collate

from minato_async.checkpoint import SampleCancelled, current
from minato_async.errors import WorkerSetupError
from minato_async.executors.process.channel import WorkerChannel
from minato_async.executors.process.executor import (
    BROKEN,
    DONE,
    MORE,
    NO_REQUEST,
    READY,
    SETUP_FAILED,
    UNREADABLE,
    Hello,
)
from minato_async.executors.process.fork_server import WorkerMain
from minato_async.executors.process.progress import Status
from minato_async.executors.process.transport.failures import pack_error
from minato_async.executors.process.transport.own_blocks import OwnBlocks
from minato_async.executors.process.transport.packing import Packed, pack, stack_in
from minato_async.executors.process.transport.pickled_plan import PickledPlan
from minato_async.executors.process.transport.shared_memory import SharedMemory
from minato_async.sample.openmp import find_libraries
from minato_async.sample.worker_setup import worker_thread
from minato_async.seeding import install as install_streams

#: Seconds without a request after which a worker gives back memory that it does not use. While it
#: is busy, it will use it again: to be given a page anew takes longer than to write to it.
_IDLE = 0.05


class Runner(Protocol):
    """Runs the requests of one kind of dataset."""

    def begin_epoch(self, data: bytes) -> None:
        """What is to be known of another epoch than the one that the process was forked in."""

    def run(self, request: Any) -> Sequence[Any]:
        """Carry `request` out; returns what happened. Raises WorkerSetupError."""


@dataclass(frozen=True)
class Plan:
    """What a worker process is made of. It has a copy of it by having been forked, or unpickles it
    where the fork server was started afresh."""

    make_runner: Callable[[WorkerContext], Runner]
    memory: SharedMemory
    base_seed: int
    #: Each sample has random state of its own.
    isolated: bool
    #: Somebody wants to know of every step.
    recorded: bool = False


class WorkerContext:
    """What a worker process works with, whatever it runs. Is the `Worker` that recipes are bound
    to, and the job that checkpoints ask."""

    retiring = aside = shares = False
    native_id = 0

    def __init__(
        self,
        memory: SharedMemory,
        number: int,
        hello: Hello,
        channel: WorkerChannel,
        recorded: bool,
    ) -> None:
        self.number = number
        self.name = hello.name
        self.memory = memory
        self.status = Status(memory.status, hello.arena)
        self.own = OwnBlocks(memory, hello.arena)
        #: The number of the epoch that the running request belongs to.
        self.context = 0
        self.request = 0
        #: The parent wants to be told of every step.
        self.recorded = recorded
        self._channel = channel

    def tell(self, events: Sequence[Any]) -> None:
        """What has happened so far; the request is not carried out yet."""
        self._channel.send(pickle.dumps((self.request, MORE, events), protocol=5))

    def pack(self, value: Any, budget: float = math.inf) -> Packed:
        """As `packing.pack`."""
        return pack(value, self.own, budget)

    @property
    def abandoned(self) -> bool:
        """Nobody waits for what the running request is about."""
        return self.status.abandoned(self.context)

    def checkpoint(self) -> None:
        if self.abandoned:
            raise SampleCancelled


def run_worker(plan: Plan, serial: int, number: int, end: socket.socket) -> None:
    """The life of a worker process, from its fork to the end of the parent's requests."""
    channel = WorkerChannel(end)
    first = channel.receive()
    if first is None:
        return
    if not plan.isolated:
        _seed_generators(plan.base_seed + number)
    worker_context = WorkerContext(plan.memory, number, pickle.loads(first), channel, plan.recorded)
    _collate_into(worker_context.own)
    with worker_thread(worker_context, plan.isolated, own_process=True):
        runner = plan.make_runner(worker_context)
        channel.send(READY)
        while True:
            if not channel.wait(_IDLE):
                worker_context.own.trim()
            message = channel.receive()
            if message is None:
                return
            channel.send(_obey(message, worker_context, runner))


def prepare(pickled_plan: PickledPlan, isolated: bool) -> WorkerMain:
    """In a fork server that is started afresh, before it has workers; they will find their plan in
    `pickled_plan`.

    It is unpickled by each of them and not once, here: whatever a dataset opens, connects to or
    starts when it is unpickled must not be shared by processes, and who asks for a fresh start
    often asks for that. Only modules are imported here, for all of them.
    """
    for name in pickled_plan.modules:
        # If it matters, it will be met with again.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    find_libraries()
    if isolated:
        install_streams(torch=False)
    return partial(_unpack_and_run, pickled_plan)


def _unpack_and_run(
    pickled_plan: PickledPlan, serial: int, number: int, end: socket.socket
) -> None:
    try:
        plan = pickled_plan.open()
    except BaseException as error:
        error.add_note(
            "minato_async: raised while a worker process unpickled the dataset or what goes with "
            "it. Classes and functions are looked up by name in the module that defines them, in "
            'the main module without what stands under `if __name__ == "__main__":`'
        )
        channel = WorkerChannel(end)
        channel.send(pickle.dumps((NO_REQUEST, SETUP_FAILED, pack_error(error))))
        while channel.receive() is not None:
            pass
        return
    run_worker(plan, serial, number, end)


def _obey(message: bytes, worker_context: WorkerContext, runner: Runner) -> bytes:
    """Do what the parent says; returns what is to be answered."""
    number, context, payload, freed, content = pickle.loads(message)
    worker_context.context, worker_context.request = context, number
    worker_context.own.release_all(freed)
    worker_context.status.begin_request(number)
    current.job = worker_context
    events: Sequence[Any] = ()
    try:
        if payload:
            runner.begin_epoch(payload)
        if not content:  # it could not be sent
            return pickle.dumps((number, DONE, ()))
        try:
            request = pickle.loads(content)
        except BaseException as error:
            return pickle.dumps((number, UNREADABLE, pack_error(error)))
        with contextlib.suppress(SampleCancelled):
            events = runner.run(request)
        return pickle.dumps((number, DONE, events), protocol=5)
    except WorkerSetupError as error:
        return pickle.dumps((number, SETUP_FAILED, pack_error(error.error)))
    except BaseException as error:  # a bug: the consumer must hear of it, not wait
        return pickle.dumps((number, BROKEN, pack_error(error)))
    finally:
        current.job = None
        worker_context.status.leave()


def _seed_generators(seed: int) -> None:
    """What torch does in its workers. It takes milliseconds, and where samples have random state
    of their own nothing draws from these."""
    random.seed(seed)
    torch.manual_seed(seed)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(seed % 2**32)


def _collate_into(own: OwnBlocks) -> None:
    """In this thread, `default_collate` puts tensors where they need not be copied to travel."""
    plain: Any = torch_collate.collate_tensor_fn
    collate_fn_map = torch_collate.default_collate_fn_map
    if collate_fn_map[torch.Tensor] is not plain:  # the user's own
        return
    thread = threading.get_ident()

    def collate_tensor(batch: Any, *, collate_fn_map: Any = None) -> Any:
        # The dataset may have threads, and the blocks have one user.
        stacked = stack_in(own, batch) if threading.get_ident() == thread else None
        return plain(batch, collate_fn_map=collate_fn_map) if stacked is None else stacked

    def in_a_child() -> None:
        # One that the user's code forks would take the same blocks as this process.
        collate_fn_map[torch.Tensor] = plain

    collate_fn_map[torch.Tensor] = collate_tensor
    os.register_at_fork(after_in_child=in_a_child)
