"""What processes that are started afresh are given to take along: a value, pickled."""

from __future__ import annotations

import array
import mmap
import os
import pickle
from collections.abc import Sequence
from contextvars import Context, copy_context
from multiprocessing import context as process_context
from multiprocessing import reduction
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from minato_async.executors.process.transport.packing import SMALL, is_plain
from minato_async.lifecycle.descriptors import above_standard

#: What memory-mapped arrays begin at multiples of.
_ALIGNMENT = 64


class PickledPlan:
    """A value, pickled as `multiprocessing` pickles what a new process is given, and to be opened
    by any number of processes.

    It lies in files without a name. Tensors and arrays stay there: who opens it maps them, so
    that all share their memory, until somebody writes to his own. Tensors that are shared already
    (`Tensor.share_memory_`) are shared with all who open it, too. Raises what pickling raises.
    """

    def __init__(self, value: Any) -> None:
        self._files: list[int] = []
        #: Descriptors that the value refers to; they belong to others.
        self._others: list[int] = []
        try:
            with above_standard():
                for name in ("pickled_plan", "arrays"):
                    self._files.append(os.memfd_create(f"minato-async-{name}", os.MFD_CLOEXEC))
            passage = _Passage()
            with open(self._files[0], "wb", closefd=False) as stream:
                packer = _Packer(stream, self._files[1])
                process_context.set_spawning_popen(passage)  # type: ignore[arg-type]
                try:
                    # Without modes of the caller's: it is not he who computes.
                    with torch._C.DisableTorchFunction():
                        packer.dump(value)
                finally:
                    process_context.set_spawning_popen(None)
            self._others = passage.fds
            self._arrays = packer.finish()
            #: Modules that opening it may import.
            self.modules = sorted(packer.modules)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the files, here."""
        for fd in self._files:
            os.close(fd)
        self._files = []

    def __reduce__(self) -> tuple[Any, ...]:
        # On its way to a new process, by `multiprocessing`.
        fds = [reduction.DupFd(fd) for fd in (*self._files, *self._others)]
        return _arrived, (fds, self._arrays, self.modules)

    def open(self) -> Any:
        """The value, made anew. In processes that it was given to."""
        stream, store = map(_mapped, self._files)
        places = array.array("Q")
        if self._arrays:
            places.frombytes(store[len(store) - self._arrays * 2 * places.itemsize :])
        pairs = zip(places[::2], places[1::2], strict=True)
        buffers = [store[start : start + size] for start, size in pairs]
        _PassedFd.arrived = self._others
        return pickle.loads(stream, buffers=buffers)


def _arrived(fds: Sequence[Any], arrays: int, modules: list[str]) -> PickledPlan:
    pickled_plan = PickledPlan.__new__(PickledPlan)
    # They stay open as long as the process lives: those that it forks open the pickled plan.
    files = [fd.detach() for fd in fds]
    pickled_plan._files, pickled_plan._others = files[:2], files[2:]
    pickled_plan._arrays, pickled_plan.modules = arrays, modules
    return pickled_plan


def _mapped(fd: int) -> memoryview:
    size = os.fstat(fd).st_size
    return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY) if size else b"")


class _PassedFd:
    """Stands for a descriptor that goes with the pickled plan."""

    #: Those that came with what is being opened.
    arrived: Sequence[int] = ()

    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        # Several may stand for one, and each is closed by whoever asked for it.
        return os.dup(self.arrived[self._number])


class _Passage:
    """The new process, to those who ask `multiprocessing` for it while they are pickled: locks and
    queues, shared tensors, whatever has a descriptor."""

    DupFd = _PassedFd

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        if fd not in self.fds:
            self.fds.append(fd)
        return self.fds.index(fd)


class _Packer(reduction.ForkingPickler):
    """Puts tensors and arrays into a file of their own. A descriptor for each tensor, as torch
    would have it, is soon one too many, and /dev/shm may be small."""

    def __init__(self, stream: Any, store: int) -> None:
        super().__init__(stream, 5, True, self._put)
        self._store = open(store, "wb", closefd=False)  # noqa: SIM115 - closed by `finish`
        self._places = array.array("Q")
        #: By where they lie, for tensors may be views of one another, and their sizes: what is made
        #: of a part of an array has a storage that is smaller than the array's and begins with it.
        self._storages: dict[tuple[int, int], np.ndarray[Any, Any]] = {}
        self.modules: set[str] = set()

    def finish(self) -> int:
        """All is pickled. Returns how many arrays there are."""
        with self._store as store:
            store.write(self._places.tobytes())
        return len(self._places) // 2

    def _put(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep the bytes of an array; True: they are to be pickled with the rest."""
        with buffer.raw() as data:
            if data.nbytes < SMALL:
                return True
            start = -(-self._store.tell() // _ALIGNMENT) * _ALIGNMENT
            self._store.seek(start)
            self._store.write(data)
            self._places.extend((start, data.nbytes))
        return False

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        named = value if isinstance(value, _NAMED) else kind
        if isinstance(module := getattr(named, "__module__", None), str):
            self.modules.add(module)
        if kind is torch.Tensor and is_plain(value) and not value.is_shared():
            place = value.storage_offset(), value.shape, value.stride()
            return _tensor, (self._storage(value), value.dtype, *place)
        if kind is torch.nn.Parameter:  # by way of its tensor, not as torch's shared memory
            return value.__reduce_ex__(5)
        if kind is Context:  # of whoever opens it: variables do not travel
            return copy_context, ()
        return NotImplemented

    def _storage(self, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        storage = tensor.untyped_storage()
        place = storage.data_ptr(), storage.nbytes()
        if place not in self._storages:
            self._storages[place] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        return self._storages[place]


_NAMED = (type, FunctionType, BuiltinFunctionType)


def _tensor(
    storage: np.ndarray[Any, Any],
    dtype: torch.dtype,
    start: int,
    shape: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    whole = torch.from_numpy(storage).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(whole, start, shape, stride)
