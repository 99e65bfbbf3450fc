"""torch's seed and state functions: a worker's affect the sample's stream alone."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from minato_async.seeding import torch_random
from minato_async.seeding.current import current
from minato_async.seeding.rebinding import redirect
from minato_async.seeding.torch_random import TorchStream
from tests.seeding.support import as_sample, global_state, new_streams, plain, python


@pytest.fixture(autouse=True)
def global_generators_are_not_touched() -> Iterator[None]:
    before = global_state(), torch.initial_seed()
    yield
    assert (global_state(), torch.initial_seed()) == before


def test_manual_seed_gives_what_it_gives_everywhere() -> None:
    def work() -> Any:
        torch.rand(3)
        generator = torch.manual_seed(7)
        return plain([torch.rand(3), torch.randn(3), generator.initial_seed()])

    generator = torch.Generator().manual_seed(7)
    expected = [torch.rand(3, generator=generator), torch.randn(3, generator=generator), 7]
    assert as_sample(work) == plain(expected)


@pytest.mark.parametrize("seed", [-1, "5", 2.7])
def test_manual_seed_takes_what_torch_takes(seed: Any) -> None:
    expected = torch.Generator().manual_seed(int(seed)).initial_seed()
    assert as_sample(lambda: torch.manual_seed(seed).initial_seed()) == expected


def test_manual_seed_refuses_what_torch_refuses() -> None:
    for wrong in (2**64, "a", None):
        with pytest.raises((RuntimeError, ValueError, TypeError)) as ours:
            as_sample(lambda wrong=wrong: torch.manual_seed(wrong))
        with pytest.raises(ours.type):
            torch.Generator().manual_seed(int(wrong))


def test_a_seed_does_not_outlive_its_sample() -> None:
    with new_streams().active() as streams:
        streams.ticket = 2
        torch.manual_seed(0)
        torch.randn(1)
        streams.ticket = 1
        assert torch.randn(1).item() == as_sample(lambda: torch.randn(1).item())


def test_a_sample_can_save_and_restore_its_state() -> None:
    def work() -> Any:
        torch.randn(1)
        state = torch.get_rng_state()
        first = torch.randn(3)
        torch.manual_seed(0)
        torch.set_rng_state(state)
        return plain(first), plain(torch.randn(3))

    first, second = as_sample(work)
    assert first == second


def test_fork_rng_forks_the_samples_stream() -> None:
    def forked() -> Any:
        first = torch.rand(1).item()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            torch.rand(5)
        return first, torch.rand(1).item()

    assert as_sample(forked) == as_sample(lambda: (torch.rand(1).item(), torch.rand(1).item()))


def test_initial_seed_is_what_the_loader_seeded_with() -> None:
    """But for its highest bit: as in torch's workers, a tensor can hold it."""
    with new_streams().active() as streams:
        streams.begin(lambda _: 2**63 + 2**62 + 5)
        streams.ticket = 1
        assert torch.initial_seed() == 2**62 + 5
        assert torch.random.initial_seed() == torch.tensor(torch.initial_seed())


def test_seed_takes_new_entropy() -> None:
    def work() -> Any:
        seed = torch.seed()
        return seed, torch.initial_seed(), torch.rand(1).item()

    one, other = as_sample(work), as_sample(work)
    assert one[0] == one[1] != other[0]
    assert one[2] != other[2]


def test_checkpointing_preserves_the_samples_state() -> None:
    """In a process of its own, for it imports triton, which turns the GIL on."""
    found = python(
        """
        import torch
        from torch.utils.checkpoint import checkpoint
        from tests.seeding.support import as_sample, global_state

        def work():
            x = torch.ones(20, requires_grad=True)
            y = checkpoint(torch.nn.functional.dropout, x, 0.5, use_reentrant=False)
            y.sum().backward()
            return y.detach(), x.grad

        before = global_state()
        y, gradient = as_sample(work)
        assert torch.equal(y, gradient)
        assert global_state() == before
        print("preserved")
        """,
        "-Xgil=0",
    )
    assert found == "preserved\n"


# The functions themselves -------------------------------------------------------------------------


def test_every_seed_and_state_function_is_redirected() -> None:
    names = {"get_rng_state", "set_rng_state", "manual_seed", "seed", "initial_seed"}
    redirected = {id(function) for function, _ in torch_random.state_functions()}
    for module in (torch, torch.random, torch.cuda, torch.cuda.random, torch.xpu, torch.mps):
        for name in names | {f"{name}_all" for name in names}:
            function = getattr(module, name, None)
            # Those for all devices that are not redirected call those that are.
            if function is not None and not name.endswith("state_all"):
                # torch._dynamo puts a wrapper in the place of one.
                wrapped = getattr(function, "__wrapped__", None)
                assert {id(function), id(wrapped)} & redirected, (module, name)
    known = {"fork_rng", "thread_safe_generator"} | names
    assert set(torch.random.__all__) <= known


