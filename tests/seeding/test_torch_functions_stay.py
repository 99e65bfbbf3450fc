"""Torch's functions that draw remain what they are, for everything that knows them."""

from __future__ import annotations

import copy
import inspect
import operator
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from minato_async.seeding import builtin_body
from minato_async.seeding.builtin_body import UnknownLayoutError, give_bodies
from minato_async.seeding.torch_draws import HOOKS
from tests.seeding.support import as_sample, plain, python

#: One of each kind: a function, a method, a function of torch.nn, an operator and its overload.
KINDS: dict[str, Any] = {
    "function": torch.rand,
    "method": Tensor.uniform_,
    "nn": torch._C._nn.scaled_dot_product_attention,
    "operator": torch.ops.aten.rand,
    "overload": torch.ops.aten.rand.default,
}


def everywhere(work: Callable[[], Any]) -> list[Any]:
    """What `work` returns on this thread, which runs no samples, and as a sample."""
    return [work(), as_sample(work)]


@pytest.mark.parametrize("kind", ["function", "method", "nn"])
def test_a_function_can_be_pickled_copied_and_read_about(kind: str) -> None:
    function = KINDS[kind]
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    assert function.__name__ in repr(function)
    assert function.__name__ in function.__doc__
    assert function.__qualname__.endswith(function.__name__)
    assert function.__module__.startswith("torch")
    assert inspect.isbuiltin(function) == (kind != "method")


