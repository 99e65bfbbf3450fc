"""Exceptions on their way from a worker process: type, arguments, attributes and traceback."""

from __future__ import annotations

import contextlib
import pickle
import sys
import traceback
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, cast

#: Causes of causes that are carried along.
_DEPTH = 16


class PackedError:
    """An exception as bytes."""

    __slots__ = ("data", "notes", "text")

    def __init__(self, data: bytes, text: str, notes: tuple[str, ...] = ()) -> None:
        self.data = data
        #: Names the exception, for where it cannot be made anew.
        self.text = text
        #: For the exception, from who passed it on.
        self.notes = notes

    def noted(self, note: str) -> PackedError:
        """The same with a note."""
        return PackedError(self.data, self.text, (*self.notes, note))

    def unpack(self) -> BaseException:
        """The exception, made anew. This runs code of its class; where that raises, a
        `RuntimeError` tells of both."""
        error: BaseException
        try:
            error = _rebuilt(self.data)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = RuntimeError(
                f"{self.text}, which cannot be unpickled, was raised in a worker process"
            )
            error.__cause__ = raised
        for note in self.notes:
            error.add_note(note)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedError, (self.data, self.text, self.notes)


def _rebuilt(data: bytes) -> BaseException:
    error: BaseException = pickle.loads(data).rebuild()
    return error


def unpacked(error: Any) -> BaseException:
    """`error` itself, or what it is when it has come from another process."""
    found: BaseException = error.unpack() if isinstance(error, PackedError) else error
    return found


def pack_error(error: BaseException) -> PackedError:
    """`error`, ready to travel. One that cannot be pickled, or would not be the same afterwards,
    travels as a `RuntimeError` with its formatted text."""
    # Code of the exception's class runs here, and may raise whatever it likes.
    text = name = type(error).__qualname__
    with contextlib.suppress(BaseException):
        text = f"{name}: {error}"
    with contextlib.suppress(BaseException):
        data = pickle.dumps(_taken_apart(error, _DEPTH))
        if type(_rebuilt(data)) is type(error):
            return PackedError(data, text)
    return PackedError(pickle.dumps(_taken_apart(_stand_in(error), 0)), text)


def _stand_in(error: BaseException) -> RuntimeError:
    text, notes = "", []
    with contextlib.suppress(BaseException):
        notes = [str(note) for note in getattr(error, "__notes__", ())]
    with contextlib.suppress(BaseException):
        text = "".join(traceback.format_exception(error))
    stand_in = RuntimeError(
        f"{type(error).__qualname__}, which cannot be pickled, was raised in a worker process:\n"
        f"{text}"
    )
    for note in notes:
        stand_in.add_note(note)
    return stand_in.with_traceback(error.__traceback__)


@dataclass(frozen=True)
class _Parts:
    cls: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]
    slots: dict[str, Any]
    #: What `__reduce_ex__` gives, where the class has a way of its own.
    reduced: tuple[Any, ...] | None
    #: (file, line, function) of each frame, outermost first.
    frames: list[tuple[str, int, str]]
    cause: _Parts | None
    context: _Parts | None
    suppress_context: bool

    def rebuild(self) -> BaseException:
        if self.reduced is not None:
            function, args, *state = self.reduced
            error: BaseException = function(*args)
            if state and state[0] is not None:
                # Not into the instance dictionary: an ImportError, say, keeps its name elsewhere.
                cast(Any, error).__setstate__(state[0])
        else:
            # Not through its constructor, which may want other arguments than `args`.
            error = self.cls.__new__(self.cls, *self.args)
            _builtin_base(self.cls).__init__(error, *self.args)
            error.args = self.args
            error.__dict__.update(self.attributes)
            for name, value in self.slots.items():
                setattr(error, name, value)
        error.__cause__ = None if self.cause is None else self.cause.rebuild()
        error.__context__ = None if self.context is None else self.context.rebuild()
        error.__suppress_context__ = self.suppress_context
        return error.with_traceback(_traceback(self.frames))


def _taken_apart(error: BaseException, depth: int) -> _Parts:
    cls = type(error)
    reduced = None
    if getattr(cls, "__reduce__", None) is not BaseException.__reduce__ or (
        cls.__reduce_ex__ is not object.__reduce_ex__
    ):
        found = error.__reduce_ex__(4)
        reduced = found if isinstance(found, tuple) else None
    cause, context = (error.__cause__, error.__context__) if depth else (None, None)
    return _Parts(
        cls,
        error.args,
        dict(error.__dict__),
        {name: getattr(error, name) for name in _slots(cls) if hasattr(error, name)},
        reduced,
        [(f.filename, f.lineno or 0, f.name) for f in _frames(error)],
        None if cause is None else _taken_apart(cause, depth - 1),
        None if context is None or context is cause else _taken_apart(context, depth - 1),
        error.__suppress_context__,
    )


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def _slots(cls: type[BaseException]) -> list[str]:
    names: list[str] = []
    for base in cls.__mro__:
        if base.__module__ != "builtins":
            slots = vars(base).get("__slots__", ())
            names += (slots,) if isinstance(slots, str) else slots
    if issubclass(cls, (NameError, AttributeError)):
        names.append("name")  # no argument, and no part of how they are pickled
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    """The class whose constructor fills the fields that are not in the instance dictionary."""
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _here() -> FrameType:
    return sys._getframe()


def _traceback(frames: list[tuple[str, int, str]]) -> TracebackType | None:
    """A traceback that reads like the original. Its frames have the names and the lines, which
    is what is shown of them, but no variables."""
    following: TracebackType | None = None
    for filename, line, name in reversed(frames):
        code: CodeType = _here.__code__.replace(co_filename=filename, co_name=name)
        frame = FunctionType(code, {"sys": sys, "__name__": name, "__file__": filename})()
        following = TracebackType(following, frame, -1, line)
    return following
