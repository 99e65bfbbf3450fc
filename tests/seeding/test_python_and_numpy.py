"""`random` and `numpy.random`: every function follows on a worker, and is as before elsewhere."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.seeding import early_bound
from tests.seeding.support import as_sample, global_state, new_streams, on_thread, plain, python

RANDOM_CALLS: dict[str, Callable[[], Any]] = {
    "betavariate": lambda: random.betavariate(1, 2),
    "choice": lambda: random.choice(range(1000)),
    "choices": lambda: random.choices(range(1000), k=3),
    "expovariate": lambda: random.expovariate(1),
    "gammavariate": lambda: random.gammavariate(1.5, 2),
    "gauss": lambda: random.gauss(0, 1),
    "getrandbits": lambda: random.getrandbits(100),
    "getstate": lambda: random.getstate(),
    "lognormvariate": lambda: random.lognormvariate(0, 1),
    "normalvariate": lambda: random.normalvariate(0, 1),
    "paretovariate": lambda: random.paretovariate(1),
    "randbytes": lambda: random.randbytes(5),
    "randint": lambda: random.randint(0, 10**9),
    "random": lambda: random.random(),
    "randrange": lambda: random.randrange(0, 10**9, 3),
    "sample": lambda: random.sample(range(1000), 3),
    "shuffle": lambda: _shuffled(),
    "triangular": lambda: random.triangular(),
    "uniform": lambda: random.uniform(0, 5),
    "vonmisesvariate": lambda: random.vonmisesvariate(0, 1),
    "weibullvariate": lambda: random.weibullvariate(1, 1),
}
if hasattr(random, "binomialvariate"):
    RANDOM_CALLS["binomialvariate"] = lambda: random.binomialvariate(1000, 0.5)
#: They draw nothing by themselves.
RANDOM_OTHERS = {"seed", "setstate", "Random", "SystemRandom", "main"}


def _shuffled() -> list[int]:
    numbers = list(range(20))
    random.shuffle(numbers)
    return numbers


def test_the_list_of_functions_of_random_is_complete() -> None:
    public = {name for name in random.__all__ if callable(getattr(random, name))}
    assert public - RANDOM_OTHERS <= set(RANDOM_CALLS)


@pytest.mark.parametrize("name", RANDOM_CALLS)
def test_random_follows_the_sample(name: str) -> None:
    before = global_state()
    call = RANDOM_CALLS[name]
    values = [as_sample(lambda: [call(), call()], after=after) for after in (0, 2)]
    assert values[0] == values[1] != as_sample(lambda: [call(), call()], 2)
    assert global_state() == before


_ARRAY = np.arange(10)
NUMPY_CALLS: dict[str, tuple[Any, ...]] = {
    "beta": (1, 2, 5),
    "binomial": (100, 0.5, 5),
    "bytes": (10,),
    "chisquare": (2, 5),
    "choice": (1000, 5),
    "dirichlet": ([1, 2, 3],),
    "exponential": (1, 5),
    "f": (2, 3, 5),
    "gamma": (1, 1, 5),
    "geometric": (0.01, 5),
    "gumbel": (0, 1, 5),
    "hypergeometric": (1000, 1000, 100, 5),
    "laplace": (0, 1, 5),
    "logistic": (0, 1, 5),
    "lognormal": (0, 1, 5),
    "logseries": (0.9, 50),
    "multinomial": (100, [0.2, 0.8], 5),
    "multivariate_normal": ([0, 0], [[1, 0], [0, 1]]),
    "negative_binomial": (10, 0.1, 5),
    "noncentral_chisquare": (1, 1, 5),
    "noncentral_f": (2, 3, 1, 5),
    "normal": (0, 1, 5),
    "pareto": (1, 5),
    "permutation": (20,),
    "poisson": (100, 5),
    "power": (1, 5),
    "rand": (3,),
    "randint": (0, 10**6, 5),
    "randn": (3,),
    "random": (3,),
    "random_integers": (0, 10**6, 5),
    "random_sample": (3,),
    "ranf": (3,),
    "rayleigh": (1, 5),
    "sample": (3,),
    "standard_cauchy": (5,),
    "standard_exponential": (5,),
    "standard_gamma": (1, 5),
    "standard_normal": (5,),
    "standard_t": (2, 5),
    "triangular": (0, 1, 2, 5),
    "uniform": (0, 1, 5),
    "vonmises": (0, 1, 5),
    "wald": (1, 1, 5),
    "weibull": (1, 5),
    "zipf": (1.1, 50),
    "get_state": (),
}
NUMPY_OTHERS = {"seed", "set_state", "shuffle", "default_rng", "get_bit_generator"} | {
    "set_bit_generator",
    "test",
}


def test_the_list_of_functions_of_numpy_is_complete() -> None:
    public = {
        name
        for name in dir(np.random)
        if not name.startswith("_")
        and callable(getattr(np.random, name))
        and not inspect.isclass(getattr(np.random, name))
    }
    assert public - NUMPY_OTHERS == set(NUMPY_CALLS)


@pytest.mark.parametrize("name", NUMPY_CALLS)
@pytest.mark.filterwarnings("ignore:This function is deprecated:DeprecationWarning")
def test_numpy_follows_the_sample(name: str) -> None:
    before = global_state()

    def call() -> Any:
        function, arguments = getattr(np.random, name), NUMPY_CALLS[name]
        return plain([function(*arguments), function(*arguments)])

    assert as_sample(call, after=2) == as_sample(call) != as_sample(call, 2)
    assert global_state() == before


def test_numpy_shuffles_in_place() -> None:
    def call() -> list[int]:
        numbers = list(range(20))
        np.random.shuffle(numbers)
        return numbers

    assert as_sample(call, after=2) == as_sample(call) != as_sample(call, 2)


def test_numpys_hidden_object_follows() -> None:
    """scipy and scikit-learn take it when they are given no seed."""

    def call() -> float:
        hidden: Any = np.random.mtrand._rand
        assert isinstance(hidden, np.random.RandomState)
        return float(hidden.uniform())

    assert as_sample(call) == as_sample(np.random.uniform)


def test_default_rng_without_a_seed_is_seeded_from_the_sample() -> None:
    def call() -> Any:
        return np.random.default_rng().random(), np.random.default_rng().random()

    first, second = as_sample(call, after=2)
    assert (first, second) == as_sample(call) != as_sample(call, 2)
    assert first != second
    assert as_sample(lambda: np.random.default_rng(3).random()) == np.random.default_rng(3).random()
    assert np.random.default_rng().random() != np.random.default_rng().random()


# Seeds and states ---------------------------------------------------------------------------------


def test_a_seed_set_by_a_sample_gives_what_it_gives_everywhere() -> None:
    def work() -> Any:
        random.random()
        random.seed(5)
        np.random.seed(6)
        return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]

    expected_random, expected_numpy = random.Random(5), np.random.RandomState(6)
    before = global_state()
    assert as_sample(work) == [
        expected_random.random(),
        expected_random.gauss(0, 1),
        expected_numpy.rand(),
        expected_numpy.randn(),
    ]
    assert global_state() == before


def test_a_seed_does_not_outlive_its_sample() -> None:
    def work() -> Any:
        return random.random(), random.gauss(0, 1), np.random.randn()

    def seeded() -> None:
        random.seed(1)
        random.gauss(0, 1)
        np.random.seed(1)
        np.random.randn()

    with new_streams().active() as streams:
        streams.ticket = 2
        seeded()
        streams.ticket = 1
        found = work()
    assert found == as_sample(work)


@pytest.mark.parametrize("draws", [0, 1, 8, 9])
def test_a_sample_can_save_and_restore_its_state(draws: int) -> None:
    def work() -> Any:
        for _ in range(draws):
            random.random()
        random.gauss(0, 1)
        np.random.randn()
        states = random.getstate(), np.random.get_state()
        first = random.random(), random.gauss(0, 1), np.random.randn()
        random.seed(0)
        np.random.seed(0)
        random.setstate(states[0])
        np.random.set_state(states[1])
        return first, (random.random(), random.gauss(0, 1), np.random.randn())

    before = global_state()
    first, second = as_sample(work)
    assert first == second
    assert global_state() == before


def test_a_state_saved_in_a_sample_fits_generators_of_the_users_own() -> None:
    def work() -> Any:
        generator, numpys = random.Random(), np.random.RandomState()
        generator.setstate(random.getstate())
        numpys.set_state(np.random.get_state())
        return (generator.random(), numpys.rand()), (random.random(), np.random.rand())

    own, streams = as_sample(work)
    assert own == streams


def test_seeding_without_a_number_takes_new_entropy() -> None:
    def work() -> Any:
        random.seed()
        np.random.seed()
        return random.random(), np.random.rand()

    before = global_state()
    one, other = as_sample(work), as_sample(work)
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert global_state() == before


def test_a_bit_generator_set_by_a_sample_is_its_own() -> None:
    def work() -> Any:
        np.random.set_bit_generator(np.random.PCG64(3))
        return np.random.rand(), type(np.random.get_bit_generator()).__name__

    before = global_state()
    expected = np.random.RandomState(np.random.PCG64(3)).rand()
    assert as_sample(work) == (expected, "PCG64")
    with new_streams().active() as streams:
        streams.ticket = 2
        work()
        streams.ticket = 1
        following = np.random.rand()
    assert following == as_sample(np.random.rand)
    assert as_sample(np.random.rand) == as_sample(np.random.rand, after=1)
    assert global_state() == before


# As before elsewhere ------------------------------------------------------------------------------


def test_generators_of_the_users_own_are_left_alone() -> None:
    def work() -> Any:
        return random.Random(3).random(), np.random.RandomState(3).rand()

    assert as_sample(work) == work()


def test_names_and_documentation_are_as_before() -> None:
    for name in ("random", "getrandbits", "seed", "getstate", "setstate"):
        assert getattr(random, name).__doc__ == getattr(random.Random, name).__doc__
        assert getattr(random, name).__name__ == name
    for name in set(NUMPY_CALLS) - {"ranf", "sample"}:
        assert getattr(np.random, name).__doc__ == getattr(np.random.RandomState, name).__doc__
    assert inspect.signature(random.seed) == inspect.signature(random.Random().seed)


def test_copies_are_plain_generators_in_the_same_state() -> None:
    for hidden in (random._inst, np.random.mtrand._rand):  # type: ignore[attr-defined]
        for copied in (copy.deepcopy(hidden), pickle.loads(pickle.dumps(hidden))):
            assert type(copied) in (random.Random, np.random.RandomState)
            assert as_sample(copied.random) == copied.__class__.random(copy.deepcopy(hidden))
    assert pickle.loads(pickle.dumps(random.random))() == copy.deepcopy(random._inst).random()  # type: ignore[attr-defined]


SCRIPT = """
    import random, hashlib, pickle, numpy as np, torch
    {install}
    def digest(value):
        return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
    random.seed(1); np.random.seed(2); torch.manual_seed(3)
    out = []
    for _ in range(3):
        out.append([random.random(), random.gauss(0, 1), random.getrandbits(70),
            random.randint(0, 9), random.shuffle(list(range(9))),
            random.randbytes(3), random.sample(range(50), 4)])
        out.append([np.random.rand(2), np.random.randn(3), np.random.randint(0, 9, 4),
            np.random.permutation(7), np.random.choice(9, 3), np.random.normal(size=3),
            np.random.sample(2), np.random.ranf(2), np.random.bytes(4)])
        out.append([torch.rand(2), torch.randn(3), torch.empty(2).uniform_(), torch.initial_seed()])
        state = random.getstate(), np.random.get_state(), torch.get_rng_state()
        out.append([digest(part) for part in state])
        out.append([random.random(), np.random.rand(), torch.rand(1)])
        random.setstate(state[0]); np.random.set_state(state[1]); torch.set_rng_state(state[2])
    with torch.random.fork_rng():
        out.append(torch.rand(1))
    np.random.set_bit_generator(np.random.PCG64(3))
    out.append([np.random.rand(), np.random.normal(), type(np.random.get_bit_generator())])
    out.append([random.Random(4).random(), torch.rand(1)])
    for value in out: print(repr(value))
