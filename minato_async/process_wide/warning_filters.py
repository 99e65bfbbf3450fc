"""`warnings`: what a worker filters, records and shows otherwise is its own affair.

Up to Python 3.13 the functions of `warnings` read the module's dictionary. On worker threads they
are run so that they read its attributes, as later versions do; the C code does in all of them.

What has been warned of is noted in the module that warns (`__warningregistry__`), which all threads
share, and a change of filters makes all these notes void, by a version. Neither will do for one
worker's filters: the training loop's warnings would be shown over and over, and a worker would not
see what somebody else was told already. So such a worker has notes of its own.
"""

from __future__ import annotations

import _warnings
import sys
import warnings
from types import FrameType, FunctionType
from typing import Any

from minato_async.process_wide.by_thread import Own, attribute_of, divide, thread
from minato_async.seeding.rebinding import redirect

_MODULE: Any = warnings
_FILTERS = ("warnings", "filters")
#: What user code sets; `catch_warnings` sets the first three.
_ATTRIBUTES = ("filters", "showwarning", "_showwarnmsg_impl", "formatwarning", "defaultaction")


def install() -> None:
    # Under names that stay theirs: a context may be open that has put something else in place.
    for name in ("_showwarning_orig", "_formatwarnmsg"):
        redirect(getattr(warnings, name), _reader)
    redirect(_MODULE._showwarnmsg, _shower)
    for name in ("_add_filter", "resetwarnings"):
        redirect(getattr(warnings, name), _changer)
    more = {
        "warn": _replaced("warn", _warnings.warn, _warn),
        "warn_explicit": _replaced("warn_explicit", _warnings.warn_explicit, _warn_explicit),
    }
    for name in ("_filters_mutated", "_filters_mutated_lock_held"):
        original = getattr(warnings, name, None)
        if original is not None:  # the second is of Python 3.14
            more[name] = _replaced(name, original, _note_change, always=True)
    divide(warnings, _ATTRIBUTES, more)


class _Attributes(dict[str, Any]):
    """Globals that are the attributes of `warnings`. The interpreter asks a subclass of `dict` by
    `__getitem__`."""

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(warnings, name)
        except AttributeError:
            raise KeyError(name) from None


