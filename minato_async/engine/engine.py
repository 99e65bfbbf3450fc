"""The engine: one event loop, one executor, and the epoch that they are working on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import NoReturn, TypeVar

from minato_async.engine.batch import Batch
from minato_async.engine.bell import AsyncBell, Bell, DueBells
from minato_async.engine.coordinator import Coordinator
from minato_async.engine.counts import Counts
from minato_async.engine.deadline_watch import DeadlineWatch
from minato_async.engine.event_loop import EventLoopThread
from minato_async.engine.loading import Loading, Sync
from minato_async.engine.map_epoch import MapEpoch
from minato_async.engine.protocols import (
    AnyJobSource,
    Executor,
    Job,
    NoWorkers,
    Ringable,
    Worker,
)
from minato_async.engine.recorder import Both, Recorder
from minato_async.engine.sizes import nbytes
from minato_async.engine.slots import Slots
from minato_async.engine.stage import Stage, StageThread, StageWork
from minato_async.errors import WorkerSetupError, shown_batch
from minato_async.lifecycle import shutdown
from minato_async.scheduling.advice import Advice
from minato_async.scheduling.schedulers import WorkerScheduler
from minato_async.stats import Stats

R = TypeVar("R", bound=Ringable)
L = TypeVar("L", bound=Loading)

#: Seconds that closing waits for the steps that are running.
CLOSE_GRACE = 1.0


#: Makes an executor, given where its workers find jobs and what to call when all have ended.
ExecutorFactory = Callable[[AnyJobSource, Callable[[], None]], Executor]


#: Seconds that threads get to end which have nothing left to do.
_LAST_LINE = 0.1

#: Seconds after which an idle worker comes back to Python for a moment, where Python is
#: free-threaded: there, what a thread has made and another was the last to use is freed by the
#: thread that has made it, between two bytecodes. Else batches stay in memory while workers idle.
_BREATH = 0.5 if sysconfig.get_config_var("Py_GIL_DISABLED") else None

#: Seconds after which a waiting consumer comes back to Python for a moment. Ctrl-C is acted upon
#: between two bytecodes, or interrupts a wait: if it comes after the last bytecode and before the
#: wait has begun, nothing else would end that wait.
_GLANCE = 1.0


class Engine:
    """Loads one epoch after another until it is closed.

    Its threads hold the engine, and the engine holds nothing of its user: not the loader and not
    the iterator. So both are collected when the user drops them, and closing follows.
    """

    def __init__(
        self,
        executor_factory: ExecutorFactory,
        scheduler: WorkerScheduler,
        max_workers: int,
        sample_timeout: float | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        # Guards all that epochs hold and the fields below. Held for microseconds, never while
        # user code runs, which includes that nothing of the user's is freed or shown: see
        # `DueBells.drop`. An RLock, though only `_torn` takes it twice: its waiters park, where
        # those of a Lock spin through 40 scheduler yields on free-threaded 3.13.
        self._lock = threading.RLock()
        #: Bells of workers without work. The last to go idle is the first to be woken: what it
        #: worked on is still in its core's cache.
        self._idle: list[Ringable] = []
        self._due = DueBells()
        self._slots = Slots(scheduler.start(), max_workers)
        self._loading: Loading | None = None
        #: What abandoned epochs have left to do.
        self._left_over: deque[Job] = deque()
        self._broken: BaseException | None = None
        self._coordinator = Coordinator(
            self._lock, self._slots, scheduler, DeadlineWatch(self._slots, sample_timeout)
        )
        #: For the consumer to give: handlers of a log are the user's, too.
        self._advice: deque[Advice] = deque()
        self._ticking = False
        self._started = self._epoch_began = monotonic()
        #: What counts for `stats`, and whoever else is told what becomes of samples.
        self._counts = Counts()
        self._recorder = recorder
        self._closed = False

        self._pid = os.getpid()
        self._executor: Executor = executor_factory(self, self._all_workers_ended)
        self._workers_ended = asyncio.Event()
        #: Started with the first epoch whose batches have a stage to go through.
        self._stage_thread: StageThread | None = None
        self._stage_ended = asyncio.Event()
        self._loop = EventLoopThread("minato-loop", self._main)
        shutdown.register(self)
        try:
            self._loop.start()
        except RuntimeError:
            shutdown.forget(self)
            raise
        except BaseException:  # Ctrl-C: the thread may have started
            self.close_soon()
            raise

    # Life

    #: For finalizers: at interpreter exit they may run when the modules are emptied already.
    _getpid = staticmethod(os.getpid)

    async def _main(self, stop: asyncio.Event) -> None:
        """Runs on the event loop, from the first epoch to the last worker's end."""
        try:
            self._resize()
            await stop.wait()
        except BaseException as error:
            self._break(error)
        finally:
            with self._lock:
                self._closed = True
                self._replace_loading(None)
                if self._stage_thread is not None:
                    self._stage_thread.close()
            self._due.ring()
            self._executor.close()
            await self._workers_ended.wait()
            if self._stage_thread is not None:
                await self._stage_ended.wait()
            if self._stage_thread is not None:
                self._stage_thread.join(_LAST_LINE)
            self._coordinator.close()
            # What an epoch holds is not to wait until the collector finds this engine. Mostly
            # there is nothing left: the workers have freed it on their way out.
            self._slots.running.clear()
            self._due.free()
            # The last worker has called back, from its last line: its thread is all but gone.
            # Those that were given up are not waited for, but at interpreter exit they must be
            # found.
            if self._executor.join(_LAST_LINE):
                self._forget()
            else:
                self._executor.when_ended(self._forget)

    def _forget(self) -> None:
        """The last worker is gone."""
        shutdown.forget(self)
        # It refers to this engine. Without the circle both are freed with the iterator; on
        # free-threaded Python the collector comes only after hundreds of epochs.
        self._executor = NoWorkers()

    def _staff(self) -> None:
        """Have the loop bring the number of threads to what the slots ask for. By a worker."""
        self._loop.call_soon(self._resize)

    def _resize(self) -> None:
        # At most as many run at once, each by another number.
        self._executor.resize(self._slots.threads, self._slots.most)

    def _tick(self) -> None:
        """On the loop, a few times a second while there is work."""
        try:
            self._executor.give_back_memory()
            with self._lock:
                loading = self._loading
                if loading is None or loading.finished or self._closed:
                    self._ticking = False
                    return
            given_up = self._coordinator.tick(loading)
            self._advice += self._coordinator.advise(loading, self._counts)
            with self._lock:
                if loading is self._loading:
                    self._wake_workers(loading.jobs_waiting)
            for worker in given_up:
                self._executor.give_up(worker)
            self._due.ring()
            self._resize()
            self._loop.call_later(self._coordinator.interval, self._tick)
        except BaseException as error:
            self._break(error)

    def _start_stage(self) -> None:
        """On the loop, which Ctrl-C does not interrupt."""
        assert self._stage_thread is not None
        try:
            self._stage_thread.start()
        except RuntimeError as error:  # the interpreter shuts down, or there are too many
            with self._lock:
                self._stage_thread = None  # there is nobody to wait for
            self._stage_ended.set()
            self._break(error)

    def _end_stage(self) -> None:
        """By the stage's thread, on its last line."""
        self._loop.call_soon(self._stage_ended.set)

    def _all_workers_ended(self) -> None:
        self._loop.call_soon(self._workers_ended.set)

    def close_soon(self) -> None:
        """Ask for the end, without waiting and without taking a lock: finalizers may call it."""
        # In a forked child there is no thread to ask, and the loop's descriptors are the parent's.
        if self._getpid() == self._pid:
            self._loop.stop_soon()

    def close(self) -> None:
        """Ask for the end and wait for it: for running steps, but not long for one that is stuck.
        Its thread ends when it comes back."""
        self.close_soon()
        self.join(CLOSE_GRACE)

    def terminate(self) -> None:
        """Ask for the end in the middle of an epoch: consumers get an error, and not an epoch that
        is short without a word. Takes no lock: finalizers may call it."""
        self._broken = self._broken or RuntimeError(
            "the program has terminated its workers: call iter() on the loader again"
        )
        self.close_soon()

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for every thread to end; True if all have."""
        return self._loop.join(timeout)

    def join_workers(self, timeout: float | None = None) -> bool:
        """As `join`, for the workers, including those that were given up."""
        return self._executor.join(timeout)

    def interrupt(self) -> None:
        self._executor.interrupt()
        if self._stage_thread is not None:
            self._stage_thread.interrupt()

    @property
    def executor(self) -> Executor:
        return self._executor

    def process_id(self, number: int) -> int | None:
        """The process that worker `number` has to itself, if it has one."""
        return self._executor.process_id(number)

    # Epochs, for the consumer

    @property
    def usable(self) -> bool:
        """Whether an epoch can be begun: in this process, before the end, and without a fault."""
        return os.getpid() == self._pid and not self._closed and self._broken is None

    def begin(
        self,
        start: Callable[[Sync], L],
        work: StageWork | None = None,
        bound: int | None = None,
    ) -> L:
        """Load what `start` makes; what is left of the epoch before is dropped. `work` is done with
        each batch before it is delivered, see `Stage`."""
        counts, given = Counts(), self._recorder
        # Kept by the epoch alone, for it refers to this engine.
        sync = Sync(
            self._lock,
            self._due,
            self._wake_workers,
            self._wake_for,
            self._slots,
            self._staff,
            counts if given is None else Both(counts, given),
        )
        loading = start(sync)
        with self._lock:
            try:
                if work is not None and not self._closed:
                    loading.stage = Stage(work, bound, self._stage_thread_here().wake)
                self._replace_loading(loading)
                self._epoch_began, self._counts = monotonic(), counts
                if self._closed:  # by another thread, just now
                    self._replace_loading(None)
            except BaseException as error:
                self._torn(error)
                raise
        self._released()
        return loading

    def _stage_thread_here(self) -> StageThread:
        """Under the lock, while the loop lives."""
        if self._stage_thread is None:
            self._stage_thread = StageThread(self._lock, self._due, self._break, self._end_stage)
            self._loop.call_soon(self._start_stage)
        return self._stage_thread

    def _released(self) -> None:
        """By a worker or a consumer, after it has released the lock."""
        self._due.ring()
        self._due.free()

    def _replace_loading(self, loading: Loading | None) -> None:
        """Under the lock: from now on `loading` is loaded, and nothing else."""
        if self._loading is not None:
            self._left_over += self._loading.abandon()
            self._coordinator.forget()
            self._due.drop(self._loading)
        self._loading = loading
        if self._stage_thread is not None:
            self._stage_thread.work_for(loading)
        self._wake_workers(len(self._idle))

    def draw(
        self,
        epoch: MapEpoch,
        indices: list[object],
        unit: int,
        repeats: Sequence[int] = (),
        positions: Sequence[int] | None = None,
        slow: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Add one drawn batch to `epoch`."""
        with self._lock:
            try:
                epoch.draw(indices, unit, repeats, positions, slow)
                if epoch.any_worker_will_do:
                    # What was drawn just now can be claimed: to ask would cost the consumer more.
                    self._wake_workers(1)
                else:
                    self._wake_for(epoch)
            except BaseException as error:
                self._torn(error)
                raise
        self._released()

    def end_draw(self, epoch: MapEpoch) -> None:
        """No more will be drawn for `epoch`."""
        with self._lock:
            try:
                epoch.end_draw()
                self._wake_for(epoch)
            except BaseException as error:
                self._torn(error)
                raise
        self._released()

    def proceed(self, epoch: Loading) -> None:
        """Have idle workers use the place of a batch that was taken."""
        with self._lock:
            self._wake_for(epoch)
        self._released()

    def leave_soon(self, epoch: MapEpoch, consumer: int) -> None:
        """One of several consumers will not ask again. Waits for nothing and takes no lock:
        finalizers may call it."""

        def leave() -> None:
            with self._lock:
                epoch.leave(consumer)
            self._due.ring()

        if self._getpid() == self._pid:
            self._loop.send(leave)

    def next_batch(
        self, epoch: Loading, timeout: float | None = None, consumer: int | None = None
    ) -> Batch | None:
        """Wait for the next batch; None at the end of the epoch. `consumer`: which of several
        consumers asks.

        It wakes nobody to load others: `draw` or `proceed` is to follow. A worker that was woken
        here would be after the lock when the consumer needs it again to draw.

        Raises RuntimeError after `timeout` seconds without one.
        """
        began = monotonic()
        deadline = None if timeout is None else began + timeout
        while True:
            batch, waits = self._pop(epoch, began, consumer)
            if waits:
                bell = Bell()
                batch, waits = self._pop(epoch, began, consumer, bell)
            if not waits:
                if self._advice:
                    self._give_advice()
                return batch
            while not bell.wait(_left(deadline, _GLANCE)):
                if self._advice:
                    self._give_advice()
                if deadline is not None and monotonic() >= deadline:
                    raise self._timed_out(timeout)

    async def next_batch_async(
        self, epoch: Loading, timeout: float | None = None, consumer: int | None = None
    ) -> Batch | None:
        """As `next_batch`, for a coroutine. A batch is taken only after the wait is over, by
        code that cannot be cancelled: so a cancelled call loses none."""
        began = monotonic()
        deadline = None if timeout is None else began + timeout
        while True:
            batch, waits = self._pop(epoch, began, consumer)
            if waits:
                bell = AsyncBell()
                batch, waits = self._pop(epoch, began, consumer, bell)
            if not waits:
                if self._advice:
                    self._give_advice()
                return batch
            try:
                # `wait_for`, before 3.12, swallows a cancellation that comes with the news.
                async with asyncio.timeout(_left(deadline)):
                    await bell.rung
            except TimeoutError:
                raise self._timed_out(timeout) from None
            except BaseException:
                self._counts.waits_since = None
                raise

    def _give_advice(self) -> None:
        """By the consumer: handlers of the log may do whatever they do elsewhere in its thread."""
        with contextlib.suppress(IndexError):
            while True:
                self._advice.popleft().give()

    def _timed_out(self, timeout: float | None) -> RuntimeError:
        with self._lock:
            self._counts.waits_since = None
            entries = list(self._slots.running.items())
            stage = None if self._loading is None else self._loading.stage
            worked_on = None if stage is None else stage.worked_on
        # To describe what they are in, they show the user's keys.
        now = monotonic()
        running = [
            f"{entry.job.describe()} for {now - entry.since:.1f} s on {worker}"
            for worker, entry in entries
        ]
        if stage is not None and worked_on is not None:
            running.append(f"{stage.work.doing} {shown_batch(worked_on.indices)}")
        if starting := self._executor.starting:
            running.append(starting)
        doing = "; ".join(running) or "nothing"
        return RuntimeError(f"DataLoader timed out after {timeout} seconds. Running: {doing}")

    def _pop(
        self,
        epoch: Loading,
        began: float,
        consumer: int | None,
        bell: Ringable | None = None,
    ) -> tuple[Batch | None, bool]:
        """The next batch if there is one, and whether it is to be waited for: then `bell` rings
        when it is worth asking again. The consumer has waited since `began`."""
        with self._lock:
            broken = self._broken
            if broken is None:
                try:
                    batch = epoch.pop(consumer)
                    ended = epoch.finished_for(consumer)
                    if batch is not None:
                        epoch.recorder.taken(batch, monotonic() - began)
                        if ended:
                            epoch.delivery.wake()  # other consumers wait for what will not come
                    elif not ended and bell is not None:
                        self._counts.waits_since = began
                        epoch.delivery.add_waiter(bell)
                except BaseException as error:
                    self._torn(error)
                    raise
        if broken is not None:
            self._raise(broken)
        if batch is None or ended:  # else `draw` or `proceed` will ring
            self._due.ring()
        return batch, batch is None and not ended

    def _raise(self, broken: BaseException) -> NoReturn:
        if isinstance(broken, WorkerSetupError):
            # Its traceback leads to the iterator from now on, which is then not dropped before
            # the threads that refer to the engine have ended.
            self.close_soon()
            raise broken.error
        raise RuntimeError("the loader's engine has failed") from broken

    def stats(self, epoch: Loading) -> Stats:
        """A snapshot of `epoch`, which this engine is loading or has loaded last."""
        self.check_process()
        with self._lock:
            stats, contents, slots = epoch.stats(), epoch.delivery.contents, self._slots
            costs, counts, now = epoch.costs_so_far(), self._counts, monotonic()
            history = self._coordinator.history
            if (stage := epoch.stage) is not None:
                stats = replace(stats, in_stage=stage.begun, in_stage_bytes=stage.nbytes)
            stats = replace(
                stats,
                workers=slots.wanted,
                active=slots.active,
                parked=slots.parked,
                diverted=counts.slow,
                handed_off=counts.stuck,
                failed=counts.failed,
                delivered=counts.delivered,
                data_wait=counts.data_wait,
                seconds=now - self._epoch_began,
                throughput=stats.finished / max(1e-9, now - self._epoch_began),
                worker_history=tuple((t - self._started, n) for t, n in history),
            )
        threads = self._executor.size
        return replace(stats, steps=costs(), threads=threads, ready_bytes=nbytes(contents))

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child. To be called before a lock is taken: at the fork a
        thread of the parent may have held it, and does not let go of it here."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this iterator belongs to the parent process, whose threads a fork does not copy: "
                "call iter() on the loader in this process"
            )

    # Jobs, for workers

    def take(self, worker: Worker) -> Job | None:
        while True:
            job, bell = self._next_job(worker, Bell)
            self._due.free()
            if bell is None:
                return job
            while not bell.wait(_BREATH):
                pass

    def take_now(self, worker: Worker, bell: Ringable) -> Job | None:
        with self._lock:
            # A bell may be rung twice. Whoever asks again is not idle any more: else it would be
            # woken later while it is busy, and somebody who idles would not.
            if bell in self._idle:
                self._idle.remove(bell)
        return self._next_job(worker, lambda: bell)[0]

    def _next_job(self, worker: Worker, new_bell: Callable[[], R]) -> tuple[Job | None, R | None]:
        """A job for `worker`, which has none. Otherwise a bell that rings when it is worth asking
        again, or no bell: the worker is to end."""
        job: Job | None = None
        bell: R | None = None
        with self._lock:
            last = self._slots.leave(worker)
            if last is not None:
                last.conclude()
                # Not freed here: it has keys of the user's, if no samples.
                self._due.drop(last)
                del last
            ending, loading = self._closed or worker.retiring, self._loading
            if worker.shares and self._slots.runs_as(worker.number):
                ending = True  # who was aside is back
            if self._left_over:
                job = self._left_over.popleft()
            elif loading is not None and not ending:
                job = loading.next_job(worker)
            if job is not None:
                self._slots.enter(worker, job)
                if not self._ticking:
                    # Not by the consumer: as long as a worker lives, the loop does.
                    self._ticking = True
                    self._loop.call_soon(self._tick)
            elif not ending:
                bell = new_bell()
                self._idle.append(bell)
            if bell is None and loading is not None:
                self._wake_for(loading)
        self._due.ring()
        return job, bell

    def wake(self) -> None:
        with self._lock:
            self._wake_workers(len(self._idle))
        self._due.ring()

    def _wake_for(self, loading: Loading) -> None:
        """Have idle workers look for the jobs of `loading`. One wakes the next: to wake several
        would take the consumer longer than a trivial batch does."""
        if not self._idle:
            return
        waiting = loading.jobs_waiting
        if waiting:
            self._wake_workers(1 if loading.any_worker_will_do else waiting)

    def _wake_workers(self, count: int) -> None:
        idle = self._idle
        for _ in range(min(count, len(idle))):
            self._due.add(idle[-1])
            del idle[-1]

    def worker_failed(self, worker: Worker, error: BaseException) -> None:
        """A bug, or a thread that could not start: the consumer must hear of it, not wait."""
        error.add_note(f"minato_async: in {worker.name}")
        self._break(error)

    def worker_ended(self, worker: Worker, how: str) -> None:
        with self._lock:
            # A slot that nobody leaves is one less for the others.
            self._due.drop(self._slots.leave(worker))
            if self._loading is not None:
                self._loading.worker_ended(worker, how)
        self._due.ring()

    def _torn(self, error: BaseException) -> None:
        """`error`, Ctrl-C, came between two changes that belong together: the epoch cannot go on.
        The caller holds the lock. Not `error` itself is kept: its traceback leads to the iterator,
        which could then not be dropped. Nor is it shown: it may be of a class of the user's."""
        name = type(error).__qualname__
        self._break(
            RuntimeError(f"{name} in the middle of its work: call iter() on the loader again")
        )

    def _break(self, error: BaseException) -> None:
        with self._lock:
            if self._broken is None:
                self._broken = error
            if self._loading is not None:
                self._loading.delivery.wake()
        self._due.ring()


def _left(deadline: float | None, most: float | None = None) -> float | None:
    """Seconds until `deadline`, if there is one, but no more than `most`."""
    if deadline is None:
        return most
    left = max(0.0, deadline - monotonic())
    return left if most is None else min(left, most)
