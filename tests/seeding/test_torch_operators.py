"""Every operator that torch says draws random numbers follows the sample, or is documented.

The operators are those that the installed torch tags; a version with a new one fails here until it
is in one of the tables of `torch_names`.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minato_async.seeding import RandomStateWarning, torch_hooks, torch_names
from minato_async.seeding.torch_draws import HOOKS
from tests.seeding.support import as_sample, global_state, new_streams, plain


def tagged() -> Iterator[tuple[str, Any]]:
    """Name and overload of every operator that torch tags as random."""
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        name, _, overload = full.partition(".")
        space, _, base = name.partition("::")
        try:
            found = getattr(getattr(getattr(torch.ops, space), base), overload or "default")
        except (AttributeError, RuntimeError):
            continue  # of another build of torch
        if torch.Tag.nondeterministic_seeded in found.tags:
            yield name, found


TAGGED = list(tagged())
RUN = [
    (name, overload)
    for name, overload in TAGGED
    if name not in torch_names.DRAW_NOTHING
    and name.partition("::")[2] not in (*torch_names.RECURRENT, *torch_names.INTERNAL)
    and name != "aten::_fused_dropout"  # CUDA only; takes a generator as the others do
]


def test_torch_tags_the_operators_that_we_know_of() -> None:
    assert len(TAGGED) > 100
    for name, overload in TAGGED:
        if name not in torch_names.DRAW_NOTHING:
            packet = getattr(getattr(torch.ops, name.partition("::")[0]), name.partition("::")[2])
            assert overload in HOOKS, f"{overload} is random, and in no table of torch_names"
            assert packet in HOOKS


def test_no_table_names_what_torch_does_not_have() -> None:
    known = {name.partition("::")[2] for name, _ in TAGGED} | {"miopen_rnn", "_lstm_mps"}
    for table in (
        torch_names.FACTORIES,
        torch_names.KEYWORD,
        torch_names.POSITIONAL,
        torch_names.LIKE,
        torch_names.WITHOUT_GENERATOR,
        torch_names.RECURRENT,
        torch_names.INTERNAL,
    ):
        assert set(table) <= known, set(table) - known


def numbers(*shape: int) -> Tensor:
    count = int(torch.Size(shape).numel())
    return torch.linspace(0.2, 0.8, count).reshape(shape)


#: Arguments by name, where the type does not say enough.
BY_NAME: dict[str, Any] = {
    "size": [40],
    "shape": [40],
    "high": 1000,
    "low": 2,
    "n": 40,
    "num_samples": 3,
    "p": 0.5,
    "train": True,
    "training": True,
    "replacement": True,
    "from": 0,
    "to": 1000,
    "dropout_p": 0.5,
    "stride": [1],
    "names": None,
    "generator": None,
    "mean": 0.0,
    "std": 1.0,
    "dtype": None,
    "device": torch.device("cpu"),
    "requires_grad": False,
}


def arguments(name: str, overload: Any) -> tuple[list[Any], dict[str, Any]]:
    """What to call an overload with: made from its schema."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in overload._schema.arguments:
        kind = str(argument.type)
        if argument.is_out:
            # These do not resize what they write to, and one of them crashes instead.
            same = re.search("::normal|rrelu", name)
            value: Any = torch.empty(4, 5, 6) if same else torch.empty(0)
            if argument.name == "out1":
                value = value.bool()
            elif re.search("randint|randperm|multinomial", name):
                value = value.long()
        elif argument.name == "high" and kind == "Tensor":
            value = torch.tensor(1000)
        elif argument.name == "dtype" and "prims" in name:
            value = torch.float32
        elif argument.has_default_value() and argument.name not in ("p", "training", "dropout_p"):
            if argument.kwarg_only:
                continue
            value = argument.default_value
        elif kind == "Tensor":
            value = numbers(1, 2, 20, 20) if "attention" in name else numbers(4, 5, 6)
            if name in ("aten::multinomial", "aten::_sample_dirichlet"):
                value = numbers(4, 30)
            elif argument.name == "count":
                value = torch.full((4, 5, 6), 100.0)
            elif name == "aten::poisson":
                value = numbers(4, 5, 6) * 100
            elif name in ("aten::exponential", "aten::geometric"):
                value = numbers(4, 5, 6)
        else:
            value = BY_NAME[argument.name]
        if name.startswith("aten::rrelu") and argument.name == "self":
            value = -value
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    return positional, keywords