def _by_attribute(function: FunctionType) -> Any:
    """`function` as it is to be run on a worker's thread."""
    if function.__globals__ is not vars(warnings):
        return function  # it reads attributes as it is
    names = _Attributes(__builtins__=function.__globals__["__builtins__"])
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _reader(original: FunctionType) -> Any:
    local, on_worker = thread, _by_attribute(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (original if local.own is None else on_worker)(*args, **kwargs)

    return call


def _changer(original: FunctionType) -> Any:
    """Changes a list of filters in its place: on a worker that has to be one of its own."""
    local, on_worker = thread, _by_attribute(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        own = local.own
        if own is None:
            return original(*args, **kwargs)
        context = _context()
        if context is not None:
            _MODULE._set_context(context.copy())  # it may be the training thread's
        elif _FILTERS not in own.attributes:
            own.attributes[_FILTERS] = list(vars(warnings)["filters"])
        return on_worker(*args, **kwargs)

    return call


def _shower(original: FunctionType) -> Any:
    """Is called with what is to be shown, by C code, which has noted it where all threads look."""
    local, call = thread, _reader(original)

    def show(message: Any) -> None:
        own = local.own
        if own is None or own.registries is None or not _was_told(own, message):
            call(message)

    return show


def _is_filtering(own: Own) -> bool:
    """Whether warnings are filtered otherwise than in the process."""
    return _FILTERS in own.attributes or _context() is not None


def _context() -> Any:
    """What `catch_warnings` has made where warnings are context-aware, an option of Python 3.14
    and later; None: it changes the attributes of the module."""
    get = getattr(warnings, "_get_context", None)
    if get is None:
        return None
    context = get()
    return None if context is _MODULE._global_context else context


def _note_change() -> None:
    """The filters have changed: on a worker only its own notes become void."""
    own = thread.own
    assert own is not None
    own.registries = {} if _is_filtering(own) else None


def _replaced(name: str, original: Any, function: Any, always: bool = False) -> property:
    """`name` of `warnings`, `original`, is `function` on a worker: `always`, or while it has notes
    of its own. What the user has put in its place goes before."""
    local, attribute = thread, attribute_of(warnings, name)

    def get(module: Any) -> Any:
        found, own = attribute.__get__(module), local.own
        if own is None or found is not original or not (always or own.registries is not None):
            return found
        return function

    return property(get, attribute.fset, attribute.fdel)


def _own_registry(own: Own, registry: Any) -> Any:
    """Stands for `registry` on this worker."""
    if registry is None or own.registries is None:
        return registry
    found = own.registries.get(id(registry))
    if found is None:
        # With the original, so that its identity is not another's; and with the version of the
        # filters: C code makes notes of another version void.
        found = registry, {"version": registry.get("version")}
        own.registries[id(registry)] = found
    return found[1]


def _warn_explicit(
    message: Any,
    category: Any,
    filename: str,
    lineno: int,
    module: Any = None,
    registry: Any = None,
    module_globals: Any = None,
    source: Any = None,
) -> None:
    """`warnings.warn_explicit`, with the worker's own notes."""
    own = thread.own
    if own is not None:
        registry = _own_registry(own, registry)
    if module is None:  # None itself would mean that the interpreter ends
        module = filename.removesuffix(".py") or "<unknown>"
    _warnings.warn_explicit(
        message, category, filename, lineno, module, registry, module_globals, source
    )


def _warn(
    message: Any,
    category: Any = None,
    stacklevel: int = 1,
    source: Any = None,
    *,
    skip_file_prefixes: tuple[str, ...] = (),
) -> None:
    """`warnings.warn`, with the worker's own notes."""
    if isinstance(message, Warning):
        category = type(message)
    elif category is None:
        category = UserWarning
    if not (isinstance(category, type) and issubclass(category, Warning)):
        raise TypeError(f"category must be a Warning subclass, not {category!r}")
    frame = _blamed(sys._getframe(1), stacklevel, skip_file_prefixes)
    names, filename, lineno = vars(sys), "<sys>", 0
    if frame is not None:
        names, filename, lineno = frame.f_globals, frame.f_code.co_filename, frame.f_lineno
    module = names.get("__name__", "<string>")
    registry = names.setdefault("__warningregistry__", {})
    _warn_explicit(message, category, filename, lineno, module, registry, None, source)


def _blamed(frame: FrameType | None, level: int, skipped: tuple[str, ...]) -> FrameType | None:
    """The frame that a warning points at: the `level`-th, from that of the caller of `warn` on,
    leaving out those of imports and of files that begin with one of `skipped`."""
    if skipped:
        level = max(2, level)
    counts_all = _is_of_import(frame)
    for _ in range(level - 1):
        if frame is None:
            break
        frame = frame.f_back
        while (
            frame is not None
            and not counts_all
            and (_is_of_import(frame) or frame.f_code.co_filename.startswith(skipped))
        ):
            frame = frame.f_back
    return frame


def _is_of_import(frame: FrameType | None) -> bool:
    filename = "" if frame is None else frame.f_code.co_filename
    return "importlib" in filename and "_bootstrap" in filename


def _was_told(own: Own, message: warnings.WarningMessage) -> bool:
    """Move what was noted of a warning from where all threads look to the worker's own notes;
    returns whether it stood there already.

    That is for warnings that C code issues itself, as numpy's does, and for a `warn` that was
    imported by name. C code looks at the common notes before it asks for filters: if another
    thread was told of the same line, the worker is not, and that cannot be helped. But what a
    worker with filters of its own is told stands in nobody's way.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not (
        frame.f_lineno == message.lineno and frame.f_code.co_filename == message.filename
    ):
        if frame.f_code is _warn_explicit.__code__:
            return False  # the notes were the worker's own
        frame = frame.f_back
    registry = None if frame is None else frame.f_globals.get("__warningregistry__")
    if not registry:
        return False
    mine = _own_registry(own, registry)
    text, category, told = str(message.message), message.category, False
    for key in ((text, category, message.lineno), (text, category, 0), (text, category)):
        if registry.pop(key, None):
            told = told or key in mine
            mine[key] = True
    return told
