"""Code compiled by `torch.compile` in samples: right numbers, on every executor.

In processes of their own, for compiling imports triton, which turns the GIL on.
"""

from __future__ import annotations

from tests.seeding.support import python

_DATA = """
    import warnings
    warnings.simplefilter("ignore")
    import torch
    from torch.utils.data import Dataset
    import torch.nn.functional as F
"""


def test_a_compiled_transform_gives_what_it_gives_uncompiled() -> None:
    """With lengths that vary, so that it is compiled anew in the midst of an epoch."""
    found = python(
        f"""{_DATA}
    from minato_async import MinatoLoader

    def transform(x):
        return torch.sin(x) * 2 + x.mean() + x.shape[0]

    class Lengths(Dataset):
        def __init__(self, function):
            self.function = function
        def __len__(self):
            return 12
        def __getitem__(self, index):
            return self.function(torch.full((5 + index % 4,), float(index))).sum()

    wanted = torch.stack([Lengths(transform)[index] for index in range(12)])
    for executor, workers in (("thread", 2), ("thread", 0), ("process", 2)):
        for dynamic in (None, True):
            torch._dynamo.reset()
            compiled = torch.compile(transform, backend="eager", dynamic=dynamic, fullgraph=True)
            loader = MinatoLoader(Lengths(compiled), batch_size=4, num_workers=workers, seed=1,
                                  executor=executor)
            torch.testing.assert_close(torch.cat(list(loader)), wanted)
    print("right")
    """,
        "-Xgil=0",
    )
    assert found == "right\n"


def test_compiled_draws_follow_and_keep_to_their_thread() -> None:
    """With backends that call torch's operators one by one. A graph that was traced in a sample
    must not have the generator of that sample's thread in it."""
    found = python(
        f"""{_DATA}
    from torch.fx.experimental.proxy_tensor import make_fx
    from tests.seeding.support import as_sample, global_state

    traced = make_fx(lambda x: torch.rand(3) + x.clone().uniform_())
    graph = as_sample(lambda: traced(torch.zeros(3)))
    assert not any(node.kwargs.get("generator") for node in graph.graph.nodes)

    gradient = torch.func.grad(lambda x: (x * torch.rand(3)).sum())
    plainly = as_sample(lambda: torch.rand(3))
    assert torch.equal(as_sample(lambda: gradient(torch.zeros(3))), plainly)

    def draws(x):
        drawn = torch.rand(3).sum() + torch.rand_like(x).sum() + x.clone().normal_().sum()
        dropped = F.dropout(x).sum() + torch.bernoulli(x.abs()).sum()
        return drawn + dropped + torch.randint(0, 9, (3,)).sum()

    def by_class(x):
        return torch.Tensor.normal_(x.clone()).sum()

    def by_operator(x):
        kept = torch.ops.aten.bernoulli_.float(x.clone(), 0.5)
        return torch.ops.aten.rand([3]).sum() + kept.sum()

    for backend in ("eager", "aot_eager"):
        for function in (draws, by_class, by_operator):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)

            def work():
                return [float(compiled(torch.full((size, size), 0.3))) for size in (3, 4, 5)]

            before = global_state()
            first = as_sample(work)
            assert as_sample(work) == as_sample(work, after=2) == first != as_sample(work, 2)
            assert global_state() == before
            torch._dynamo.reset()
            work()
            assert as_sample(work) == first
    print("followed")
    """,
        "-Xgil=0",
    )
    assert found == "followed\n"
