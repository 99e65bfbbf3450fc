"""Exceptions that hold others, on their way from a worker process."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minato_async.executors.process.transport.failures import PackedError, pack_error
from tests.processes.support import Made, processes
from tests.semantics.support import iterating


class Coded(Exception):
    """One whose constructor wants other arguments than it passes on."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Slotted(Exception):
    __slots__ = ("inner",)

    def __init__(self, inner: BaseException) -> None:
        self.inner = inner


class Fresh(Exception):
    """One whose `__new__` wants what it is made of."""

    def __new__(cls, inner: Coded) -> Fresh:
        made = super().__new__(cls, inner)
        made.__dict__["code"] = inner.code
        return made


class Unopened(OSError):
    def __init__(self, path: str, *, inner: BaseException) -> None:
        super().__init__(2, "gone", path)
        self.inner = inner


class Several(ExceptionGroup[Exception]):
    """A group with a constructor of its own."""

    def __new__(cls, *errors: Exception) -> Several:
        made = ExceptionGroup.__new__(cls, "several", errors)
        made.count = len(errors)
        return made

    def __init__(self, *errors: Exception) -> None:
        """Its own arguments are not those of other groups."""

    count: int


class Reduced(Exception):
    """One with a way of its own to be pickled."""

    def __init__(self, inner: BaseException, lock: Any) -> None:
        super().__init__(inner, lock)
        self.inner = inner
        self.lock = lock

    def __reduce__(self) -> Any:
        return Reduced, (self.inner, None)


@dataclass(frozen=True)
class Frozen(Exception):
    inner: BaseException


@dataclass
class Report:
    errors: dict[str, Any]


class Broken(Exception):
    """One that cannot be made anew."""

    def __reduce__(self) -> Any:
        return broken, ()


def broken() -> Any:
    raise LookupError("not made")


def passed(error: BaseException) -> Any:
    """`error`, as it comes out of a worker process."""

    def sample(_: int) -> Any:
        raise error

    with iterating(processes(Made(1, sample), num_workers=1)) as iterator:
        try:
            next(iterator)
        except BaseException as found:
            return found


def coded(number: int) -> Coded:
    try:
        raise Coded(code=number)
    except Coded as error:
        error.add_note(f"note {number}")
        return error


def is_coded(found: Any, number: int) -> None:
    assert type(found) is Coded
    assert found.code == number
    assert found.args == (f"code {number}",)
    assert found.__notes__ == [f"note {number}"]
    assert traceback.extract_tb(found.__traceback__)[-1].name == "coded"


def with_attribute(value: Any) -> Exception:
    error = ValueError("outer")
    error.__dict__["held"] = value
    return error


HELD: dict[str, tuple[Callable[[], BaseException], Callable[[Any], Any]]] = {
    "arguments": (lambda: ValueError("text", coded(7)), lambda e: e.args[1]),
    "attribute": (lambda: with_attribute(coded(7)), lambda e: e.held),
    "slot": (lambda: Slotted(coded(7)), lambda e: e.inner),
    "list": (lambda: with_attribute([1, (2, [coded(7)])]), lambda e: e.held[1][1][0]),
    "dict": (lambda: RuntimeError({"all": {3: coded(7)}}), lambda e: e.args[0]["all"][3]),
    "object": (lambda: with_attribute(Report({"x": coded(7)})), lambda e: e.held.errors["x"]),
    "exception": (lambda: Slotted(ValueError(coded(7))), lambda e: e.inner.args[0]),
    "group": (
        lambda: ExceptionGroup("g", [KeyError(1), coded(7)]),
        lambda e: e.exceptions[1],
    ),
    "group in a group": (
        lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), ExceptionGroup("h", [coded(7)])]),
        lambda e: e.exceptions[1].exceptions[0],
    ),
    "group of its own class": (lambda: Several(coded(7), OSError()), lambda e: e.exceptions[0]),
    "new": (lambda: Fresh(coded(7)), lambda e: e.args[0]),
    "own constructor": (lambda: Unopened("/x", inner=coded(7)), lambda e: e.inner),
    "own way": (lambda: Reduced(coded(7), threading.Lock()), lambda e: e.inner),
    "value": (lambda: SystemExit(coded(7)), lambda e: e.code),
}


@pytest.mark.parametrize("where", HELD)
def test_held_exceptions_keep_type_and_attributes(where: str) -> None:
    make, held = HELD[where]
    error, found = make(), passed(make())
    assert type(found) is type(error)
    is_coded(held(found), 7)
    if isinstance(error, BaseExceptionGroup):
        assert found.message == error.message
        assert [type(e) for e in found.exceptions] == [type(e) for e in error.exceptions]
    if isinstance(error, OSError):
        assert (found.errno, found.filename) == (2, "/x")
    if isinstance(error, Several):
        assert found.count == 2
    assert "sample index 0" in found.__notes__[-1]


@pytest.mark.parametrize("where", HELD)
def test_causes_of_held_exceptions(where: str) -> None:
    make, held = HELD[where]
    error = make()
    inner = held(error)
    inner.__cause__, inner.__context__ = ValueError("cause"), Slotted(coded(8))
    inner.__suppress_context__ = False
    found = held(pack_error(error).unpack())
    is_coded(found, 7)
    assert type(found.__cause__) is ValueError
    is_coded(found.__context__.inner, 8)
    assert not found.__suppress_context__