"""


def test_without_streams_everything_is_bit_for_bit_as_without_the_package() -> None:
    without = python(SCRIPT.format(install=""))
    installed = "from minato_async.seeding import install; install()"
    assert python(SCRIPT.format(install=installed)) == without


def test_names_bound_before_the_dispatch_was_there_follow() -> None:
    """A fresh interpreter imports this module before anything of the package."""
    found = python(
        """
        from tests.seeding import early_bound
        import sys
        assert "minato_async" not in sys.modules
        from tests.seeding.support import as_sample, global_state
        before = global_state()
        assert as_sample(early_bound.draw) == as_sample(early_bound.draw, after=2)
        assert as_sample(early_bound.draw) != as_sample(early_bound.draw, 2)
        as_sample(early_bound.seed_all)
        assert global_state() == before
        print("followed")
        """
    )
    assert found == "followed\n"
    assert on_thread(early_bound.draw)


def test_what_stands_among_the_modules_is_not_woken() -> None:
    """A lazy module imports itself when it is asked for anything, and some are no modules."""
    found = python(
        """
        import importlib.util
        import sys
        from random import random
        from minato_async.seeding import install

        spec = importlib.util.find_spec("this")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        lazy = sys.modules["this"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(lazy)
        sys.modules["settings"] = type("Settings", (), {})()
        early = [random]
        install()
        assert random is not early[0]
        print("awake" if type(lazy) is type(sys) else "asleep")
        """
    )
    assert found == "asleep\n"


def test_without_numpy_the_rest_works() -> None:
    script = """
        import sys
        sys.modules["numpy"] = None  # importing it raises ImportError
        import warnings; warnings.simplefilter("ignore")
        import random, torch, types
        # The package itself needs numpy, this part of it does not.
        package = sys.modules["minato_async"] = types.ModuleType("minato_async")
        package.__path__ = ["minato_async"]
        from minato_async.seeding import SampleStreams, install
        install()
        streams = SampleStreams()
        values = []
        for _ in range(2):
            streams.begin(lambda ticket: ticket)
            with streams.active():
                streams.ticket = 1
                values.append((random.random(), torch.rand(1).item()))
                state = streams.detach()
                streams.attach(state)
                values.append((random.random(), torch.rand(1).item()))
                assert streams.worker_rng.numpy_generator is None
        assert values[:2] == values[2:]
    """
    python(script)
