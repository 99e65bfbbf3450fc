"""Rows written in place, held equal to torch's default collate."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from minato_async import MinatoLoader
from minato_async.sample import collation
from minato_async.sample.collation import DefaultRows, DefaultRowWriter, RowLeaf
from minato_async.scheduling.claim_size import ClaimSize
from tests.loaders import PROCESSES, SERIAL, TORCH, WORKERS, LoaderKind, on_each_executor

from .support import (
    COLLATED_SAMPLES,
    PATIENCE,
    assert_same,
    iterating,
    outcomes,
)

Pair = namedtuple("Pair", ["left", "right"])


class MyTensor(torch.Tensor):
    pass


@pytest.fixture(autouse=True, scope="module")
def little_is_large() -> Iterator[None]:
    """Sixteen bytes are large here, so that small examples lie on both sides of the limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collation, "LARGE", 16)
        yield


# Leaves


def contiguous(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = int(np.prod(shape))
    return torch.arange(count).remainder(2 if dtype is torch.bool else 100).to(dtype).reshape(shape)


def transposed(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return contiguous(shape[::-1], dtype).permute(tuple(range(len(shape)))[::-1])


def channels_last(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if len(shape) != 3:
        return contiguous(shape, dtype)
    return contiguous((*shape[1:], shape[0]), dtype).permute(2, 0, 1)


def every_second(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if not shape:
        return contiguous(shape, dtype)
    return contiguous((2 * shape[0], *shape[1:]), dtype)[::2]


def expanded(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones((), dtype=dtype).expand(shape)


def odd_strides(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Contiguous all the same, where dimensions of size one have strides that mean nothing."""
    tensor = contiguous(shape, dtype)
    strides = [
        7 if size == 1 else stride for size, stride in zip(shape, tensor.stride(), strict=True)
    ]
    return tensor.as_strided(shape, strides)


def with_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    tensor = contiguous(shape, dtype)
    return tensor.requires_grad_() if dtype.is_floating_point else tensor


def subclass(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return contiguous(shape, dtype).as_subclass(MyTensor)


def inference(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode():
        return contiguous(shape, dtype)


def conjugated(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return contiguous(shape, torch.complex64).conj()


def as_fortran(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asfortranarray(array)


def reversed_rows(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array[::-1] if array.ndim else array


def big_endian(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(array.dtype.newbyteorder(">"))


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = array.copy()
    array.flags.writeable = False
    return array


def unchanged(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array


TENSORS = [
    *[contiguous] * 12,
    *(transposed, channels_last, every_second, expanded, odd_strides),
    *(with_gradient, subclass, inference, conjugated),
]
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16),
]
ARRAYS = [*[unchanged] * 8, as_fortran, reversed_rows, big_endian, read_only]
ARRAY_DTYPES = [
    *("float16", "float32", "float64", "longdouble", "complex64", "bool", "str", "object"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
]
SCALARS: list[Any] = [1, 2.5, True, "text", b"bytes", None, np.float32(1.5), np.int64(3), 1j]

#: Mostly large enough for rows: small ones would all go through torch's collate.
SHAPES = [
    *((4,), (16,), (2, 3), (4, 3), (1, 5), (8, 1), (3, 4, 5), (1, 4, 4), (3, 1, 4), (2, 2, 2)),
    *((), (0,), (1,), (2, 0), (1, 1)),
]
shapes = st.sampled_from(SHAPES)


@dataclass(frozen=True)
class Leaf:
    """How to make one tensor, array or scalar; each call of `make` gives a new one."""

    #: How the tensor lies in memory, how the array is changed, or the scalar.
    how: Any
    shape: tuple[int, ...] = ()
    dtype: Any = None

    def make(self) -> Any:
        if self.dtype is None:
            return self.how
        if isinstance(self.dtype, torch.dtype):
            return self.how(self.shape, self.dtype)
        count = int(np.prod(self.shape))
        return self.how(np.arange(count).reshape(self.shape).astype(self.dtype))


scalars = st.sampled_from(SCALARS).map(Leaf)
tensors = st.builds(Leaf, st.sampled_from(TENSORS), shapes, st.sampled_from(DTYPES))
arrays = st.builds(Leaf, st.sampled_from(ARRAYS), shapes, st.sampled_from(ARRAY_DTYPES))
leaves = st.one_of(tensors, tensors, arrays, scalars)


@st.composite
def leaves_unlike(draw: st.DrawFn, leaf: Leaf) -> Leaf:
    """Like `leaf`, but for one thing."""
    if leaf.dtype is None:
        return draw(leaves)
    is_tensor = isinstance(leaf.dtype, torch.dtype)
    changed = draw(st.sampled_from(["how", "dtype", "kind", "shape", "longer", "fewer dimensions"]))
    if changed == "how":
        return replace(leaf, how=draw(st.sampled_from(TENSORS if is_tensor else ARRAYS)))
    if changed == "dtype":
        return replace(leaf, dtype=draw(st.sampled_from(DTYPES if is_tensor else ARRAY_DTYPES)))
    if changed == "kind":
        if is_tensor:
            return Leaf(unchanged, leaf.shape, str(leaf.dtype).removeprefix("torch."))
        return Leaf(contiguous, leaf.shape, getattr(torch, str(leaf.dtype), torch.float32))
    if changed == "longer":
        return replace(leaf, shape=(*leaf.shape[:-1], 5))
    if changed == "fewer dimensions":
        return replace(leaf, shape=leaf.shape[1:])
    return replace(leaf, shape=draw(shapes))


# Structures of leaves, and samples with such a structure

keys = st.sampled_from(["a", "b", 0, 1, None])


def containers(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(parts, max_size=3).map(tuple),
        st.lists(parts, max_size=3),
        st.dictionaries(keys, parts, max_size=3),
        st.tuples(parts, parts).map(lambda pair: Pair(*pair)),
        st.dictionaries(keys, parts, max_size=2).map(OrderedDict),
    )


structures = st.recursive(leaves, containers, max_leaves=5)


def build(structure: Any) -> Any:
    if isinstance(structure, Leaf):
        return structure.make()
    if isinstance(structure, dict):
        return type(structure)((key, build(part)) for key, part in structure.items())
    if isinstance(structure, Pair):
        return Pair(*map(build, structure))
    return type(structure)(map(build, structure))


@st.composite
def unlike(draw: st.DrawFn, structure: Any) -> Any:
    """Like `structure`, but for one part, or for what it is that holds its parts."""
    if isinstance(structure, Leaf):
        return draw(leaves_unlike(structure))
    if not structure or draw(st.integers(0, 9)) == 7:
        return draw(structures)
    if draw(st.integers(0, 3)) == 2:
        parts = list(structure.values()) if isinstance(structure, dict) else list(structure)
        return draw(st.sampled_from([list, tuple, lambda parts: dict(enumerate(parts))]))(parts)
    if isinstance(structure, dict):
        key = draw(st.sampled_from(list(structure)))
        return type(structure)({**structure, key: draw(unlike(structure[key]))})
    at = draw(st.integers(0, len(structure) - 1))
    parts = [*structure[:at], draw(unlike(structure[at])), *structure[at + 1 :]]
    return Pair(*parts) if isinstance(structure, Pair) else type(structure)(parts)


@st.composite
def like_batches(draw: st.DrawFn) -> list[Any]:
    """The structures of the samples of one batch: mostly one and the same."""
    structure = draw(structures)
    size = draw(st.integers(1, 4))
    batch = [structure] * size
    if draw(st.booleans()):
        at = draw(st.integers(0, size - 1))
        batch[at] = draw(unlike(structure))
    return batch


def attempt(collate: Callable[[], Any]) -> tuple[Any, tuple[type, str] | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays that are read-only
        try:
            return collate(), None
        except Exception as error:
            return None, (type(error), str(error))


def through_rows(samples: list[Any], order: list[int], skipped: set[int]) -> Any:
    """A batch as workers make it: whoever finds that it pays writes, in whatever order, and some
    samples come from claims of several tickets, which do not write."""
    writer = DefaultRowWriter()
    rows: DefaultRows | None = None
    placed = list(samples)
    for row in order:
        if row not in skipped and writer.pays(samples[row]):
            rows = rows or writer.rows(len(samples))
            placed[row] = rows.write(row, samples[row])
    return default_collate(placed) if rows is None else rows.collate(placed)


@settings(max_examples=800)
@given(st.data())
def test_rows_give_what_torch_gives(data: st.DataObject) -> None:
    structures_of_samples = data.draw(like_batches())
    size = len(structures_of_samples)
    order = data.draw(st.permutations(range(size)))
    skipped = data.draw(st.sets(st.integers(0, size - 1), max_size=1))

    samples = [build(structure) for structure in structures_of_samples]
    expected, expected_error = attempt(lambda: default_collate(list(samples)))
    found, error = attempt(lambda: through_rows(samples, list(order), skipped))
    assert error == expected_error
    assert_same(found, expected)


T, F64 = torch.ones(2, 4), torch.ones(2, 4, dtype=torch.float64)
A = np.ones((2, 4), np.float32)

#: Batches in which one sample is almost like the others.
ODD_BATCHES: list[list[Any]] = [
    [T, F64],
    [F64, T],
    [T, T.int()],
    [T, A],
    [A, T],
    [A, A.astype(np.float64)],
    [A, A, T, A],
    [T, torch.ones(4)],
    [torch.ones(1, 4), T],
    [T, torch.ones(2, 4, requires_grad=True)],
    [T, T.t().contiguous().t()],
    [T, torch.ones(2)],
    [T, T.as_subclass(MyTensor)],
    [T, T.tolist()],
    [T, None],
    [T, {None: T}],
    [{None: T}, T],
    [(T,), [T]],
    [[T], (T,)],
    [(T,), {0: T}],
    [{0: T}, (T,)],
    [(T, 1), (T, 1, 2)],
    [(T, 1), (T,)],
    [{"a": T}, {"a": T, "b": T}],
    [{"a": T, "b": T}, {"a": T}],
    [{"a": T, "b": 1}, {"b": 2, "a": T}],
    [(T, T), (T, F64)],
    [(T, A), (A, T)],
]


@pytest.mark.parametrize("samples", ODD_BATCHES)
def test_odd_samples_are_left_to_torch(samples: list[Any]) -> None:
    expected, expected_error = attempt(lambda: default_collate(list(samples)))
    for order in itertools.permutations(range(len(samples))):
        for skipped in (set(), {0}, {len(samples) - 1}):
            found, error = attempt(
                lambda o=list(order), s=skipped: through_rows(list(samples), o, s)
            )
            assert error == expected_error
            assert_same(found, expected)


@settings(max_examples=200)
@given(leaves)
def test_a_row_is_written_exactly_where_it_should_be(leaf: Leaf) -> None:
    """Whether rows are taken, told from the outside: plain, numeric, contiguous, on the CPU."""
    sample = leaf.make()
    if type(sample) is torch.Tensor:
        fits = sample.is_contiguous() and not sample.requires_grad and not sample.is_conj()
    elif type(sample) is np.ndarray:
        kind = sample.dtype.kind in "biuf" and sample.dtype not in ("longdouble",)
        fits = kind and sample.dtype.isnative and sample.flags.c_contiguous
    else:
        fits = False
    assert DefaultRowWriter().pays(sample) is bool(fits and sample.nbytes >= 16)


class TestRowsAreTaken:
    """The batch is the memory that the rows were written to, nothing is copied again."""

    IMAGE = torch.arange(12.0).reshape(3, 4)

    def rows_of(self, samples: list[Any]) -> tuple[DefaultRows, list[Any]]:
        rows = DefaultRowWriter().rows(len(samples))
        return rows, [rows.write(row, sample) for row, sample in enumerate(samples)]

    @pytest.mark.parametrize(
        ("make", "large_of"),
        [
            (lambda i: TestRowsAreTaken.IMAGE + i, lambda sample: sample),
            (lambda i: (TestRowsAreTaken.IMAGE + i, i), lambda sample: sample[0]),
            (lambda i: [i, TestRowsAreTaken.IMAGE.numpy() + i], lambda sample: sample[1]),
            (lambda i: {"x": TestRowsAreTaken.IMAGE + i, "y": "t"}, lambda sample: sample["x"]),
        ],
        ids=["tensor", "tuple", "list", "dict"],
    )
    def test_at_the_top_and_directly_below(
        self, make: Callable[[int], Any], large_of: Callable[[Any], Any]
    ) -> None:
        samples = [make(i) for i in range(3)]
        assert DefaultRowWriter().pays(samples[0])
        rows, written = self.rows_of(samples)
        leaves_of_rows = [large_of(sample) for sample in written]
        assert all(type(leaf) is RowLeaf for leaf in leaves_of_rows)
        batch = rows.collate(written)
        assert large_of(batch).data_ptr() == leaves_of_rows[0].leaf.buffer.data_ptr()
        assert_same(batch, default_collate([make(i) for i in range(3)]))

    @pytest.mark.parametrize(
        "make",
        [
            lambda: (torch.ones(1), 1),
            lambda: ((torch.ones(9),),),
            lambda: {"a": {"b": torch.ones(9)}},
            lambda: Pair(torch.ones(9), 1),
            lambda: "a long text that is no tensor",
            lambda: torch.ones(9).to_sparse(),
            lambda: torch.ones(3, 9).to_mkldnn(),
            lambda: torch.ones(9, device="meta"),
            lambda: torch.nested.nested_tensor([torch.ones(9), torch.ones(8)]),
            lambda: torch.nn.Parameter(torch.ones(9)),
            lambda: torch.ones(9, requires_grad=True),
            lambda: torch.ones(9, 9).t(),
            lambda: torch.ones(9, dtype=torch.complex64).conj(),
            lambda: torch._neg_view(torch.ones(9)),
            lambda: torch.quantize_per_tensor(torch.ones(99), 0.1, 0, torch.qint8),
            lambda: torch.ones(9).as_subclass(MyTensor),
            lambda: np.ones((9, 9)).T[1:],
            lambda: np.ones(9, ">f4"),
            lambda: np.ones(9).view(np.recarray),
            lambda: np.ones(9, "datetime64[s]"),
            lambda: np.ones(9, np.longdouble),
        ],
    )
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
    def test_nowhere_else(self, make: Callable[[], Any]) -> None:
        assert not DefaultRowWriter().pays(make())

    def test_unseen_by_the_mode_that_a_worker_runs_under(self) -> None:
        class Seen(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
                pytest.fail(f"{func} went through Python")

        samples = [(self.IMAGE, i) for i in range(2)]
        with Seen():
            assert DefaultRowWriter().pays(samples[0])
            _, written = self.rows_of(samples)
        assert [type(image) for image, _ in written] == [RowLeaf, RowLeaf]

    def test_first_writers_make_one_buffer(self) -> None:
        for _ in range(20):
            rows = DefaultRowWriter().rows(4)
            written: list[Any] = [None] * 4
            together = threading.Barrier(4)

            def write(
                row: int,
                rows: DefaultRows = rows,
                written: list[Any] = written,
                together: threading.Barrier = together,
            ) -> None:
                together.wait(PATIENCE)
                written[row] = rows.write(row, torch.full((40,), float(row)))

            threads = [threading.Thread(target=write, args=(row,)) for row in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len({leaf.leaf for leaf in written}) == 1
            assert rows.collate(written)[:, 0].tolist() == [0, 1, 2, 3]

    def test_samples_own_memory_is_not_kept(self) -> None:
        """What is written is a copy: the dataset may use its buffer again."""
        buffer = torch.zeros(9)
        rows = DefaultRowWriter().rows(2)
        written = []
        for row in range(2):
            buffer.fill_(row)
            written.append(rows.write(row, buffer))
        assert rows.collate(written)[:, 0].tolist() == [0, 1]


def test_a_shorter_batch_keeps_what_is_in_its_rows() -> None:
    """The first sample was skipped, the second written by its worker, the third was not."""
    samples = [torch.full((4, 128, 128), float(value)) for value in (1, 2)]
    rows = DefaultRows(3)
    batch = rows.collate([rows.write(1, samples[0]), samples[1]])
    assert torch.equal(batch, torch.stack(samples))


class CountedRows:
    """Counts what a loader writes into rows."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.written = 0
        self._lock = threading.Lock()
        write = DefaultRows.write

        def counting(rows: DefaultRows, row: int, sample: Any) -> Any:
            with self._lock:
                self.written += 1
            return write(rows, row, sample)

        patch.setattr(DefaultRows, "write", counting)


@pytest.fixture
def torchs_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that other tests have imported put functions of theirs into it."""
    for cls, function in list(default_collate_fn_map.items()):
        if function.__module__ != "torch.utils.data._utils.collate":
            monkeypatch.delitem(default_collate_fn_map, cls)


@pytest.mark.usefixtures("torchs_own_table")
class TestInALoader:
    @pytest.fixture(autouse=True)
    def one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Samples that are claimed by the batch are not written: here none is."""
        monkeypatch.setattr(ClaimSize, "next", lambda self: 1)

    @pytest.mark.parametrize(
        "kind", [TORCH, SERIAL, WORKERS, PROCESSES], ids=lambda kind: kind.name
    )
    @pytest.mark.parametrize("size", [2, 100_000])
    def test_mixed_dtypes_give_the_one_that_holds_them_all(
        self, kind: LoaderKind, size: int
    ) -> None:
        """As torch without workers. With workers it takes the first sample's, to share memory."""
        samples = [torch.full((size,), 0.1), torch.full((size,), 0.1, dtype=torch.float64)]
        (batch,) = kind(samples, 2)
        assert batch.dtype == torch.float64
        assert torch.equal(batch, torch.stack(samples))

    @pytest.mark.parametrize("in_order", [True, False])
    def test_large_samples_are_written_into_rows(
        self, in_order: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted = CountedRows(monkeypatch)
        samples = [(torch.full((10,), i), np.full(10, i), i) for i in range(11)]
        loader = MinatoLoader(samples, 4, num_workers=2, in_order=in_order)
        found = list(loader)
        assert counted.written == 11
        for tensors, arrays, numbers in found:
            assert tensors[:, -1].tolist() == arrays[:, -1].tolist() == numbers.tolist()
        assert sorted(number for batch in found for number in batch[2].tolist()) == list(range(11))

    @on_each_executor
    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    @pytest.mark.parametrize("in_order", [True, False])
    def test_batches_that_became_shorter(self, in_order: bool, on_error: str) -> None:
        """Of four rows three are filled: the batch has three."""

        class OneMissing:
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> torch.Tensor:
                if index == 1:
                    raise ValueError(index)
                return torch.full((10,), index)

        loader = MinatoLoader(OneMissing(), 4, num_workers=2, in_order=in_order, on_error=on_error)
        with iterating(loader) as iterator:
            found = [item for item in outcomes(iterator) if isinstance(item, torch.Tensor)]
        if in_order and on_error == "raise":
            assert found == []
            return
        (batch,) = found
        assert batch.shape == (3, 10)
        assert sorted(batch[:, 0].tolist()) == sorted(batch[:, -1].tolist()) == [0, 2, 3]

    def test_other_collate_functions_get_samples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted = CountedRows(monkeypatch)
        samples = [torch.full((10,), i) for i in range(6)]
        (batch,) = MinatoLoader(samples, 6, num_workers=2, collate_fn=list, in_order=True)
        assert_same(batch, samples)
        (batch,) = MinatoLoader(
            samples, 6, num_workers=2, collate_fn=lambda s: default_collate(s), in_order=True
        )
        assert_same(batch, torch.stack(samples))
        assert counted.written == 0

    @on_each_executor
    @pytest.mark.parametrize("kind", [MyTensor, torch.Tensor, list])
    def test_functions_in_torchs_table_are_called(
        self, kind: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Torch suggests to put one there for a class that it does not know."""

        def gathered(batch: Any, *, collate_fn_map: Any = None) -> Any:
            return [len(part) for part in batch]

        monkeypatch.setitem(default_collate_fn_map, kind, gathered)
        large = torch.ones(1000)
        samples = [[large, large.as_subclass(MyTensor)] for _ in range(4)]
        assert_same(
            list(MinatoLoader(samples, 2, num_workers=2, in_order=True)),
            list(DataLoader(samples, 2)),
        )

    @on_each_executor
    @pytest.mark.parametrize("samples", COLLATED_SAMPLES, ids=repr)
    def test_every_structure(self, samples: list[Any]) -> None:
        found = list(MinatoLoader(samples, 2, num_workers=2, in_order=True))
        assert_same(found, list(DataLoader(samples, 2)))

    @on_each_executor
    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.ones(9).to_sparse(),
            lambda: torch.nested.nested_tensor([torch.ones(9), torch.ones(8)]),
            lambda: np.ones(9, np.longdouble),
            lambda: np.ones(9, "datetime64[s]"),
        ],
        ids=["sparse", "nested", "long double", "dates"],
    )
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_what_torch_refuses_is_an_error_of_the_batch(self, make: Callable[[], Any]) -> None:
        """And not the end of the loader."""
        samples = [torch.ones(9), torch.ones(9), make(), make(), torch.ones(9), torch.ones(9)]
        _, expected = attempt(lambda: default_collate(samples[2:4]))
        assert expected is not None
        with iterating(MinatoLoader(samples, 2, num_workers=2, in_order=True)) as iterator:
            first, error, last = outcomes(iterator)
        assert (type(error), str(error)) == expected
        assert_same([first, last], [torch.ones(2, 9)] * 2)

    @pytest.mark.parametrize("failures", [1, 100])
    def test_sample_that_cannot_be_written(
        self, failures: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For want of memory, say: torch's collate makes the batch, of the samples as they are."""
        write = DefaultRows._write
        left = [MemoryError() for _ in range(failures)]

        def failing(rows: DefaultRows, row: int, key: Any, part: Any) -> Any:
            if row == 1 and left:
                raise left.pop()
            return write(rows, row, key, part)

        monkeypatch.setattr(DefaultRows, "_write", failing)
        samples = [torch.full((10,), i) for i in range(8)]
        assert_same(
            list(MinatoLoader(samples, 4, num_workers=2, in_order=True)),
            [torch.stack(samples[:4]), torch.stack(samples[4:])],
        )
        assert len(left) < failures
