"""Giving a built-in function another body, so that every reference to it follows.

Torch knows its functions by identity: in the sets of `torch.device(...)` as a context, in the
tables of tensor subclasses, of `torch.fx`, `torch.jit` and `torch.compile`. Users keep them in
objects, closures and default arguments. So a function must stay the object that it is, and what it
does must change, as `rebinding.redirect` does for functions written in Python.

For a built-in one, CPython's public header (``cpython/methodobject.h``) says what it consists of:
a pointer to its definition and one to the object that the C function is called with. The definition
is replaced by one whose C function is `PyObject_Call`, which takes just what such a C function is
given, an object, a tuple and a dictionary; and the object is what is to be called. What the header
says is compared with what is found before anything is written.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import operator
import sys
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, ModuleType
from typing import Any

Body = Callable[..., Any]

_VARARGS_AND_KEYWORDS = 0x3
_STATIC = 0x20


class _Definition(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_void_p),
    )


#: Where the two pointers stand, behind what every object begins with, and how many follow.
_DEFINITION_AT = object.__basicsize__
_OWNER_AT = _DEFINITION_AT + ctypes.sizeof(ctypes.c_void_p)
_SIZE = _DEFINITION_AT + 5 * ctypes.sizeof(ctypes.c_void_p)


class _CalledInstead(functools.partial[Any]):
    """What a function with a new body is called with: calls the new body.

    A partial, for that calls on in C, and its function can be exchanged.
    """

    #: The function with its old body.
    original: Body
    #: What the old body was called with: a class or a module.
    owner: Any

    def __reduce__(self) -> tuple[Any, ...]:
        # The function is pickled as "the attribute of this object with the function's name", and
        # must be found where this package is not.
        if isinstance(self.owner, ModuleType):
            return importlib.import_module, (self.owner.__name__,)
        return operator.itemgetter(0), ([self.owner],)


# So that the function's `__qualname__` and `repr` are nearly what they were.
_CalledInstead.__name__ = _CalledInstead.__qualname__ = "_VariableFunctionsClass"


class UnknownLayoutError(RuntimeError):
    """This interpreter's built-in functions are not what they are in the CPython that we know."""


def original_of(function: BuiltinFunctionType) -> Body | None:
    """The function with its old body, if it has been given a new one, also by another import of
    this package."""
    found: Body | None = getattr(getattr(function, "__self__", None), "original", None)
    return found


def give_bodies(
    functions: Iterable[BuiltinFunctionType], make: Callable[[Any, Body], Body]
) -> None:
    """Give each function the body that `make` returns for it and for its original, which does what
    the function did. What has got a body before gets the new one.

    The functions must be ones that take positional and keyword arguments and do not look at the
    object that they belong to, as all of torch's are. Raises `UnknownLayoutError`.
    """
    new = []
    for function in functions:
        original = original_of(function)
        if original is None:
            new.append(function)
        else:
            instead: Any = function.__self__
            instead.__setstate__((make(function, original), (), {}, vars(instead)))
    for function in new:
        _check(function)
    # A function's hash is made of the two pointers.
    keyed = _containers(new)
    for function in new:
        _replace(function, make)
    for container in keyed:
        _hash_again(container)


def _pointer(function: BuiltinFunctionType, offset: int) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(id(function) + offset)


def _owner(function: BuiltinFunctionType) -> Any:
    """The object that the C function belongs to. `__self__` does not tell it for static methods."""
    reduced: Any = function.__reduce__()
    return function.__self__ if isinstance(reduced, str) else reduced[1][0]


def _check(function: BuiltinFunctionType) -> None:
    known = (
        sys.implementation.name == "cpython"
        and BuiltinFunctionType.__basicsize__ == _SIZE
        and _pointer(function, _OWNER_AT).value == id(_owner(function))
    )
    if known:
        address = _pointer(function, _DEFINITION_AT).value
        assert address is not None
        old = _Definition.from_address(address)
        known = (
            ctypes.string_at(old.name) == function.__name__.encode()
            and old.flags & ~_STATIC == _VARARGS_AND_KEYWORDS
        )
    if not known:
        raise UnknownLayoutError(f"{function!r} cannot be given another body on this interpreter")


def _replace(function: BuiltinFunctionType, make: Callable[[Any, Body], Body]) -> None:
    api: Any = ctypes.pythonapi
    definition = _pointer(function, _DEFINITION_AT)
    assert definition.value is not None
    old, owner = _Definition.from_address(definition.value), _owner(function)
    # The original is made as a function of a module: free-threaded CPython counts no references to
    # these, and threads that count references to one object hinder each other.
    module = ModuleType(function.__module__)
    found = (_Definition * 2)(
        _Definition(old.name, old.function, _VARARGS_AND_KEYWORDS, old.doc), _Definition()
    )
    if api.PyModule_AddFunctions(ctypes.py_object(module), found):
        raise SystemError(f"{function!r} cannot be added to a module")
    original: Body = getattr(module, function.__name__)
    call = ctypes.cast(api.PyObject_Call, ctypes.c_void_p).value
    new = _Definition(old.name, call, _VARARGS_AND_KEYWORDS, old.doc)
    instead = _CalledInstead(make(function, original))
    instead.original, instead.owner = original, owner
    # For ever: a function may be called until the process ends. Nor is the old owner given up.
    for kept in (found, new, instead):
        api.Py_IncRef(ctypes.py_object(kept))
    # The object first, for the old body does not look at it: another thread may be calling now.
    _pointer(function, _OWNER_AT).value = id(instead)
    definition.value = ctypes.addressof(new)


def _containers(functions: list[BuiltinFunctionType]) -> list[Any]:
    """The dictionaries and sets that have one of these for a key."""
    return [
        container
        for container in gc.get_referrers(*functions)
        if isinstance(container, dict | set)
        and any(function in container for function in functions)
    ]


def _hash_again(container: Any) -> None:
    if isinstance(container, set):
        members = list(container)
        container.clear()
        container.update(members)
    else:
        items = list(container.items())
        container.clear()
        for key, value in items:
            container[key] = value
