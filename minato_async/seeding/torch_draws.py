"""Torch's functions that draw random numbers ask which thread is calling; all others stay as they
are.

Three kinds are replaced, each so that it remains what it is for all who know it: built-in functions
get another body (`builtin_body`), a method of `Tensor` is another function under the same name, and
operators under ``torch.ops`` call another function inside.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
import torch.jit._builtins
from torch import Tensor

from minato_async.seeding import torch_bodies as bodies
from minato_async.seeding import torch_hooks as hooks
from minato_async.seeding import torch_names as names
from minato_async.seeding.builtin_body import UnknownLayoutError, give_bodies
from minato_async.seeding.rebinding import mark, original_of
from minato_async.seeding.torch_hooks import Hook
from minato_async.user_warnings import warn_user

Body = Callable[..., Any]

#: Everything of torch that draws random numbers and follows the sample, with its hook.
HOOKS: dict[Any, Hook] = {}

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


def _hooks_by_name() -> dict[str, Hook]:
    by_name: dict[str, Hook] = dict.fromkeys((*names.FACTORIES, *names.KEYWORD), hooks.inject)
    by_name |= {name: hooks.inject_at(place) for name, place in names.POSITIONAL.items()}
    by_name |= {name: _LIKE[name] for name in names.LIKE}
    by_name |= {name: _WITHOUT_GENERATOR[name] for name in names.WITHOUT_GENERATOR}
    by_name |= {name: hooks.warn_if_dropping(name) for name in (*names.RECURRENT, *names.INTERNAL)}
    return by_name


def install() -> None:
    """Replace what draws in the installed torch, and fill `HOOKS`. Warns where its functions cannot
    be replaced: a loader that works without this is better than none."""
    by_name = _hooks_by_name()
    # A list: the hash of a function changes with its body.
    functions: list[tuple[BuiltinFunctionType, str]] = []
    for name in by_name:
        for holder in (torch, torch._C._nn):
            function = getattr(holder, name, None)
            if isinstance(function, BuiltinFunctionType):
                functions.append((function, name))
    name_of = {id(function): name for function, name in functions}

    def make(function: Any, original: Body) -> Body:
        name = name_of[id(function)]
        if name in names.FACTORIES:
            return bodies.factory(original)
        return bodies.of(original, by_name[name])

    try:
        give_bodies([function for function, _ in functions], make)
    except UnknownLayoutError as error:
        warn_user(
            f"{error}. On threads, what samples draw from torch's functions comes from the global "
            "generator, neither reproducible nor isolated. seed=False says that this is meant",
            hooks.RandomStateWarning,
        )
    else:
        HOOKS.update((function, by_name[name]) for function, name in functions)
    _replace_methods(by_name)
    for name, hook in by_name.items():
        _replace_operator(torch.ops.aten, name, hook)
    for name in ("normal", "uniform"):
        _replace_operator(torch.ops.prims, name, hooks.inject)


def _replace_methods(by_name: dict[str, Hook]) -> None:
    replaced = {}
    for name, hook in by_name.items():
        original = original_of(getattr(Tensor, name, None))
        if isinstance(original, MethodDescriptorType):
            method: Any = bodies.method(original, hook)
            method.__name__, method.__doc__ = name, original.__doc__
            # Where it is found, so that it can be pickled.
            method.__module__, method.__qualname__ = "torch", f"Tensor.{name}"
            method.__objclass__ = original.__objclass__
            mark(method, original)
            HOOKS[method] = hook
            replaced[original] = method
            setattr(Tensor, name, method)
    # Tables that subclasses and modes have of what they handle: torch tells them the new one.
    for table in gc.get_referrers(*replaced):
        if isinstance(table, dict) and table is not replaced:
            table.update({new: table[old] for old, new in replaced.items() if old in table})
        elif isinstance(table, set):
            table.update([new for old, new in replaced.items() if old in table])


class _Operator(functools.partial[Any]):
    """What an operator under ``torch.ops`` calls inside."""

    def __hash__(self) -> int:
        # By which operators know themselves.
        return hash(original_of(self))

    def __eq__(self, other: object) -> bool:
        return bool(original_of(self) == original_of(other))


def _replace_operator(namespace: Any, name: str, hook: Hook) -> None:
    """Replace an operator called through ``torch.ops``, as a whole or by an overload."""
    packet = getattr(namespace, name, None)
    if packet is None:
        return
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    takes = {o: any(a.name == "generator" for a in o._schema.arguments) for o in overloads}
    by_packet = any(takes.values()) and name in (*names.FACTORIES, *names.LIKE)
    whole = original_of(packet._op)
    _replace_call(packet, hooks.inject if by_packet else hook)
    for overload in overloads:
        if by_packet and not takes[overload]:
            _replace_call(overload, hooks.inject_overload(whole))
        elif by_packet:
            _replace_call(overload, hooks.inject)
        else:
            drops = name in names.RECURRENT or name in names.INTERNAL
            _replace_call(overload, hooks.warn_if_dropping(name, overload) if drops else hook)
    # Scripted code finds an operator by what it calls inside.
    torch.jit._builtins._register_builtin(packet._op, packet._qualified_op_name)


def _replace_call(called: Any, hook: Hook) -> None:
    original = original_of(called._op)
    instead = _Operator(bodies.of(original, hook))
    mark(instead, original)
    called._op = instead
    HOOKS[called] = hook
