"""`torch.utils.data.get_worker_info()` on worker threads.

Torch keeps the info in a module global, one for the whole process. Here each thread has its own,
and code that imported the function early sees it too: the function object stays, and is given a
new body that looks at the thread first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker


class _ThreadState(threading.local):
    info: Any = None
    hidden: bool = False


# Kept outside this package: loaders of an earlier import of it go on with the same threads.
_thread: _ThreadState = vars(torch_worker).setdefault("_minato_thread", _ThreadState())


def make_worker_info(worker_id: int, num_workers: int, seed: int, dataset: Any, rng: Any) -> Any:
    """Torch's own `WorkerInfo`, with the fields that the installed torch has."""
    known = torch_worker.WorkerInfo.__init__.__code__.co_varnames
    extra = {"rng": rng, "worker_method": "thread"}
    return torch_worker.WorkerInfo(
        id=worker_id,
        num_workers=num_workers,
        seed=seed,
        dataset=dataset,
        **{name: value for name, value in extra.items() if name in known},
    )


@contextlib.contextmanager
def shown(info: Any) -> Iterator[None]:
    """Within this, `get_worker_info()` returns `info` on this thread."""
    before, _thread.info = _thread.info, info
    try:
        yield
    finally:
        _thread.info = before


def show(info: Any) -> None:
    """From now on `get_worker_info()` returns `info` on this thread."""
    _thread.info = info


def _replace_body(function: Any, replacement: Any) -> None:
    """Give `function` the body of `replacement`, which may call the original as
    `_minato_original_NAME` and this module's thread state as `_minato_thread`."""
    module, name = function.__globals__, f"_minato_original_{function.__name__}"
    if name not in module:  # or else this package is imported anew
        original = FunctionType(
            function.__code__, module, function.__name__, function.__defaults__, None
        )
        original.__kwdefaults__ = function.__kwdefaults__
        module[name] = original
    code: CodeType = replacement.__code__
    function.__code__ = code


# These two run with the globals of torch's module, so all their names are looked up there.


def _get_worker_info() -> Any:
    if _minato_thread.hidden:  # type: ignore[name-defined]  # noqa: F821
        return None
    info = _minato_thread.info  # type: ignore[name-defined]  # noqa: F821
    return _minato_original_get_worker_info() if info is None else info  # type: ignore[name-defined]  # noqa: F821


def _collate_tensor_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
    # Torch collates into shared memory wherever there is worker info. Threads share all memory:
    # for them that would only cost a file descriptor a tensor.
    if _minato_thread.info is None:  # type: ignore[name-defined]  # noqa: F821
        return _minato_original_collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # type: ignore[name-defined]  # noqa: F821
    _minato_thread.hidden = True  # type: ignore[name-defined]  # noqa: F821
    try:
        return _minato_original_collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # type: ignore[name-defined]  # noqa: F821
    finally:
        _minato_thread.hidden = False  # type: ignore[name-defined]  # noqa: F821


# At import, and not at the first loader: a function should not change its body while another
# thread may be calling it.
vars(torch_collate)["_minato_thread"] = _thread
_replace_body(torch_worker.get_worker_info, _get_worker_info)
_replace_body(torch_collate.collate_tensor_fn, _collate_tensor_fn)