def check(call: Callable[[], Any]) -> None:
    """It follows the sample: the same on any thread, another for another, and nothing global."""

    def twice() -> Any:
        return plain([call(), call()])

    before = global_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RandomStateWarning)
        one = as_sample(twice)
        assert one == as_sample(twice, after=2)
    assert one != as_sample(twice, 2)
    assert one[0] != one[1]
    assert global_state() == before


@pytest.mark.parametrize(("name", "overload"), RUN, ids=lambda value: str(value))
def test_an_operator_called_through_torch_ops_follows(name: str, overload: Any) -> None:
    def call() -> Any:
        positional, keywords = arguments(name, overload)
        return overload(*positional, **keywords)

    check(call)


NAMES = sorted({name.partition("::")[2] for name, _ in RUN if name.startswith("aten::")})
CALLED = [
    (holder, name)
    for holder in (torch, Tensor, torch._C._nn)
    for name in NAMES
    if callable(getattr(holder, name, None))
]


@pytest.mark.parametrize(
    ("holder", "name"), CALLED, ids=lambda value: getattr(value, "__name__", value)
)
def test_an_operator_called_by_its_usual_name_follows(holder: Any, name: str) -> None:
    packet = getattr(torch.ops.aten, name)
    checked = 0
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        names = {argument.name for argument in overload._schema.arguments}
        if overload_name.endswith("out") or "names" in names:
            continue

        def call(overload: Any = overload) -> Any:
            positional, keywords = arguments(f"aten::{name}", overload)
            keywords.pop("generator", None)
            return getattr(holder, name)(*positional, **keywords)

        try:
            with torch.random.fork_rng():
                call()
        except TypeError:
            continue  # under this name torch offers only some of them
        check(call)
        checked += 1
    assert checked


x = numbers(4, 6)
image = numbers(1, 3, 40, 40)
FUNCTIONAL: dict[str, Callable[[], Any]] = {
    "alpha_dropout": lambda: F.alpha_dropout(x, training=True),
    "dropout": lambda: F.dropout(x),
    "dropout1d": lambda: F.dropout1d(numbers(9, 9)),
    "dropout2d": lambda: F.dropout2d(numbers(2, 20, 3, 3)),
    "dropout3d": lambda: F.dropout3d(numbers(2, 20, 2, 2, 2)),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(numbers(2, 20, 3), training=True),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(image, 2, output_ratio=(0.4, 0.4)),
    "fractional_max_pool2d_with_indices": lambda: F.fractional_max_pool2d(
        image, 2, output_size=17, return_indices=True
    ),
    "fractional_max_pool3d": lambda: F.fractional_max_pool3d(
        numbers(1, 3, 20, 20, 20), 2, output_size=9
    ),
    "fractional_max_pool3d_with_indices": lambda: F.fractional_max_pool3d_with_indices(
        numbers(1, 3, 20, 20, 20), 2, output_size=9
    ),
    "gumbel_softmax": lambda: F.gumbel_softmax(x),
    "multi_head_attention_forward": lambda: _attend(),
    "rrelu": lambda: F.rrelu(-x, training=True),
}


def _attend(need_weights: bool = True) -> Any:
    with torch.no_grad():
        query = numbers(7, 1, 8)
        layer = nn.MultiheadAttention(8, 2, dropout=0.5)
        for parameter in layer.parameters():
            parameter.fill_(0.1)
        return layer(query, query, query, need_weights=need_weights)[0]


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_a_function_of_torch_in_python_follows(name: str) -> None:
    check(FUNCTIONAL[name])


