"""Samples that are views, or refer to much more than they are: what of them travels."""

from __future__ import annotations

import copyreg
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minato_async.executors.process.transport.own_blocks import OwnBlocks
from minato_async.executors.process.transport.packing import TooDear, pack
from minato_async.executors.process.transport.shared_memory import SharedMemory
from minato_async.executors.process.travel import Travel
from tests.processes.support import Made, pause, processes

#: A tensor that all are views of: 16 MB.
LARGE = torch.arange(4 << 20, dtype=torch.float32).view(4, 1024, 1024)
ARRAY = LARGE.numpy()
#: Bytes that may come with each, for its class and its attributes.
MORE = 4096


class Image(torch.Tensor):
    """A subclass with nothing of its own."""


class Masked(torch.Tensor):
    """One with state of its own, and pickled in a way of its own."""

    mask: torch.Tensor

    def __reduce_ex__(self, protocol: Any) -> Any:
        function, args = super().__reduce_ex__(protocol)
        return remade, (function, args, self.mask)


def remade(function: Callable[..., Any], args: tuple[Any, ...], mask: torch.Tensor) -> Any:
    made = function(*args)
    made.mask = mask
    return made


class Registered(torch.Tensor):
    """One whose way to be pickled is registered."""


def as_registered(data: torch.Tensor) -> Registered:
    return data.as_subclass(Registered)


@dataclass
class Record:
    image: torch.Tensor
    more: dict[str, Any]


def named(view: torch.Tensor) -> torch.Tensor:
    view = view.as_subclass(torch.Tensor)
    view.__dict__["path"] = "a.png"
    view.__dict__["thumbnail"] = LARGE[1, 0, :8]
    return view


def quantized() -> torch.Tensor:
    whole = torch.quantize_per_tensor(LARGE[0], 0.5, 10, torch.quint8)
    return whole[3:5, 8:80]


VIEWS: dict[str, Callable[[], Any]] = {
    "rows": lambda: LARGE[1, 10:13],
    "columns": lambda: LARGE[1, 10:200, 5:9],
    "every second": lambda: LARGE[:, ::512, ::2],
    "transposed": lambda: LARGE[2, :50, :60].T,
    "small": lambda: LARGE[1, 5, 6:9],
    "scalar": lambda: LARGE[1, 5, 6],
    "empty": lambda: LARGE[1, 5, 6:6],
    "subclass": lambda: LARGE[1, 10:13].as_subclass(Image),
    "columns of a subclass": lambda: LARGE[1, 10:200, 5:9].as_subclass(Image),
    "small one of a subclass": lambda: LARGE[1, 5, 6:9].as_subclass(Image),
    "attributes": lambda: named(LARGE[1, 10:13, 4:99]),
    "subclass with attributes": lambda: named(LARGE[1, 10:13]).as_subclass(Image),
    "gradient": lambda: LARGE[1, 10:13].detach().requires_grad_(),
    "small one with a gradient": lambda: LARGE[1, 5, 6:9].detach().requires_grad_(),
    "of a function": lambda: LARGE[1, 10:13].detach().requires_grad_()[:, ::3],
    "parameter": lambda: torch.nn.Parameter(LARGE[1, 10:13, 2:]),
    "conjugate": lambda: torch.view_as_complex(LARGE[1].view(-1, 512, 2))[5:9].conj(),
    "negative": lambda: torch.view_as_complex(LARGE[1].view(-1, 512, 2))[5:9].conj().imag,
    "quantized": quantized,
    "unsigned": lambda: LARGE[0].to(torch.uint16)[3:9, 7:].as_subclass(Image),
    "tuple": lambda: (LARGE[0, 3].as_subclass(Image), LARGE[1, 3], "label", 3),
    "dict": lambda: {"image": named(LARGE[0, 3]), "views": [LARGE[i, :2, i:] for i in range(4)]},
    "dataclass": lambda: Record(LARGE[2, :9, ::7].as_subclass(Image), {"array": ARRAY[0, 5]}),
    "numpy": lambda: ARRAY[1, 10:13],
    "numpy columns": lambda: ARRAY[1, 10:200, 5:9],
    "numpy subclass": lambda: ARRAY[1, 10:13].view(np.recarray),
    "numpy read-only": lambda: np.broadcast_to(ARRAY[1, 10], (1024,)),
    "sparse": lambda: LARGE[1, 10:13].to_sparse(),
    "sparse rows": lambda: LARGE[1, 10:13].to_sparse_csr(),
}


