"""Making names that are already bound follow a new implementation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

#: ``id(old)`` to ``(old, new)``. Holds the old objects, so that no id is reused.
Replacements = dict[int, tuple[Any, Any]]

_MARK = "_minato_async_original"


def mark(replacement: Any, original: Any) -> None:
    """Note what `replacement` stands in for, so that `original_of` tells it."""
    setattr(replacement, _MARK, original)


def original_of(value: Any) -> Any:
    """What stood where `value` stands before this package put it there; `value` itself if it did
    not. A second import of the package begins with what there was before the first."""
    return getattr(value, _MARK, value)


def rebind(replacements: Replacements, but_not: str = "minato_async.seeding") -> None:
    """Replace objects wherever a module holds them under a name, in all modules but the package
    `but_not`, which must keep what was there.

    This is for ``from random import random``: a built-in method cannot be given new code.
    What is kept elsewhere, in an instance, a closure or a default argument, stays as it is.
    """
    for key, module in list(sys.modules.items()):
        # Other objects may stand there too.
        if not issubclass(type(module), ModuleType) or f"{key}.".startswith(f"{but_not}."):
            continue
        # Not by `getattr`: a lazy module imports itself when it is asked for anything.
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
        for name, value in list(names.items()):
            found = replacements.get(id(value))
            if found is not None:
                names[name] = found[1]


def redirect(function: FunctionType, make: Callable[[FunctionType], Callable[..., Any]]) -> None:
    """Give a plain function new code, so that every reference to it follows, early-bound or not.

    `make` gets a copy of the function that behaves as it did before the first `redirect`, and
    returns what is to be called in its place, with the same arguments. Name, documentation and
    signature stay.
    """
    # New code runs with the function's own globals, so what it calls must be found there.
    name = f"_minato_async_{function.__name__}"
    before = original_of(function)
    if before is not function:
        function.__globals__[name] = make(before)
        return
    code = function.__code__
    if code.co_freevars:
        raise TypeError(f"{function.__qualname__} is a closure: its code cannot be replaced")
    before = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, None
    )
    before.__kwdefaults__ = function.__kwdefaults__
    before.__doc__, before.__module__ = function.__doc__, function.__module__
    before.__qualname__, before.__annotations__ = function.__qualname__, function.__annotations__
    function.__globals__[name] = make(before)
    scope: dict[str, Any] = {}
    exec(f"def stub(*args, **kwargs):\n    return {name}(*args, **kwargs)\n", scope)
    stub = scope["stub"].__code__.replace(
        co_name=code.co_name, co_qualname=code.co_qualname, co_filename=__file__
    )
    function.__wrapped__ = before  # what inspect.signature reads
    mark(function, before)
    # Last: another thread may be calling the function now, with the old code or the new one.
    function.__code__ = stub