MORE: dict[str, Callable[[], Any]] = {
    "Dropout": lambda: nn.Dropout()(x),
    "Dropout in place": lambda: nn.Dropout(inplace=True)(x.clone()),
    "Dropout2d in place": lambda: nn.Dropout2d(inplace=True)(numbers(2, 20, 3, 3)),
    "AlphaDropout in place": lambda: nn.AlphaDropout(inplace=True)(x.clone()),
    "gumbel_softmax, hard": lambda: F.gumbel_softmax(numbers(9, 9), hard=True),
    "attention without weights": lambda: _attend(need_weights=False),
    "attention, keywords": lambda: F.scaled_dot_product_attention(
        query=image, key=image, value=image, dropout_p=0.5, is_causal=True, scale=0.1
    ),
    "FractionalMaxPool2d": lambda: nn.FractionalMaxPool2d(2, output_size=17)(image),
    "RReLU": lambda: nn.RReLU()(-x),
    "a new layer": lambda: [p.detach() for p in nn.Linear(3, 4).parameters()],
    "rand of a size": lambda: torch.rand(size=(3,)),
    "rand into": lambda: torch.rand(3, out=torch.empty(3)),
    "rand, double": lambda: torch.rand(3, dtype=torch.float64),
    "rand, no generator": lambda: torch.rand(3, generator=None),
    "rand, the global generator": lambda: torch.rand(3, generator=torch.default_generator),
    "poisson, the global generator": lambda: torch.poisson(x * 99, torch.default_generator),
    "rand on a device": lambda: torch.rand(3, device="cpu"),
    "normal of numbers": lambda: torch.normal(0.0, 1.0, (3,)),
    "normal by keywords": lambda: torch.normal(mean=x, std=x),
    "rand_like, double": lambda: torch.rand_like(x, dtype=torch.float64),
    "randint_like by keywords": lambda: torch.randint_like(x, low=5, high=10**6),
    "rand_like with a gradient": lambda: torch.rand_like(x, requires_grad=True).detach(),
    "bernoulli by keyword": lambda: torch.bernoulli(input=torch.full((60,), 0.5)),
    "a parameter's method": lambda: nn.Parameter(torch.empty(3)).data.uniform_(),
    "random_split": lambda: [
        subset.indices for subset in torch.utils.data.random_split(range(50), [20, 30])
    ],
    "RandomSampler": lambda: list(torch.utils.data.RandomSampler(range(50))),
    # The singular values: the vectors of nearly equal ones would make much of what is rounded.
    "svd_lowrank": lambda: torch.svd_lowrank(torch.diag(numbers(20)))[1],
    "a subclass": lambda: torch.Tensor._make_subclass(_Subclass, torch.empty(5)).uniform_().data,
    "under a vmap": lambda: torch.vmap(lambda row: row + torch.rand(3), randomness="different")(
        torch.zeros(4, 3)
    ),
    "apply_": lambda: torch.zeros(3).apply_(lambda _: torch.rand(1).item()),
    "map_": lambda: torch.zeros(3).map_(torch.zeros(3), lambda *_: torch.rand(1).item()),
    "a backward pass": lambda: _random_gradient(torch.Tensor.backward),
    "autograd.backward": lambda: _random_gradient(torch.autograd.backward),
    "autograd.grad": lambda: torch.autograd.grad(*_random_sum())[0],
    "with a default device": lambda: _with_default_device(),
}


class _RandomGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.rand_like(gradient)


def _random_sum() -> tuple[Tensor, Tensor]:
    weight = torch.ones(5, requires_grad=True)
    return _RandomGradient.apply(weight).sum(), weight


def _random_gradient(backward: Callable[[Tensor], None]) -> Tensor | None:
    total, weight = _random_sum()
    backward(total)
    return weight.grad


class _Subclass(Tensor):
    """Overrides torch functions, as torchvision's images do."""


def _with_default_device() -> Tensor:
    with torch.device("cpu"):
        return torch.rand(3)


@pytest.mark.parametrize("name", MORE)
def test_what_user_code_calls_follows(name: str) -> None:
    check(MORE[name])


INITS = [
    function
    for name, function in vars(nn.init).items()
    if isinstance(function, FunctionType)
    and name.endswith("_")
    and not name.startswith("_")
    and name not in ("constant_", "ones_", "zeros_", "eye_", "dirac_")
]


@pytest.mark.parametrize("function", INITS, ids=lambda function: function.__name__)
def test_an_initialisation_follows(function: Callable[..., Tensor]) -> None:
    more = (0.5,) if function.__name__ == "sparse_" else ()
    check(lambda: function(torch.empty(8, 8), *more))


def test_initialisations_are_there() -> None:
    assert {"uniform_", "normal_", "trunc_normal_", "orthogonal_", "sparse_"} <= {
        function.__name__ for function in INITS
    }


