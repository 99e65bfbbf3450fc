"""What stands in the place of torch's functions that draw: it asks which thread is calling.

Each body is one of the functions below with globals of its own, for those names that are None here.
They are no closures: in free-threaded CPython threads that call one count references to its cells,
and hinder each other with that by more than all else here takes. Functions, modules, strings of the
code and what a thread has for itself cost nothing of the kind.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from minato_async.seeding import torch_hooks as hooks
from minato_async.seeding.current import current
from minato_async.seeding.torch_hooks import Hook
from minato_async.seeding.torch_random import default_device

Body = Callable[..., Any]

_C: Any = torch._C
under_function_mode: Callable[[], bool] = _C._is_torch_function_mode_enabled
dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
_tracing_modes: tuple[Any, ...] = tuple(
    getattr(_C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL")
)
compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
inject: Hook = hooks.inject

#: What stood there before.
original: Any = None
hook: Any = None
#: A method's name.
name: Any = None
#: Whether tensors are made on the CPU where the caller does not say.
on_cpu: Any = None


def steps_aside() -> bool:
    """Whether this call of torch is none to hook, for a mode is to see it first, which calls again
    if it goes on, or because it is traced: what `torch.compile` records must be what the code says,
    not a generator of this thread."""
    if under_function_mode():
        return True
    # Of the thread, unlike `torch.compiler.is_compiling`.
    return dispatch_modes() > 0 and any(_C._get_dispatch_mode(key) for key in _tracing_modes)


def _any(*args: Any, **kwargs: Any) -> Any:
    stream = current.torch
    if stream is None or steps_aside():
        return original(*args, **kwargs)
    return hook(stream, original, args, kwargs)


def _factory(*args: Any, **kwargs: Any) -> Any:
    stream = current.torch
    if stream is None or under_function_mode():
        return original(*args, **kwargs)
    if dispatch_modes() and steps_aside():
        return original(*args, **kwargs)
    if on_cpu and not (kwargs and ("device" in kwargs or "generator" in kwargs or "out" in kwargs)):
        if stream.sample is not stream.streams.ticket:
            stream.start()
        return original(*args, generator=stream.own, **kwargs)
    return inject(stream, original, args, kwargs)


def _method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    # Never so when this runs: for `torch.compile`, which reads it where the method is called by the
    # name of the class, and knows methods by their names.
    if compiling():
        return getattr(self, name)(*args, **kwargs)
    stream = current.torch
    if stream is None or under_function_mode():
        return original(self, *args, **kwargs)
    if dispatch_modes() and steps_aside():
        return original(self, *args, **kwargs)
    return hook(stream, original, (self, *args), kwargs)


def _filling_method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    if compiling():  # as above
        return getattr(self, name)(*args, **kwargs)
    stream = current.torch
    if stream is None or under_function_mode():
        return original(self, *args, **kwargs)
    if dispatch_modes() and steps_aside():
        return original(self, *args, **kwargs)
    if self.is_cpu and "generator" not in kwargs:
        if stream.sample is not stream.streams.ticket:
            stream.start()
        return original(self, *args, generator=stream.own, **kwargs)
    return inject(stream, original, (self, *args), kwargs)


def of(original: Body, hook: Hook) -> Body:
    """The body for any function."""
    return _body(_any, original=original, hook=hook)


def factory(original: Body) -> Body:
    """The body for functions that are given no tensor, with `hooks.inject`."""
    return _body(_factory, original=original, on_cpu=default_device() == "cpu")


def method(original: Body, hook: Hook) -> Body:
    """The body for a method of `Tensor`."""
    template = _filling_method if hook is hooks.inject else _method
    return _body(template, original=original, hook=hook, name=original.__name__)


def _body(template: Body, **own: Any) -> Body:
    """A function like `template`, with these globals."""
    assert isinstance(template, FunctionType)
    # A code object of its own too: it remembers where it has found its globals.
    code = template.__code__.replace(co_name=template.__name__)
    namespace = {name: globals()[name] for name in code.co_names if name in globals()}
    namespace |= {"__builtins__": builtins, "__name__": __name__, **own}
    return FunctionType(code, namespace, template.__name__)