def test_what_is_pickled_is_found_where_this_package_is_not() -> None:
    pickled = pickle.dumps([torch.rand, Tensor.uniform_, F.scaled_dot_product_attention])
    script = (
        "import pickle, sys, torch\n"
        f"found = pickle.loads({pickled!r})\n"
        "assert found == [torch.rand, torch.Tensor.uniform_,"
        " torch._C._nn.scaled_dot_product_attention]\n"
        "assert not any(name.startswith('minato_async') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_what_was_bound_or_noted_before_the_first_loader_follows() -> None:
    """In objects and closures too; and tables and sets that had a function for a key still do."""
    found = python(
        """
        import functools, torch
        from torch import rand
        from torch.utils._device import _device_constructors

        functions = [torch.rand, torch.dropout, torch.Tensor.uniform_, torch.ops.aten.rand.default,
                     torch._C._nn.scaled_dot_product_attention, torch.randn_like]
        table = {function: place for place, function in enumerate(functions)}
        names = {function for function in functions}
        frozen = {hash(f) for f in [torch.ops.aten.rand.default]}
        constructors = _device_constructors()
        before = list(table.values())

        class Kept:
            def __init__(self):
                self.draw = torch.rand
                self.partial = functools.partial(torch.randint, 0, 1000)

        def closure(draw=torch.randn):
            return draw(3)

        kept = Kept()
        from tests.seeding.support import as_sample, plain
        from tests.seeding.support import global_state

        for function in functions[:2] + functions[3:]:
            assert function in table and function in names, function
        assert torch.Tensor.uniform_ in table and torch.Tensor.uniform_ in names
        assert table[torch.Tensor.uniform_] == 2 and list(table.values())[:6] == before
        assert hash(torch.ops.aten.rand.default) in frozen
        assert torch.rand in constructors and torch.rand is rand

        def work():
            return plain([kept.draw(3), kept.partial((3,)), closure(), rand(3)])

        state = global_state()
        assert as_sample(work) == as_sample(work, after=2) != as_sample(work, 2)
        assert global_state() == state
        print("followed")
        """
    )
    assert found == "followed\n"


def test_a_default_device_reaches_what_draws() -> None:
    def work() -> Any:
        with torch.device("meta"):
            return [
                made.device.type
                for made in (torch.rand(2), torch.randperm(3), torch.rand_like(torch.empty(2)))
            ]

    assert everywhere(work) == [["meta"] * 3] * 2


class _Seen(TorchFunctionMode):
    """Notes what torch tells a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_users_sees_the_function_as_it_was_called() -> None:
    def work() -> Any:
        x = torch.zeros(2)
        with _Seen() as seen:
            values = [torch.rand(2), x.clone().uniform_(), torch.ops.aten.rand([2]), torch.rand(2)]
        functions = [func for func, _ in seen.calls if func is not Tensor.clone]
        assert functions[:2] == [torch.rand, Tensor.uniform_]
        assert functions[2] in (torch.ops.aten.rand, torch.ops.aten.rand.default)
        assert all("generator" not in kwargs for _, kwargs in seen.calls)
        return plain(values)

    work()
    assert as_sample(work) == as_sample(work, after=2) != as_sample(work, 2)


def test_a_subclass_is_told_the_function_that_is_there() -> None:
    told: list[Any] = []

    class Told(Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            told.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    def work() -> Any:
        told.clear()
        x = torch.zeros(3).as_subclass(Told)
        values = [x.clone().uniform_(), torch.bernoulli(x + 0.5), torch.multinomial(x + 1, 2)]
        assert all(type(value) is Told for value in values)
        for function in (Tensor.uniform_, torch.bernoulli, torch.multinomial):
            assert function in told
        return plain([value.as_subclass(Tensor) for value in values])

    work()
    assert as_sample(work) == as_sample(work, after=2) != as_sample(work, 2)


def test_scripts_and_graphs_can_be_made_of_what_draws() -> None:
    def script() -> Any:
        @torch.jit.script
        def scripted(x: Tensor) -> Tensor:
            drawn = torch.rand(3) + torch.rand_like(x) + x.clone().uniform_()
            return drawn + F.dropout(x) + torch.ops.aten.rand([3])

        return scripted(torch.zeros(3)).shape

    with torch.random.fork_rng():
        assert everywhere(script) == [torch.Size([3])] * 2

    graph = torch.fx.symbolic_trace(
        lambda x: torch.rand_like(x) + F.dropout(x, 0.5) + x.clone().uniform_() + torch.rand(3)
    )
    assert "torch.rand_like" in graph.code
    assert pickle.loads(pickle.dumps(graph))(torch.zeros(3)).shape == (3,)


def test_transformations_of_functions_go_through() -> None:
    def work() -> Any:
        rows = torch.vmap(lambda row: row + torch.rand(3), randomness="different")(
            torch.zeros(4, 3)
        )
        same = torch.vmap(lambda row: row + torch.rand(3), randomness="same")(torch.zeros(4, 3))
        assert len(rows.unique()) == 12
        assert len(same.unique()) == 3
        return plain([rows, same])

    assert as_sample(work) == as_sample(work, after=1)


def test_torch_finds_its_functions_by_name() -> None:
    functions = torch.overrides.get_overridable_functions()
    assert torch.bernoulli in functions[torch]
    assert Tensor.uniform_ in functions[Tensor]
    assert torch.overrides.resolve_name(torch.rand_like) == "torch.rand_like"
    assert torch.overrides.is_tensor_method_or_property(Tensor.uniform_)
    assert torch._C._VariableFunctions.rand is torch.rand


def test_nothing_but_what_draws_is_replaced() -> None:
    """The cost of all else is what it is without this package."""
    for function in (torch.stack, torch.empty, F.scaled_dot_product_attention, torch.rand):
        assert isinstance(function, types.BuiltinFunctionType)
        replaced = builtin_body.original_of(function) is not None
        assert replaced == (function in HOOKS)
    for name in ("add_", "flip", "to", "clone"):
        assert name not in vars(Tensor)
    assert as_sample(torch._C._len_torch_function_stack) == 0


def test_on_an_interpreter_that_is_not_known_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(builtin_body, "_SIZE", builtin_body._SIZE + 8)
    with pytest.raises(UnknownLayoutError, match="another body"):
        give_bodies([torch.flip], lambda function, original: original)
    assert torch.flip(torch.arange(2), [0]).tolist() == [1, 0]


def test_a_function_of_another_kind_is_refused() -> None:
    for function in (len, operator.add):
        with pytest.raises(UnknownLayoutError):
            give_bodies([function], lambda function, original: original)


def test_on_an_interpreter_that_is_not_known_loaders_work_and_say_so() -> None:
    """In a child: installing is for good."""
    script = """
import warnings
from minato_async import MinatoLoader
from minato_async.seeding import RandomStateWarning, builtin_body
builtin_body._SIZE = 1
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    loader = MinatoLoader([1, 2], num_workers=1, executor="thread")
    assert [batch.item() for batch in loader] == [1, 2]
assert [w.category for w in caught] == [RandomStateWarning], caught
assert "seed=False" in str(caught[0].message)
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