def test_names_documentation_and_signatures_are_as_before() -> None:
    for function, _ in torch_random.state_functions():
        assert function.__doc__ == function.__wrapped__.__doc__  # type: ignore[attr-defined]
        assert function.__module__.startswith("torch.")
    assert list(inspect.signature(torch.manual_seed).parameters) == ["seed"]
    assert list(inspect.signature(torch.cuda.get_rng_state).parameters) == ["device"]
    assert inspect.signature(torch.cuda.get_rng_state).parameters["device"].default == "cuda"


def test_a_redirected_function_behaves_as_before_in_every_way_of_calling() -> None:
    def function(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> Any:
        """The documentation."""
        return a, b, rest, c, more

    calls: list[Callable[[], Any]] = [
        lambda: function(1),
        lambda: function(1, 5, 6, c=7, d=8),
        lambda: function(a=1, b=3),
    ]
    before = [call() for call in calls]
    seen: list[Any] = []

    def make(original: types.FunctionType) -> Callable[..., Any]:
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            seen.append((args, kwargs))
            return original(*args, **kwargs)

        return dispatch

    signature = inspect.signature(function)
    redirect(function, make)  # type: ignore[arg-type]
    assert [call() for call in calls] == before
    assert len(seen) == 3
    assert inspect.signature(function) == signature
    assert function.__doc__ == "The documentation."
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        function()  # type: ignore[call-arg]


def test_a_closure_cannot_be_redirected() -> None:
    kept = 1

    def function() -> int:
        return kept

    with pytest.raises(TypeError, match="closure"):
        redirect(function, lambda original: original)  # type: ignore[arg-type]


# Other devices ------------------------------------------------------------------------------------


@pytest.fixture
def fake_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's part is played by the CPU: only what chooses the generator can be tried without."""
    create = torch.Generator

    def generator(device: Any = "cpu") -> torch.Generator:
        return create()

    monkeypatch.setattr(torch, "Generator", generator)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.usefixtures("fake_device")
def test_each_device_has_a_generator_seeded_from_the_sample() -> None:
    cuda, cuda0 = torch.device("cuda"), torch.device("cuda", 0)
    with new_streams().active() as streams:
        stream = streams.torch
        streams.ticket = 1
        first = stream.generator(cuda)
        assert isinstance(first, torch._C.Generator)
        assert stream.generator(torch.device("cuda", 1)) is first
        assert stream.generator(cuda0) is not first
        assert first.initial_seed() == torch.initial_seed()
        value, saved_seed = torch.rand(3, generator=first), first.initial_seed()
        state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state, cuda)
        following = torch.rand(3, generator=first)
        saved = streams.detach()
        streams.ticket = 2
        assert not torch.equal(torch.rand(3, generator=stream.generator(cuda)), value)
        streams.ticket = 1
        streams.attach(saved)
        torch.cuda.set_rng_state(state)
        assert torch.equal(torch.rand(3, generator=stream.generator(cuda)), following)
        for seed in (torch.manual_seed, torch.cuda.manual_seed, torch.cuda.manual_seed_all):
            seed(5)
            assert torch.cuda.initial_seed() == 5
        torch.cuda.seed_all()
        assert torch.cuda.initial_seed() != 5
        # What ran before on the thread does not matter here either.
        streams.ticket = 2
        torch.rand(1, generator=stream.generator(cuda))
        streams.ticket = 3
        streams.begin(lambda _: saved_seed)
        assert torch.equal(torch.rand(3, generator=stream.generator(cuda)), value)


def test_seeding_cuda_from_a_sample_is_not_queued_for_cuda() -> None:
    """torch remembers seeds for when CUDA starts, which would be the training thread's."""
    queued = len(torch.cuda._queued_calls)
    seeds = len(torch.cuda._lazy_seed_tracker.get_calls())
    as_sample(lambda: [torch.manual_seed(1), torch.cuda.manual_seed_all(2)])
    assert len(torch.cuda._queued_calls) == queued
    assert len(torch.cuda._lazy_seed_tracker.get_calls()) == seeds


def test_thread_safe_generator_has_what_it_needs() -> None:
    """It looks at the worker's info, which the loader makes; here that part is played."""
    from torch.utils.data._utils import worker

    def work() -> Any:
        streams = current.streams
        assert streams is not None
        rng = streams.worker_rng
        fields = worker._RNG.__dataclass_fields__  # type: ignore[attr-defined]
        for name in fields:
            assert hasattr(rng, name)
        assert isinstance(rng.torch_generator, torch.Generator)
        return torch.randint(0, 1000, (5,), generator=rng.torch_generator).tolist()

    if not hasattr(torch.random, "thread_safe_generator"):
        pytest.skip("this torch has none")
    assert as_sample(work) == as_sample(lambda: torch.randint(0, 1000, (5,)).tolist())


def test_the_stream_is_one_threads_own() -> None:
    assert isinstance(new_streams().torch, TorchStream)
    assert new_streams().torch.own is not new_streams().torch.own
