"""Resources that threads and forked processes must not share: one of each for every worker."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class per_worker(Generic[T]):
    """A resource that each worker makes for itself, at its first use, with `factory`.

    File handles, HDF5 and zip files, database connections and tokenizers are not safe to share
    between threads; most of them not with a forked process either. Make one of these in the
    dataset's constructor and call it where the resource is needed::

        self.archive = minato_async.per_worker(lambda: zipfile.ZipFile(path))
        ...
        self.archive().read(name)

    A thread's resource lives as long as the thread, or this object if that ends earlier. It is
    released by being dropped: have `factory` return something that closes itself then, as files
    do. Pickling and copying keep `factory` alone, so that a worker process makes its own too.
    """

    def __init__(self, factory: Callable[[], T]) -> None:
        self._factory = factory
        self._local = threading.local()

    def __call__(self) -> T:
        """The calling thread's resource. Raises what `factory` raises, and tries again next
        time."""
        local, process = self._local, os.getpid()
        if getattr(local, "process", None) != process:
            resource: T = self._factory()
            # What a fork has brought along is the parent's: its position in a file, its
            # connection. It is kept, for its finaliser might end what the parent still uses.
            local.inherited = getattr(local, "resource", None), getattr(local, "inherited", None)
            local.resource, local.process = resource, process
        resource = local.resource
        return resource

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._factory,)
