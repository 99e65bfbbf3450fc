"""What a worker needs before its first sample, and keeps until its last."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from minato_async import process_wide
from minato_async.engine.protocols import Worker
from minato_async.engine.recipe import BoundRecipe, Streams
from minato_async.errors import WorkerSetupError
from minato_async.replicas.composed_transforms import add_checkpoints
from minato_async.replicas.pool import WorkerReplicas
from minato_async.replicas.random_generators import follow
from minato_async.replicas.replica import Code, Replica
from minato_async.sample import worker_info
from minato_async.sample.openmp import use_one_thread_here
from minato_async.seeding.epoch_seeds import NoStreams, thread_streams
from minato_async.seeding.held import Following, Place

follow(Following())


@dataclass(frozen=True)
class WorkerSetup:
    """How the workers of one iterator are set up, whatever executor they belong to."""

    code: Code
    num_workers: int
    #: Worker w is told the seed `base_seed` + w, as with torch.
    base_seed: int
    #: None: the process is the worker's own, and so is all that is in it.
    replicas: WorkerReplicas | None


class ThreadState:
    """What one worker thread keeps from its first job to its last."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        #: Each sample has random state of its own.
        self.isolated = not isinstance(streams, NoStreams)
        #: The recipe of the epoch being loaded, bound to this thread.
        self.bound: BoundRecipe | None = None
        self._code: Code | None = None
        self._replica: Replica | None = None
        self._replicas: WorkerReplicas | None = None
        self._number = 0

    @property
    def places(self) -> list[Place]:
        """Where the code of this worker holds random generators."""
        return [] if self._replica is None else self._replica.places

    def code_for(self, setup: WorkerSetup, worker_id: int) -> Code:
        """What runs in this worker, up to date, with the worker info that shows it; the first time,
        after `worker_init_fn` has run.

        Raises WorkerSetupError if it fails.
        """
        code, first = self._own_code(setup, worker_id)
        seed = setup.base_seed + worker_id
        info = worker_info.make_worker_info(
            worker_id, setup.num_workers, seed, code.dataset, self.streams.worker_rng
        )
        worker_info.show(info)
        if first and code.worker_init_fn is not None:
            self._initialise(code, worker_id, seed)
        self._code = code
        return code

    def _own_code(self, setup: WorkerSetup, worker_id: int) -> tuple[Code, bool]:
        """What runs in this worker, and whether `worker_init_fn` is to run before."""
        if setup.replicas is None:
            return self._code_of_process(setup.code, worker_id), self._code is None
        if self._replica is not None and self._replica.is_of(setup.code):
            self._replica.refresh()
            return self._replica.code, False
        self._replicas, self._number = setup.replicas, worker_id
        self._replica, first = setup.replicas.take(worker_id, setup.code)
        return self._replica.code, first

    def _code_of_process(self, code: Code, worker_id: int) -> Code:
        if self._replica is not None:
            self._replica.refresh()
        elif self._code is None and self.isolated and code.held_generators():
            # All that is in this process is its own; but a replica has random generators that
            # follow the sample, at whatever place.
            self._replica = Replica(code, worker_id)
        if self._replica is not None:
            return self._replica.code
        add_checkpoints(code.dataset)
        return code

    def _initialise(self, code: Code, worker_id: int, seed: int) -> None:
        assert code.worker_init_fn is not None
        # What it seeds and draws is its own affair: samples have streams of their own.
        self.streams.begin(lambda _: seed)
        self.streams.ticket = code
        for place in self.places:
            place.expect_seeds()
        try:
            code.worker_init_fn(worker_id)
        except BaseException as error:
            if self._replicas is not None:
                self._replicas.failed(worker_id)
                self._replica = None
            error.add_note(f"minato_async: worker_init_fn({worker_id})")
            raise WorkerSetupError(error) from error
        for place in self.places:
            place.stays = place.was_seeded
        if self._replicas is not None and self._replica is not None:
            self._replicas.initialised(worker_id, self._replica)

    def end(self) -> None:
        """The thread ends: what its worker has opened and cached is there for the next."""
        if self._replicas is not None and self._replica is not None:
            self._replicas.put_back(self._number, self._replica)


class _Current(threading.local):
    state: ThreadState | None = None


_current = _Current()


def current_state() -> ThreadState:
    """The state of the calling worker thread."""
    state = _current.state
    assert state is not None, "not called by a worker thread"
    return state


@contextlib.contextmanager
def worker_thread(worker: Worker, isolated: bool, own_process: bool = False) -> Iterator[None]:
    """The context in which a worker's thread runs, from its start to its end. `isolated`: each
    sample has random state of its own. `own_process`: so has the worker a process, whose contexts
    it need not be kept apart from."""
    use_one_thread_here()
    apart = contextlib.nullcontext() if own_process else process_wide.worker_apart()
    with apart, thread_streams(isolated, own_process) as streams:
        state = _current.state = ThreadState(streams)
        try:
            yield
        finally:
            _current.state = None
            state.end()
            worker_info.show(None)
