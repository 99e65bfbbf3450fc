"""Exceptions on their way from a worker process: type, arguments, attributes and traceback.

An exception may hold others: causes, the members of a group, what is in its arguments or
attributes, and these may hold the first. Each is taken apart by itself, with numbers in the place
of the others. So cycles do no harm, one that is met twice stays one, and what cannot travel is
replaced alone.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, NamedTuple, cast

from minato_async.errors import Unmade, forget_frames, linked_errors

#: Causes of causes that are carried along.
_DEPTH = 16
#: Exceptions that are carried along in all.
_MOST = 1000


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
        """The exception, made anew. This runs code of its class, and of those of the others that
        it holds; where that raises, a `RuntimeError` tells of both."""
        packed = pickle.loads(self.data)
        replaced: dict[int, BaseException] = {}
        while True:
            try:
                error = _made(packed, replaced)
                break
            except _Unmakeable as failure:
                if isinstance(failure.error, KeyboardInterrupt):
                    raise failure.error from None
                replaced[failure.number] = RuntimeError(
                    f"{packed[failure.number].text}, which cannot be unpickled, was raised in a "
                    "worker process"
                )
                replaced[failure.number].__cause__ = failure.error
        for note in self.notes:
            error.add_note(note)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedError, (self.data, self.text, self.notes)


def unpacked(error: Any) -> BaseException:
    """`error` itself, or what it is when it has come from another process, or is yet to be made."""
    found: BaseException = error.unpack() if isinstance(error, PackedError | Unmade) else error
    return found


def pack_error(error: BaseException) -> PackedError:
    """`error`, ready to travel. One that cannot be pickled, or would not be the same afterwards,
    travels as a `RuntimeError` with its formatted text; so do, each by itself, those it holds."""
    packing = _Packing(error)
    return PackedError(pickle.dumps(packing.packed), packing.packed[0].text)


class _Packed(NamedTuple):
    """One exception as bytes, without the others that it holds."""

    shell: bytes
    filling: bytes
    #: Names it.
    text: str


@dataclass(frozen=True)
class _Shell:
    """What an exception is created of. Others that it holds are created first; where they hold it
    in turn, None stands in their place."""

    cls: type[BaseException]
    function: Callable[..., Any]
    args: tuple[Any, ...]

    def create(self) -> BaseException:
        error: BaseException = self.function(*self.args)
        if type(error) is not self.cls:
            raise TypeError(f"{self.cls.__qualname__} has become {type(error).__qualname__}")
        return error


@dataclass(frozen=True)
class _Filling:
    """What is put into an exception when all are there."""

    #: None: they are what its class has made of them.
    args: tuple[Any, ...] | None
    attributes: dict[str, Any]
    slots: dict[str, Any]
    #: For `__setstate__`.
    state: Any
    #: (file, line, function) of each frame, outermost first.
    frames: list[tuple[str, int, str]]
    #: Numbers of exceptions.
    cause: int | None
    context: int | None
    suppress_context: bool

    def fill(self, error: BaseException, others: list[Any]) -> None:
        if self.state is not None:
            # Not into the instance dictionary: an ImportError, say, keeps its name elsewhere.
            cast(Any, error).__setstate__(self.state)
        if self.args is not None:
            _put(error, "args", self.args)
        error.__dict__.update(self.attributes)
        for name, value in self.slots.items():
            _put(error, name, value)
        _put(error, "__cause__", None if self.cause is None else others[self.cause])
        _put(error, "__context__", None if self.context is None else others[self.context])
        _put(error, "__suppress_context__", self.suppress_context)
        _put(error, "__traceback__", _traceback(self.frames))


#: Sets attributes of classes that forbid it, too: frozen ones, say.
_put = BaseException.__setattr__


# Taking apart


class _Packing:
    """One exception and those that it holds."""

    def __init__(self, error: BaseException) -> None:
        self._numbers: dict[int, int] = {}
        #: With the length that a chain of causes may still have.
        self._met: list[tuple[BaseException, int]] = []
        self.packed: list[_Packed] = []
        self.number(error)
        while len(self.packed) < len(self._met):
            self.packed.append(self._pack(*self._met[len(self.packed)]))
        self._replace_unmakeable()

    def number(self, error: BaseException, depth: int = _DEPTH) -> int | None:
        """By which it is known from now on; None: there are too many already."""
        number = self._numbers.get(id(error))
        if number is None and len(self._met) < _MOST:
            number = self._numbers[id(error)] = len(self._met)
            self._met.append((error, depth))
        return number

    def _pack(self, error: BaseException, depth: int) -> _Packed:
        text, met = _named(error), len(self._met)
        # Code of the exception's class runs here, and may raise whatever it likes.
        with contextlib.suppress(BaseException):
            return self._taken_apart(error, depth, text)
        # Those that it holds are in the text of what replaces it.
        for other, _ in self._met[met:]:
            del self._numbers[id(other)]
        del self._met[met:]
        return self._taken_apart(_stand_in(error), 0, text)

    def _replace_unmakeable(self) -> None:
        """As if they could not be pickled."""
        while True:
            try:
                _made(self.packed, {})
                return
            except _Unmakeable as failure:
                number = failure.number
            error, text = self._met[number][0], self.packed[number].text
            self.packed[number] = self._taken_apart(_stand_in(error), 0, text)

    def _taken_apart(self, error: BaseException, depth: int, text: str) -> _Packed:
        shell, filling = _shell(error), _filling(error)
        if depth:
            cause, context = error.__cause__, error.__context__
            filling = replace(
                filling,
                cause=None if cause is None else self.number(cause, depth - 1),
                context=None if context is None else self.number(context, depth - 1),
            )
        return _Packed(self._dumped(shell), self._dumped(filling), text)

    def _dumped(self, value: Any) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self.number).dump(value)
        return file.getvalue()


class _Pickler(pickle.Pickler):
    """With numbers in the place of exceptions."""

    def __init__(self, file: io.BytesIO, number: Callable[[BaseException], int | None]) -> None:
        super().__init__(file)
        self._number = number

    def persistent_id(self, value: Any) -> int | str | None:
        if not issubclass(type(value), BaseException):
            return None
        number = self._number(value)
        return _named(value) if number is None else number


def _named(error: BaseException) -> str:
    text = name = type(error).__qualname__
    with contextlib.suppress(BaseException):
        text = f"{name}: {error}"
    return text


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


def _shell(error: BaseException) -> _Shell:
    cls = type(error)
    reduced = _reduced(error)
    if reduced is not None:
        return _Shell(cls, reduced[0], reduced[1])
    if isinstance(error, BaseExceptionGroup):
        message, members = _MESSAGE(error), list(_MEMBERS(error))
        return _Shell(cls, _new_group, (cls, message, members))
    base = _builtin_base(cls)
    # What has no fields needs no arguments, which may be long, to be created.
    has_fields = base.__basicsize__ > BaseException.__basicsize__
    args = cast(Any, base).__reduce__(error)[1] if has_fields else ()
    return _Shell(cls, _new, (cls, args))


def _filling(error: BaseException) -> _Filling:
    cls, reduced = type(error), _reduced(error)
    if reduced is not None:
        # The class says what is to be kept, but notes are of others.
        args, slots, state = None, {}, reduced[2] if len(reduced) > 2 else None
        attributes = {k: v for k, v in error.__dict__.items() if k == "__notes__"}
    else:
        args, attributes = error.args, dict(error.__dict__)
        slots = {name: getattr(error, name) for name in _slots(cls) if hasattr(error, name)}
        _, _, *found = cast(Any, _builtin_base(cls)).__reduce__(error)
        state = {k: v for k, v in found[0].items() if k not in attributes} if found else None
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    suppress = error.__suppress_context__
    return _Filling(args, attributes, slots, state or None, frames, None, None, suppress)


def _reduced(error: BaseException) -> tuple[Any, ...] | None:
    """What `__reduce_ex__` gives, where the class has a way of its own."""
    cls = type(error)
    if all(
        _is_builtin(next(base for base in cls.__mro__ if name in vars(base)))
        for name in ("__reduce__", "__reduce_ex__")
    ):
        return None
    found = error.__reduce_ex__(4)
    return found if isinstance(found, tuple) else None


def _slots(cls: type[BaseException]) -> list[str]:
    names: list[str] = []
    for base in cls.__mro__:
        if not _is_builtin(base):
            slots = vars(base).get("__slots__", ())
            names += (slots,) if isinstance(slots, str) else slots
    if issubclass(cls, (NameError, AttributeError)):
        names.append("name")  # no argument, and no part of how they are pickled
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _is_builtin(cls: type) -> bool:
    return cls.__module__ == "builtins"


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    """The class whose constructor fills the fields that are not in the instance dictionary."""
    base: Any = cls
    while not _is_builtin(base):
        base = base.__base__
    found: type[BaseException] = base
    return found


#: Of groups, whatever their classes have under these names.
_MESSAGE = cast(Any, BaseExceptionGroup.message).__get__
_MEMBERS = cast(Any, BaseExceptionGroup.exceptions).__get__


# Putting together


class _Unmakeable(Exception):
    """The exception with this number cannot be made anew."""

    def __init__(self, number: int, error: BaseException) -> None:
        super().__init__(number, error)
        self.number = number
        self.error = error


def _made(packed: list[_Packed], replaced: dict[int, BaseException]) -> BaseException:
    """The first of `packed`; others may be `replaced`. Raises `_Unmakeable`."""
    made: list[BaseException | None] = [replaced.get(number) for number in range(len(packed))]
    begun = set(replaced)

    def make(number: int | str) -> BaseException | None:
        if isinstance(number, str):
            return RuntimeError(f"{number}, one of very many, was left behind in a worker process")
        if number not in begun:
            begun.add(number)
            with _blamed(number):
                made[number] = _loaded(packed[number].shell, make).create()
        return made[number]

    for number in range(len(packed)):
        make(number)
    for number, error in enumerate(made):
        if number not in replaced:
            assert error is not None
            with _blamed(number):
                _loaded(packed[number].filling, make).fill(error, made)
    assert made[0] is not None
    return made[0]


@contextlib.contextmanager
def _blamed(number: int) -> Iterator[None]:
    try:
        yield
    except _Unmakeable:
        raise
    except BaseException as error:
        raise _Unmakeable(number, error) from None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, make: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._make = make

    def persistent_load(self, number: Any) -> Any:
        return self._make(number)


def _loaded(data: bytes, make: Callable[[Any], Any]) -> Any:
    return _Unpickler(io.BytesIO(data), make).load()


def _new(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    # Not through constructors of its own, which may want other arguments.
    base = _builtin_base(cls)
    error = base.__new__(cls, *args)
    base.__init__(error, *args)
    return error


def _new_group(
    cls: type[BaseExceptionGroup[Any]], message: str, members: list[BaseException]
) -> BaseException:
    return BaseExceptionGroup.__new__(cls, message, members)


def _here() -> Iterator[FrameType]:
    # A generator, whose frame does not keep those of who called it: whoever keeps the exception
    # would keep what they know, and they the exception.
    yield sys._getframe()


#: Before CPython 3.12, and since 3.13.
_STANDS_ALONE = next(iter(_here())).f_back is None


def without_variables(error: BaseException) -> None:
    """`error` is to be kept until it is raised. Its traceback, and those of the errors that it came
    from, are replaced by ones that read the same and keep no variables."""
    if not _STANDS_ALONE:
        forget_frames(error)
        return
    for linked in linked_errors(error):
        frames = traceback.extract_tb(linked.__traceback__)
        lookalike = _traceback([(f.filename, f.lineno or 0, f.name) for f in frames])
        linked.__traceback__ = lookalike
        del lookalike


def _traceback(frames: list[tuple[str, int, str]]) -> TracebackType | None:
    """A traceback that reads like the original. Its frames have the names and the lines, which
    is what is shown of them, but no variables."""
    following: TracebackType | None = None
    for filename, line, name in reversed(frames):
        code: CodeType = _here.__code__.replace(co_filename=filename, co_name=name)
        frame = next(FunctionType(code, {"sys": sys, "__name__": name, "__file__": filename})())
        following = TracebackType(following, frame, -1, line)
    return following
