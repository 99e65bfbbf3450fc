"""The package imported a second time, as notebooks and the isolation of tests do."""

from __future__ import annotations

from tests.seeding.support import python

_AGAIN = """
    import sys, random, inspect
    import numpy as np, torch
    from torch.utils.data import default_collate, get_worker_info

    def fresh():
        for name in [name for name in sys.modules if name.split(".")[0] == "minato_async"]:
            del sys.modules[name]
        import minato_async
        import minato_async.seeding
        minato_async.seeding.install()
        return minato_async

    #: One of each kind that is replaced, with the global generators and on a thread with streams.
    def depths():
        found = {}
        calls = {
            "torch.rand": lambda: torch.rand(1),
            "Tensor.uniform_": lambda: torch.empty(1).uniform_(),
            "torch.ops": lambda: torch.ops.aten.rand([1]),
            "torch.initial_seed": lambda: torch.initial_seed(),
            "random": lambda: random.random(),
            "random.uniform": lambda: random.uniform(0, 1),
            "np.random.rand": lambda: np.random.rand(3),
            "np.random.random": lambda: np.random.random(),
            "np.random.default_rng": lambda: np.random.default_rng(1),
            "get_worker_info": lambda: get_worker_info(),
            "default_collate": lambda: default_collate([torch.zeros(1)]),
        }
        for name, call in calls.items():
            entered = []
            sys.setprofile(lambda frame, event, arg: entered.append(event == "call"))
            try:
                call()
            finally:
                sys.setprofile(None)
            found[name] = sum(entered)
        return found
"""


def test_nothing_nests() -> None:
    """Functions that are replaced call what there was before this package, however often it is
    imported."""
    found = python(
        f"""{_AGAIN}
    fresh()
    depths()  # what is only done at a first call
    first = depths()
    for _ in range(3):
        fresh()
        assert depths() == first, (first, depths())
    print("works on")
    """
    )
    assert found == "works on\n"


def test_loaders_of_either_import_give_the_same_samples() -> None:
    found = python(
        f"""{_AGAIN}
    class Draws(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            info = get_worker_info()
            assert info is not None and info.num_workers == 2
            return [random.random(), np.random.rand(), np.random.rand(2).sum(), torch.rand(1),
                    torch.empty(1).uniform_(), torch.initial_seed() % 1000]

    def samples(package):
        loader = package.MinatoLoader(Draws(), num_workers=2, seed=5, executor="thread")
        return loader

    def values(loader_or_iterator):
        return [[float(part) for part in batch] for batch in loader_or_iterator]

    old = samples(fresh())
    begun = iter(old)
    first = next(begun)
    new = samples(fresh())
    seen = values(new)
    found = [[float(part) for part in first], *values(begun)]
    assert found == seen, (found, seen)
    old._epochs = 0
    assert values(old) == seen
    state = random.getstate(), np.random.get_state()[1].tolist()
    values(new)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state
    print("same")
    """
    )
    assert found == "same\n"