D = torch.distributions
HALF = torch.tensor([0.4, 0.6])
DISTRIBUTIONS: dict[str, Callable[[], Any]] = {
    "Bernoulli": lambda: D.Bernoulli(HALF),
    "Beta": lambda: D.Beta(HALF, HALF),
    "Binomial": lambda: D.Binomial(100, HALF),
    "Categorical": lambda: D.Categorical(torch.ones(100)),
    "Cauchy": lambda: D.Cauchy(HALF, HALF),
    "Chi2": lambda: D.Chi2(HALF),
    "ContinuousBernoulli": lambda: D.ContinuousBernoulli(HALF),
    "Dirichlet": lambda: D.Dirichlet(HALF),
    "Exponential": lambda: D.Exponential(HALF),
    "FisherSnedecor": lambda: D.FisherSnedecor(HALF, HALF),
    "Gamma": lambda: D.Gamma(HALF, HALF),
    "GeneralizedPareto": lambda: D.GeneralizedPareto(HALF, HALF, HALF),
    "Geometric": lambda: D.Geometric(HALF / 100),
    "Gumbel": lambda: D.Gumbel(HALF, HALF),
    "HalfCauchy": lambda: D.HalfCauchy(HALF),
    "HalfNormal": lambda: D.HalfNormal(HALF),
    "Independent": lambda: D.Independent(D.Normal(HALF, HALF), 1),
    "InverseGamma": lambda: D.InverseGamma(HALF, HALF),
    "Kumaraswamy": lambda: D.Kumaraswamy(HALF, HALF),
    "LKJCholesky": lambda: D.LKJCholesky(3, 0.5),
    "Laplace": lambda: D.Laplace(HALF, HALF),
    "LogNormal": lambda: D.LogNormal(HALF, HALF),
    "LogisticNormal": lambda: D.LogisticNormal(HALF, HALF),
    "LowRankMultivariateNormal": lambda: D.LowRankMultivariateNormal(HALF, torch.eye(2), HALF),
    "MixtureSameFamily": lambda: D.MixtureSameFamily(
        D.Categorical(torch.ones(2)), D.Normal(HALF, HALF)
    ),
    "Multinomial": lambda: D.Multinomial(100, torch.ones(9)),
    "MultivariateNormal": lambda: D.MultivariateNormal(HALF, torch.eye(2)),
    "NegativeBinomial": lambda: D.NegativeBinomial(100, HALF),
    "Normal": lambda: D.Normal(HALF, HALF),
    "OneHotCategorical": lambda: D.OneHotCategorical(torch.ones(100)),
    "OneHotCategoricalStraightThrough": lambda: D.OneHotCategoricalStraightThrough(torch.ones(99)),
    "Pareto": lambda: D.Pareto(HALF, HALF),
    "Poisson": lambda: D.Poisson(HALF * 1000),
    "RelaxedBernoulli": lambda: D.RelaxedBernoulli(HALF, HALF),
    "RelaxedOneHotCategorical": lambda: D.RelaxedOneHotCategorical(HALF[0], HALF),
    "StudentT": lambda: D.StudentT(HALF),
    "TransformedDistribution": lambda: D.TransformedDistribution(
        D.Normal(HALF, HALF), [D.ExpTransform()]
    ),
    "Uniform": lambda: D.Uniform(HALF - 1, HALF),
    "VonMises": lambda: D.VonMises(HALF, HALF),
    "Weibull": lambda: D.Weibull(HALF, HALF),
    "Wishart": lambda: D.Wishart(torch.tensor(3.0), torch.eye(2)),
}


def test_the_list_of_distributions_is_complete() -> None:
    families = {
        name
        for name in D.__all__
        if inspect.isclass(getattr(D, name))
        and issubclass(getattr(D, name), D.Distribution)
        and name not in ("Distribution", "ExponentialFamily")
    }
    assert families <= set(DISTRIBUTIONS)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_follows(name: str) -> None:
    if not hasattr(D, name):
        pytest.skip(f"this torch has no {name}")
    distribution = DISTRIBUTIONS[name]()
    draw = distribution.rsample if distribution.has_rsample else distribution.sample
    check(lambda: draw((2,)))


# The same numbers as torch's own ------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.dropout(x, 0.3),
        lambda: F.dropout(x.clone(), 0.3, inplace=True),
        lambda: F.dropout2d(numbers(2, 20, 3, 3), 0.3),
        lambda: F.alpha_dropout(x, 0.3, training=True),
        lambda: F.feature_alpha_dropout(numbers(2, 20, 3), 0.3, training=True),
        lambda: torch.native_dropout(x, 0.3, True),
        lambda: torch.native_dropout(x, 1.0, True),
        lambda: torch.rand_like(x),
        lambda: torch.randn_like(numbers(7, 7)),
        lambda: torch.randint_like(x, 100),
        lambda: torch.randint_like(x, 50, 100),
        lambda: F.gumbel_softmax(x),
        lambda: F.rrelu(-x, training=True),
        lambda: F.fractional_max_pool2d(image, 2, output_size=17),
        lambda: D.Beta(HALF, HALF).sample(),
        lambda: nn.init.trunc_normal_(torch.empty(9)),
        lambda: F.scaled_dot_product_attention(image, image, image, dropout_p=0.3),
        lambda: F.scaled_dot_product_attention(
            image, image, image, attn_mask=image > 0.4, dropout_p=0.3
        ),
    ],
)
def test_a_seed_gives_the_numbers_that_torch_gives(call: Callable[[], Any]) -> None:
    def seeded() -> Any:
        torch.manual_seed(5)
        return call()

    ours = as_sample(seeded)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        torchs = call()
    torch.testing.assert_close(ours, torchs)