def shown(value: Any) -> int:
    """Bytes of all the numbers in `value`."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            return 5 * int(value.values().nbytes)  # two indices each, of twice the size
        more = shown(vars(value)) if hasattr(value, "__dict__") else 0
        return int(value.nbytes) + more
    if isinstance(value, Record):
        return shown(vars(value))
    if isinstance(value, dict):
        return shown(list(value.values()))
    return sum(map(shown, value)) if isinstance(value, (tuple, list)) else 0


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        for what in ("dtype", "shape", "layout", "requires_grad", "is_quantized"):
            assert getattr(found, what) == getattr(expected, what), what
        if expected.is_quantized:
            assert found.q_scale() == expected.q_scale()
            found, expected = found.int_repr(), expected.int_repr()
        assert found.to_dense().tolist() == expected.to_dense().tolist()
        same(vars(found), vars(expected))
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
    elif isinstance(expected, Record):
        same(vars(found), vars(expected))
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, part in expected.items():
            same(found[key], part)
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for part, other in zip(found, expected, strict=True):
            same(part, other)
    else:
        assert found == expected


class Shop:
    """Packs as a worker does, and unpacks as the parent does."""

    def __init__(self) -> None:
        self.memory = SharedMemory()
        self.memory.close_file()
        self.own = OwnBlocks(self.memory, 0)

    def packed(self, value: Any) -> Any:
        packed = pack(value, self.own)
        packed.memory = self.memory
        return packed

    def there_and_back(self, value: Any) -> Any:
        return self.packed(value).unpack()

    def fill(self) -> None:
        """Leave no room in the arena."""
        size = self.memory.arena_size
        while size >= 64:
            if self.own.allocate(size) is None:
                size //= 2


@pytest.mark.parametrize("kind", VIEWS)
def test_only_what_is_shown_travels(kind: str) -> None:
    shop = Shop()
    view = VIEWS[kind]()
    packed = shop.packed(view)
    assert packed.nbytes <= shown(view) + MORE
    same(packed.unpack(), view)


@pytest.mark.parametrize("kind", VIEWS)
def test_where_there_is_no_room_for_blocks(kind: str) -> None:
    shop = Shop()
    shop.fill()
    view = VIEWS[kind]()
    packed = shop.packed(view)
    assert not packed.blocks
    assert packed.nbytes <= shown(view) + MORE
    same(packed.unpack(), view)


def test_all_kinds_through_a_loader() -> None:
    kinds = list(VIEWS)
    loader = processes(Made(len(kinds), lambda i: VIEWS[kinds[i]]()), None, collate_fn=as_it_is)
    for found, kind in zip(loader, kinds, strict=True):
        same(found, VIEWS[kind]())


def as_it_is(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize(
    "view",
    [
        LARGE[1, 10, :1, None].expand(4096, 4096),
        LARGE[1, :6, :7].unsqueeze(1).expand(6, 50_000, 7),
        LARGE[1, 5].unfold(0, 500, 1),
        LARGE[1, 5, ::2].expand(9, 512).as_subclass(Image),
    ],
)
def test_what_is_shown_many_times_travels_once(view: torch.Tensor) -> None:
    shop = Shop()
    packed = shop.packed(view)
    assert packed.nbytes <= 12_000 + MORE
    found = packed.unpack()
    assert torch.equal(found, view)
    assert type(found) is type(view)
    repeated = [stride == 0 for stride in view.stride()]
    assert [stride == 0 for stride in found.stride()] == repeated


@pytest.mark.parametrize(
    "view",
    [
        LARGE.view(1, 64, 256, 256).to(memory_format=torch.channels_last),
        LARGE[2, :50, :60].T,
        LARGE[2, :50, :60].T.as_subclass(Image),
        LARGE.view(4, 16, 256, 256)[:, 3:7].permute(0, 2, 3, 1).detach().requires_grad_(),
    ],
)
def test_layout_is_kept(view: torch.Tensor) -> None:
    shop = Shop()
    found = shop.there_and_back(view)
    assert found.stride() == torch.empty_like(view, device="meta").stride()
    assert torch.equal(found, view)


def test_classes_with_a_way_of_their_own() -> None:
    shop = Shop()
    masked = LARGE[1, 10:13].as_subclass(Masked)
    masked.mask = LARGE[2, 3] > 5
    found = shop.there_and_back(masked)
    assert type(found) is Masked
    assert torch.equal(found, masked)
    assert torch.equal(found.mask, masked.mask)

    copyreg.pickle(Registered, lambda it: (as_registered, (it.as_subclass(torch.Tensor) + 1,)))  # type: ignore[arg-type,return-value]
    try:
        found = shop.there_and_back(LARGE[1, 10:13].as_subclass(Registered))
    finally:
        del copyreg.dispatch_table[Registered]
    assert type(found) is Registered
    assert torch.equal(found.as_subclass(torch.Tensor), LARGE[1, 10:13] + 1)


def test_the_same_object_stays_the_same() -> None:
    shop = Shop()
    view = LARGE[1, 10:13].as_subclass(Image)
    first, (second, third) = shop.there_and_back((view, [view, LARGE[1, 10:13]]))
    assert first is second
    assert third is not first


@pytest.mark.parametrize("kind", ["subclass", "gradient", "parameter", "sparse"])
def test_blocks_are_free_with_the_last_of_their_tensors(kind: str) -> None:
    shop = Shop()
    found = shop.there_and_back(VIEWS[kind]())
    kept = found[:, 1:] if found.layout is torch.strided else found.values()
    alive, *_ = shop.memory._leases.values()
    del found
    assert not shop.memory.take_freed(0)
    assert isinstance(alive, weakref.ref)
    assert alive() is not None
    del kept
    assert shop.memory.take_freed(0)
    assert not shop.memory._leases


class Holder:
    """A sample that refers back to where it comes from."""

    def __init__(self, index: int, source: Any) -> None:
        self.index = index
        self.source = source
        self.made_by = os.getpid()


def numbers(samples: list[Holder]) -> Any:
    return [sample.index for sample in samples], len({sample.made_by for sample in samples})


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("megabytes", [2, 256])
def test_samples_that_refer_to_much_more_are_left_to_one_worker(
    megabytes: int, in_order: bool, tmp_path: Path
) -> None:
    """Those of 256 MB are never copied at all; those of 2 until it shows what becomes of them."""
    large = torch.zeros(megabytes << 20, dtype=torch.uint8)

    def sample(index: int) -> Holder:
        with open(tmp_path / f"{index}", "a") as made:
            made.write(".")
        pause(0.004)
        return Holder(index, large)

    loader = processes(Made(200, sample), 10, in_order=in_order, collate_fn=numbers)
    batches = list(loader)
    assert sorted(i for indices, _ in batches for i in indices) == list(range(200))
    # Of each of the two workers one claim may have been on its way, and each may have begun a
    # batch that the other went on with.
    assert sum(makers > 1 for _, makers in batches) <= 6
    again = sum(path.stat().st_size - 1 for path in tmp_path.iterdir())
    assert (again > 0) is (megabytes == 256)
    assert again <= 60


def test_samples_as_large_as_their_part_of_the_batch_are_shared_out() -> None:
    def sample(index: int) -> Any:
        pause(0.004)
        return torch.zeros(1 << 15), os.getpid()

    loader = processes(Made(200, sample), 20)
    makers = [len(set(pids.tolist())) for _, pids in loader]
    assert sum(count > 1 for count in makers[5:]) > 0


def test_packing_ends_when_it_has_become_too_dear() -> None:
    shop = Shop()

    def free() -> int:
        return sum(shop.own._arena._sizes.values())

    before = free()
    for dear in (
        [LARGE[0, 0], LARGE, LARGE],  # 32 MB
        [ARRAY, ARRAY.copy()],
        [{"number": number, "text": str(number)} for number in range(100_000)],
    ):
        with pytest.raises(TooDear):
            pack(dear, shop.own, 1e-3)
        assert free() == before
        pack(dear, shop.own, 1.0)
        before = free()


@pytest.mark.parametrize(
    ("nbytes", "packing", "cost", "share", "pays"),
    [
        (1 << 20, 1e-3, 5e-3, 1 << 20, True),
        (1 << 20, 1e-3, 5e-3, 1 << 10, False),  # for what comes of it, much travels
        (1 << 20, 1e-3, 0.5, 1 << 10, True),  # in no time, as samples go
        (1 << 14, 1e-3, 5e-3, 8, True),  # little more
        (1 << 20, 6e-3, 5e-3, 1 << 20, False),  # it takes longer than to make it
        (1 << 20, 1e-3, 1e-5, 1 << 20, True),  # so it does, but not long
    ],
)
def test_when_samples_should_travel(
    nbytes: int, packing: float, cost: float, share: int, pays: bool
) -> None:
    travel = Travel()
    travel.packed(8, 8 * nbytes, 8 * packing, [8 * cost])
    travel.collated(4, 4 * share)
    assert travel.pays is pays