def test_cause_that_is_the_context_stays_one() -> None:
    def raised() -> BaseException:
        try:
            try:
                raise ExceptionGroup("lower down", [coded(1)])
            except ExceptionGroup as lower:
                raise KeyError(lower.exceptions[0]) from lower
        except KeyError as error:
            return error

    found = passed(raised())
    assert found.__cause__ is found.__context__
    assert found.args[0] is found.__cause__.exceptions[0]
    is_coded(found.args[0], 1)


def cycle_of_arguments() -> BaseException:
    error = ValueError()
    error.args = ("text", error, [error])
    return error


def cycle_of_fields() -> BaseException:
    error = SystemExit()
    error.args = (error,)
    return error


def cycle_of_attributes() -> BaseException:
    first, second = Slotted(coded(1)), coded(2)
    second.__dict__["other"] = first
    first.inner = second
    return first


def cycle_of_members() -> BaseException:
    member = coded(3)
    group = Several(member)
    member.__context__ = group
    member.__dict__["group"] = [group]
    return group


def cycle_of_causes() -> BaseException:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__context__ = second, first
    return first


@pytest.mark.parametrize(
    ("make", "there", "back"),
    [
        (cycle_of_arguments, lambda e: e.args[1], lambda e: e.args[2][0]),
        (cycle_of_fields, lambda e: e.args[0], lambda e: e),
        (cycle_of_attributes, lambda e: e.inner.other, lambda e: e),
        (
            cycle_of_members,
            lambda e: e.exceptions[0].group[0],
            lambda e: e.exceptions[0].__context__,
        ),
        (cycle_of_causes, lambda e: e.__cause__.__context__, lambda e: e),
    ],
)
def test_cycles(make: Any, there: Any, back: Any) -> None:
    found = passed(make())
    assert type(found) is type(make())
    assert there(found) is found
    assert back(found) is found


def test_class_that_forbids_to_set_attributes() -> None:
    found: Any = pack_error(Frozen(coded(7))).unpack()
    assert type(found) is Frozen
    is_coded(found.inner, 7)


def test_what_is_held_more_than_once_stays_one() -> None:
    shared = coded(5)
    found = passed(ExceptionGroup("g", [with_attribute(shared), Slotted(shared), shared]))
    first, second, third = found.exceptions
    assert first.held is second.inner is third
    is_coded(third, 5)


def local() -> Exception:
    class Local(Exception):
        """A class that nobody finds by its name."""

    return Local("of a local class")


def with_lock() -> Exception:
    return with_attribute(threading.Lock())


@pytest.mark.parametrize("make", [local, with_lock, Broken])
@pytest.mark.parametrize("where", ["member", "argument", "attribute", "cause"])
def test_what_cannot_travel_is_replaced_alone(make: Callable[[], Exception], where: str) -> None:
    bad = make()
    bad.__cause__ = ValueError("why")
    outer, held = {
        "member": (ExceptionGroup("g", [bad, coded(1)]), lambda e: e.exceptions[0]),
        "argument": (ValueError(coded(1), [bad]), lambda e: e.args[1][0]),
        "attribute": (with_attribute((bad, coded(1))), lambda e: e.held[0]),
        "cause": (with_attribute([1, coded(1)]), lambda e: e.__cause__),
    }[where]
    if where == "cause":
        outer.__cause__ = bad
    found: Any = passed(outer)
    assert type(found) is type(outer)
    replaced = held(found)
    assert type(replaced) is RuntimeError
    assert f"{type(bad).__qualname__}, which cannot be pickled" in str(replaced)
    assert "ValueError: why" in str(replaced)
    others: Any = {
        "member": lambda e: e.exceptions[1],
        "argument": lambda e: e.args[0],
    }.get(where, lambda e: e.held[1])
    is_coded(others(found), 1)


def test_what_cannot_travel_itself_tells_of_what_it_holds() -> None:
    error = ExceptionGroup("g", [coded(6)])
    error.__dict__["lock"] = threading.Lock()
    found = passed(error)
    assert type(found) is RuntimeError
    assert "ExceptionGroup: g" in str(found)
    assert "code 6" in str(found)


class Elsewhere(Exception):
    """One that can be made anew only where `there` is."""

    def __init__(self, there: Path) -> None:
        super().__init__(there)
        self.there = there

    def __reduce__(self) -> Any:
        return made_there, (self.there,)


def made_there(there: Path) -> Elsewhere:
    there.stat()
    return Elsewhere(there)


def test_held_one_that_cannot_be_made_anew_where_it_arrives(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.touch()
    packed = pack_error(ExceptionGroup("g", [Elsewhere(there), coded(4)]))
    assert isinstance(packed, PackedError)
    there.unlink()
    found: Any = packed.unpack()
    assert type(found) is ExceptionGroup
    is_coded(found.exceptions[1], 4)
    assert str(found.exceptions[0]).startswith("Elsewhere: ")
    assert type(found.exceptions[0].__cause__) is FileNotFoundError


def test_very_many() -> None:
    found = passed(with_attribute([ValueError(number) for number in range(3000)]))
    assert type(found) is ValueError
    assert [type(error) for error in found.held[:900]] == [ValueError] * 900
    assert "ValueError: 2999" in str(found.held[-1])

    error: BaseException = ValueError("the last")
    for number in range(5000):
        above = KeyError(number)
        above.__context__ = error
        error = above
    found, length = passed(error), 0
    while found is not None:
        found, length = found.__context__, length + 1
    assert 10 < length < 1000