def test_dropout_that_drops_nothing_or_everything_is_torchs() -> None:
    def work() -> Any:
        return plain(
            [
                F.dropout(x, training=False),
                F.dropout(x, 0.0),
                F.dropout(x, 1.0),
                F.dropout(torch.empty(0)),
                F.scaled_dot_product_attention(image, image, image),
            ]
        )

    assert as_sample(work) == work()
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            as_sample(lambda wrong=wrong: F.dropout(x, wrong))
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            as_sample(lambda wrong=wrong: torch.dropout(x, wrong, True))


def test_gradients_pass_through_dropout() -> None:
    def work() -> Any:
        weight = torch.ones(50, requires_grad=True)
        dropped = F.dropout(weight, 0.5)
        dropped.sum().backward()
        return dropped.detach(), weight.grad

    dropped, gradient = as_sample(work)
    assert torch.equal(dropped, gradient)
    assert set(dropped.tolist()) == {0.0, 2.0}


# Generators of the user's own ---------------------------------------------------------------------


def test_an_explicit_generator_is_respected() -> None:
    calls: list[Callable[[torch.Generator], Tensor]] = [
        lambda g: torch.rand(3, generator=g),
        lambda g: torch.empty(3).normal_(generator=g),
        lambda g: torch.poisson(x * 99, g),
        lambda g: torch.poisson(x * 99, generator=g),
        lambda g: torch.multinomial(x, 3, True, generator=g),
        lambda g: nn.init.uniform_(torch.empty(3), generator=g),
        lambda g: torch.ops.aten.rand([3], generator=g),
        lambda g: torch.ops.aten.binomial.default(x * 99 // 1, x, g),
    ]
    for call in calls:
        found = as_sample(lambda call=call: call(torch.Generator().manual_seed(3)))
        assert torch.equal(found, call(torch.Generator().manual_seed(3)))


def test_meta_tensors_need_no_generator() -> None:
    # Drawing them would import triton, and that turns the GIL on.
    assert new_streams().torch.generator(torch.device("meta")) is None


# What draws from the global generator all the same ------------------------------------------------


@pytest.fixture
def unwarned() -> Iterator[None]:
    torch_hooks._warned.clear()
    yield
    torch_hooks._warned.clear()


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_with_dropout_warns_once(kind: Any) -> None:
    def work(**options: Any) -> Callable[[], None]:
        def run() -> None:
            for _ in range(2):
                kind(3, 3, num_layers=2, **options)(numbers(5, 1, 3))

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_sample(work(dropout=0.0))
    packed = nn.utils.rnn.pack_sequence([numbers(5, 3), numbers(4, 3)])
    with torch.random.fork_rng(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        as_sample(work(dropout=0.5))
        as_sample(lambda: kind(3, 3, num_layers=2, dropout=0.5)(packed))
    assert [warning.category for warning in caught] == [RandomStateWarning]


@pytest.mark.parametrize("name", [*torch_names.INTERNAL, *torch_names.RECURRENT])
def test_an_internal_operator_warns_where_it_drops(name: str) -> None:
    """Most run on accelerators only, so what is looked at is what decides before they are run."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        pytest.skip("not in this torch")
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        schema = [argument.name for argument in overload._schema.arguments]
        assert {"dropout", "dropout_p"} & set(schema), f"{overload} has no dropout argument"
        for probability in (0.0, 0.5):
            known = {"dropout": probability, "dropout_p": probability, "has_biases": True}
            known |= {"train": True, "num_layers": 2}
            values = [known.get(name, 1) for name in schema]
            assert torch_hooks._drops(overload, name, tuple(values), {}) == (probability > 0)
            by_keyword = dict(zip(schema, values, strict=True))
            assert torch_hooks._drops(overload, name, (), by_keyword) == (probability > 0)
