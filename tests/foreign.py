"""Objects of a user's that tell when their code runs where none of the user's may."""

from __future__ import annotations

import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import pytest

from minato_async.engine.engine import Engine
from minato_async.engine.event_loop import EventLoopThread

T = TypeVar("T")


#: Where Python is free-threaded, what a thread has made is freed by that thread between any two
#: bytecodes, if another one drops it: a list that has an object of the user's in it, say.
FREED_ANYWHERE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class LockCheck:
    """Notes calls of the user's code by a thread that holds the lock of an engine, or that is an
    engine's event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._locks: list[Any] = []
        #: Where it was found.
        self.found: list[str] = []
        self.calls = 0
        begin = Engine.begin

        def begin_and_remember(engine: Engine, *args: Any, **kwargs: Any) -> Any:
            if engine._lock not in self._locks:
                self._locks.append(engine._lock)
            return begin(engine, *args, **kwargs)

        monkeypatch.setattr(Engine, "begin", begin_and_remember)

    def __call__(self, what: str) -> None:
        """The calling thread is in code of the user's."""
        self.calls += 1
        if FREED_ANYWHERE and what.endswith("__del__"):
            return
        if any(lock._is_owned() for lock in list(self._locks)):
            self.found.append(f"{what} under the lock\n{''.join(traceback.format_stack())}")
        elif threading.current_thread().name == "minato-loop" and not _at_its_end():
            self.found.append(f"{what} on the loop\n{''.join(traceback.format_stack())}")


def _at_its_end() -> bool:
    """Whether the loop's thread has nothing left to do but to let go of what is left."""
    frames = [frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(2).f_back)]
    return Engine._main.__code__ in frames or frames[0] is EventLoopThread._run.__code__


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Iterator[LockCheck]:
    check = LockCheck(monkeypatch)
    yield check
    assert check.calls, "nothing was checked"
    assert not check.found, f"{len(check.found)} times, first:\n{check.found[0]}"


class Foreign:
    """An object whose every method that others may call without meaning to is checked."""

    #: Of the running test.
    check: Callable[[str], None] = staticmethod(lambda what: None)

    def __init__(self, number: int = 0) -> None:
        self.number = number
        #: What belongs to it, to be freed with it.
        self.parts: Any = None

    def __del__(self) -> None:
        self.check(f"{type(self).__name__}.__del__")

    def __repr__(self) -> str:
        self.check(f"{type(self).__name__}.__repr__")
        return f"<{self.number}>"

    def __eq__(self, other: object) -> bool:
        self.check(f"{type(self).__name__}.__eq__")
        return self is other

    def __hash__(self) -> int:
        self.check(f"{type(self).__name__}.__hash__")
        return self.number

    def __bool__(self) -> bool:
        self.check(f"{type(self).__name__}.__bool__")
        return True

    def __reduce__(self) -> Any:
        return type(self), (self.number,)


class Key(Foreign):
    pass


class Value(Foreign):
    pass


class Failure(Foreign, Exception):
    __reduce__ = Exception.__reduce__

    def __init__(self, number: int = 0) -> None:
        Exception.__init__(self, number)
        Foreign.__init__(self, number)

    def __str__(self) -> str:
        self.check("Failure.__str__")
        return "failed"


class Made(Generic[T]):
    """Objects that were made beforehand, for any thread to take."""

    def __init__(self, make: Callable[[int], T], count: int) -> None:
        self._made = [make(number) for number in reversed(range(count))]
        self._lock = threading.Lock()

    def take(self) -> T:
        """The next one, for the caller alone."""
        with self._lock:
            return self._made.pop()
