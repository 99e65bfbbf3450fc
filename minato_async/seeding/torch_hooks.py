"""How a random operator of torch is made to draw from the sample's stream.

A hook runs one call for the sample. Most operators take a `generator`, and get the sample's. The
few that take none are computed here from operators that do, by the formulas that torch uses, so
that they give the numbers that torch gives for the same state of a generator.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from minato_async.seeding.torch_random import default_device

if TYPE_CHECKING:
    from minato_async.seeding.torch_random import TorchStream

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
#: The sample's stream, torch's function as it was before it was replaced, and its arguments.
Hook = Callable[["TorchStream", Any, Args, Kwargs], Any]


class RandomStateWarning(UserWarning):
    """A sample drew random numbers that are neither reproducible nor isolated."""


# Operators that take a generator ------------------------------------------------------------------

_default_generator = torch.default_generator


def _is_users(generator: Any, stream: TorchStream) -> bool:
    """Whether a generator was given that is the user's own. The global one is what torch takes
    without any, and the stream's may have been kept from an earlier sample."""
    return not (generator is None or generator is _default_generator or generator is stream.own)


def inject(stream: TorchStream, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """For operators that take a generator."""
    if kwargs and _is_users(kwargs.get("generator"), stream):
        return func(*args, **kwargs)
    if args and type(args[0]) is Tensor and args[0].is_cpu:
        generator: Generator | None = stream.cpu()
    else:
        generator = stream.generator(_device_of(args, kwargs))
    if kwargs:
        return func(*args, **{**kwargs, "generator": generator})
    return func(*args, generator=generator)


def inject_at(position: int) -> Hook:
    """For operators that also take the generator after `position` other arguments."""

    def hook(stream: TorchStream, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if len(args) > position:
            if _is_users(args[position], stream):
                return func(*args, **kwargs)
            args = args[:position]
        return inject(stream, func, args, kwargs)

    return hook


def inject_overload(packet: Any) -> Hook:
    """For one overload that takes none, of a packet in which another does; `packet` is what calls
    any of them."""

    def hook(stream: TorchStream, func: Any, args: Args, kwargs: Kwargs) -> Any:
        return inject(stream, packet, args, kwargs)

    return hook


def _device_of(args: Args, kwargs: Kwargs) -> torch.device:
    """The device that a call draws on."""
    device = kwargs.get("device")
    if device is not None:
        return torch.device(device)
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device
    return torch.device(default_device())


def _named(names: tuple[str, ...], args: Args, kwargs: Kwargs) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


# Operators that take none, or not in every version of torch ---------------------------------------


def like(fill: Callable[[Tensor, list[Any], Generator | None], Any]) -> Hook:
    """A tensor like another, filled by `fill` with what is neither that nor a keyword of it."""

    def hook(stream: TorchStream, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if _is_users(kwargs.get("generator"), stream):
            return func(*args, **kwargs)
        options = {name: value for name, value in kwargs.items() if name not in _NOT_OPTIONS}
        model = args[0] if args else kwargs["input"]
        bounds = [*args[1:], *(kwargs[name] for name in ("low", "high") if name in kwargs)]
        result = torch.empty_like(model, **options)
        fill(result, bounds, stream.generator(result.device))
        # Not before: what requires a gradient cannot be filled in place.
        return result.requires_grad_() if kwargs.get("requires_grad") else result

    return hook


_NOT_OPTIONS = ("input", "low", "high", "generator", "requires_grad")


def _fill_integers(result: Tensor, bounds: list[Any], generator: Generator | None) -> None:
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    result.random_(int(low), int(high), generator=generator)


rand_like = like(lambda result, _, generator: result.uniform_(generator=generator))
randn_like = like(lambda result, _, generator: result.normal_(generator=generator))
randint_like = like(_fill_integers)


def dropout(*, feature: bool = False, alpha: bool = False, inplace: bool = False) -> Hook:
    """Dropout of single numbers or of whole features, to zero or to SELU's lower bound."""

    def hook(stream: TorchStream, func: Any, args: Args, kwargs: Kwargs) -> Any:
        # The first is called `self` by the forms in place, which take it by position only.
        values = _named(("input", "p", "train"), args, kwargs)
        x, p, train = values["input"], values["p"], values["train"]
        # Wrong arguments, and what draws nothing, are torch's own business.
        if not train or not 0 < p < 1 or x.numel() == 0 or (feature and x.dim() < 2):
            return func(*args, **kwargs)
        shape = x.new_empty((*x.shape[:2], *[1] * (x.dim() - 2))) if feature else x
        noise = torch.empty_like(shape).bernoulli_(1 - p, generator=stream.generator(x.device))
        if not alpha:
            noise.div_(1 - p)
            return x.mul_(noise) if inplace else x * noise
        # As torch rounds it, to the last bit.
        scale = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
        shift = (noise - 1).mul_(_ALPHA * scale).add_(_ALPHA * scale * p)
        noise.mul_(scale)
        return x.mul_(noise).add_(shift) if inplace else (x * noise).add_(shift)

    return hook


#: Minus the lower bound of SELU, the activation whose mean and variance alpha dropout keeps.
_ALPHA = 1.7580993408473766


def native_dropout(stream: TorchStream, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Dropout that returns its mask too."""
    values = _named(("input", "p", "train"), args, kwargs)
    x, p = values["input"], values["p"]
    if values["train"] is False or x.numel() == 0:
        return func(*args, **kwargs)
    mask = torch.empty_like(x, dtype=torch.bool)
    mask.bernoulli_(1 - p, generator=stream.generator(x.device))
    output = (x * mask).mul_(0.0 if p == 1 else 1 / (1 - p))
    if "out0" not in kwargs:
        return output, mask
    for out, result in ((kwargs["out0"], output), (kwargs["out1"], mask)):
        out.resize_(result.shape).copy_(result)
    return kwargs["out0"], kwargs["out1"]


def attention(stream: TorchStream, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Attention with dropout: the weights without it, by torch, then the rest of the formula."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    values = _named(names, args, kwargs)
    p = values.pop("dropout_p", 0.0)
    if not 0 < p < 1:
        return func(*args, **kwargs)
    mask = values.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        # Where it is true the position counts; that operator wants what to add.
        values["attn_mask"] = torch.zeros_like(mask, dtype=values["query"].dtype).masked_fill_(
            mask.logical_not(), float("-inf")
        )
    _, weights = torch._scaled_dot_product_attention_math(**values)
    keep = torch.empty_like(weights).bernoulli_(1 - p, generator=stream.generator(weights.device))
    value = values["value"]
    if values.get("enable_gqa"):
        value = value.repeat_interleave(weights.shape[-3] // value.shape[-3], -3)
    return (weights * keep.div_(1 - p)) @ value


# What draws from the global generator all the same ------------------------------------------------


def warn_if_dropping(name: str, overload: Any = None) -> Hook:
    """For operators that draw inside where their dropout argument is not zero, or one overload."""

    def hook(stream: TorchStream, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if _drops(overload, name, args, kwargs):
            _warn_once(name)
        return func(*args, **kwargs)

    return hook


def _drops(overload: Any, name: str, args: Args, kwargs: Kwargs) -> bool:
    """Whether a call drops anything, by the operator's schema; `overload` if one was called."""
    packet = getattr(torch.ops.aten, name)
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    for candidate in overloads if overload is None else [overload]:
        names = tuple(argument.name for argument in candidate._schema.arguments)
        values = _named(names, args, kwargs)
        # A recurrent layer has two forms, told apart by where its first flag stands.
        if isinstance(values.get("has_biases", True), bool):
            probability = values.get("dropout_p", values.get("dropout", 0.0))
            layers = values.get("num_layers", 2)
            return bool(probability and values.get("train", True) and layers > 1)
    return True


def _warn_once(name: str) -> None:
    # `setdefault` is atomic: of two threads that come here at once, one finds its own object.
    mine = object()
    if _warned.setdefault(name, mine) is mine:
        warnings.warn(
            f"torch's {name} with dropout draws from torch's global generator, which all threads "
            "share: the sample cannot be reproduced, and the training thread's random numbers "
            "change. See docs/randomness.md.",
            RandomStateWarning,
            stacklevel=4,
        )


_warned: dict[str, object] = {}
