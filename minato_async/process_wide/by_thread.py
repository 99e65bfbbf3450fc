"""Module attributes that are a worker's own on its thread, and the process's everywhere else.

A property of a module's class goes before what lies in the module's dictionary. So the dictionary
stays what the rest of the process has, and what a worker sets lies in its `Own`.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

_MISSING = object()


class Own:
    """What the code of one worker has changed: of a worker thread, or of the shard that it runs,
    whose open contexts go with it from thread to thread."""

    __slots__ = ("attributes", "handed_out", "registries")

    def __init__(self) -> None:
        #: What was set, by module and name. What is not in it is the process's.
        self.attributes: dict[tuple[str, str], Any] = {}
        #: What was last read of the process's: to set it again is to put it back, also if the
        #: process has something else by then. It also keeps alive what C code goes through.
        self.handed_out: dict[tuple[str, str], Any] = {}
        #: While warnings are filtered otherwise than in the process: what was warned of. See
        #: `warning_filters`.
        self.registries: dict[int, tuple[Any, dict[Any, Any]]] | None = None


class Thread(threading.local):
    #: None: not a worker's thread.
    own: Own | None = None
    #: The event loops that were made for it; None: it is to get none.
    made_loops: list[Any] | None = None


_MARK = "_minato_async_thread"

#: Kept where it outlives this module: if the package is imported anew, what the first import put in
#: place goes on asking for it.
thread: Thread = vars(threading).setdefault(_MARK, Thread())


@contextlib.contextmanager
def entered(own: Own) -> Iterator[None]:
    """Within this, what the calling thread sets is `own`; no more than a worker thread's code may
    call it, and elsewhere, as in a worker process, nothing happens."""
    before = thread.own
    if before is None:
        yield
        return
    thread.own = own
    try:
        yield
    finally:
        thread.own = before


@contextlib.contextmanager
def worker() -> Iterator[None]:
    """Within this, the calling thread is a worker's."""
    thread.own = Own()
    try:
        yield
    finally:
        thread.own = None


def is_divided(module: ModuleType) -> bool:
    """Whether `divide` has been called, be it by an earlier import of this package."""
    return hasattr(type(module), _MARK)


def divide(module: ModuleType, names: Iterable[str], more: dict[str, Any]) -> None:
    """Make `names` of `module` attributes that a worker may set for itself. `more` are further
    members of the module's class. There is no way back."""
    members = {name: attribute_of(module, name) for name in names}

    def reduce(self: ModuleType, protocol: int) -> Any:
        # Those who pickle modules (cloudpickle, dill) know them by their exact class.
        return importlib.import_module, (module.__name__,)

    cls = type(module)
    members |= more | {"__reduce_ex__": reduce, _MARK: True, "__module__": cls.__module__}
    # Reading other attributes becomes no slower than it is for any object that is not exactly a
    # module: there is no `__getattribute__`.
    module.__class__ = type(cls.__name__, (cls,), members)


def attribute_of(module: ModuleType, name: str) -> property:
    """The property that makes `name` of `module` a worker's own, where it sets one."""
    # All that these need is bound here: they may be called when modules are being taken apart at
    # the interpreter's end.
    shared, key, local, missing = vars(module), (module.__name__, name), thread, _MISSING

    def get(self: ModuleType) -> Any:
        own = local.own
        if own is not None:
            value = own.attributes.get(key, missing)
            if value is not missing:
                return value
        try:
            value = shared[name]
        except KeyError:
            raise AttributeError(f"module {key[0]!r} has no attribute {name!r}") from None
        if own is not None:
            own.handed_out[key] = value
        return value

    def put(self: ModuleType, value: Any) -> None:
        own = local.own
        if own is None:
            shared[name] = value
        elif value is shared.get(name, missing) or value is own.handed_out.get(key, missing):
            own.attributes.pop(key, None)
        else:
            own.attributes[key] = value

    def delete(self: ModuleType) -> None:
        own = local.own
        if own is not None and key in own.attributes:
            del own.attributes[key]
        elif own is None and name in shared:
            del shared[name]
        else:
            raise AttributeError(name)

    return property(get, put, delete)
