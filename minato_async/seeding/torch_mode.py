"""The torch function mode that worker threads run under, and its table of hooks."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from minato_async.seeding import torch_hooks as hooks
from minato_async.seeding import torch_names as names
from minato_async.seeding.torch_hooks import Args, Hook, Kwargs
from minato_async.seeding.torch_random import default_device

if TYPE_CHECKING:
    from minato_async.seeding.streams import SampleStreams
    from minato_async.seeding.torch_random import TorchStream

#: Every callable that torch may hand to the mode and that draws random numbers, with its hook.
#: Filled by `install`, before any worker runs, and only read from then on.
HOOKS: dict[Any, Hook] = {}


#: Arguments that may ask for another generator than the sample's for the CPU.
_ELSEWHERE = frozenset({"device", "generator", "out"})


class SampleMode(TorchFunctionMode):
    """Sees every call of torch's interface on its thread, and gives the random ones their hooks.

    It is off while it handles a call, so nested calls come here only through `hooks.under_mode`.
    """

    # A slot: torch looks the method up twice for every call, and would bind it twice.
    __slots__ = ("__torch_function__",)

    def __init__(self, stream: TorchStream) -> None:
        super().__init__()
        self.__torch_function__ = MethodType(  # type: ignore[method-assign]
            _handler(stream), self
        )

    def dissolve(self) -> None:
        """It is entered no more: the method, which is bound to it, need not be kept."""
        del self.__torch_function__


def _handler(stream: TorchStream) -> Callable[..., Any]:
    """What every call of torch's interface on the thread of `stream` passes through.

    All that it needs are its own locals: free-threaded CPython 3.13 does not specialise code, so
    an attribute costs it a search each time. They are arguments that torch never gives, and not
    keyword-only ones, whose defaults are searched for at each call too. And it looks into a table
    of its own, for cores that share one would pass its reference count to and fro.
    """

    own_hooks = HOOKS.copy()

    def handle(
        mode: SampleMode,
        func: Any,
        types: Any,
        args: Args = (),
        kwargs: Kwargs | None = None,
        hook_of: Callable[[Any], Hook | None] = own_hooks.get,
        stream: TorchStream = stream,
        streams: SampleStreams = stream.streams,
        own: Generator = stream.own,
        factories_on_cpu: bool = default_device() == "cpu",
        factory: Hook = hooks.inject_factory,
        method: Hook = hooks.inject_method,
    ) -> Any:
        hook = hook_of(func)
        if hook is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        # The commonest draws are done here, without the price of two more calls.
        if factories_on_cpu if hook is factory else hook is method and args[0].is_cpu:
            if not kwargs:
                if stream.sample is not streams.ticket:
                    stream.start()
                return func(*args, generator=own)
            if _ELSEWHERE.isdisjoint(kwargs):
                return func(*args, generator=stream.cpu(), **kwargs)
        return hook(stream, func, args, kwargs or {})

    return handle


_LIKE: dict[str, Hook] = {
    "rand_like": hooks.rand_like,
    "randn_like": hooks.randn_like,
    "randint_like": hooks.randint_like,
}
_WITHOUT_GENERATOR: dict[str, Hook] = {
    "alpha_dropout": hooks.dropout(alpha=True),
    "alpha_dropout_": hooks.dropout(alpha=True, inplace=True),
    "dropout": hooks.dropout(),
    "dropout_": hooks.dropout(inplace=True),
    "feature_alpha_dropout": hooks.dropout(feature=True, alpha=True),
    "feature_alpha_dropout_": hooks.dropout(feature=True, alpha=True, inplace=True),
    "feature_dropout": hooks.dropout(feature=True),
    "feature_dropout_": hooks.dropout(feature=True, inplace=True),
    "native_dropout": hooks.native_dropout,
    "scaled_dot_product_attention": hooks.attention,
}


def install() -> None:
    """Fill `HOOKS` for the installed torch."""
    by_name: dict[str, Hook] = dict.fromkeys(names.FACTORIES, hooks.inject_factory)
    by_name |= dict.fromkeys(names.KEYWORD, hooks.inject)
    by_name |= {name: hooks.inject_at(place) for name, place in names.POSITIONAL.items()}
    by_name |= {name: _LIKE[name] for name in names.LIKE}
    by_name |= {name: _WITHOUT_GENERATOR[name] for name in names.WITHOUT_GENERATOR}
    by_name |= {name: hooks.warn_if_dropping(name) for name in (*names.RECURRENT, *names.INTERNAL)}
    for name, hook in by_name.items():
        for holder in (torch, Tensor, torch._C._nn):
            function = getattr(holder, name, None)
            if callable(function) and not isinstance(function, FunctionType):
                HOOKS[function] = (
                    hooks.inject_method if holder is Tensor and hook is hooks.inject else hook
                )
        _install_operator(torch.ops.aten, name, hook)
    for name in ("normal", "uniform"):
        _install_operator(torch.ops.prims, name, hooks.inject)
    for name in names.PYTHON_FUNCTIONS:
        function = getattr(F, name, None)
        # Some choose between two functions, of which one has the same name with an underscore.
        body = getattr(F, f"_{name}", function)
        if isinstance(function, FunctionType) and isinstance(body, FunctionType):
            HOOKS[function] = hooks.under_mode(body)
    # The backward pass runs code of the user's: of autograd functions, hooks and checkpoints.
    passes: Any = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)
    for function in passes:
        HOOKS[function] = hooks.under_mode(function)
    for method in (Tensor.apply_, Tensor.map_, Tensor.map2_):
        HOOKS[method] = hooks.calls_back
    for function in vars(torch.nn.init).values():
        if isinstance(function, FunctionType) and "generator" in function.__code__.co_varnames:
            HOOKS[function] = hooks.inject


def _install_operator(namespace: Any, name: str, hook: Hook) -> None:
    """The hooks for an operator called through ``torch.ops``, as a whole or by an overload."""
    packet = getattr(namespace, name, None)
    if packet is None:
        return
    HOOKS[packet] = hook
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    takes = {o: any(a.name == "generator" for a in o._schema.arguments) for o in overloads}
    by_packet = any(takes.values()) and name in (*names.FACTORIES, *names.LIKE)
    if by_packet:
        HOOKS[packet] = hooks.inject
    for overload in overloads:
        if by_packet:
            HOOKS[overload] = hooks.inject if takes[overload] else hooks.inject_overload(packet)
        else:
            HOOKS[overload] = hook
