"""What samples change of the process by a context manager is their worker's own, on threads too.

The samples of most tests meet: all are inside their contexts when any goes on. So what one does to
another, or to the training thread, shows every time.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import decimal
import io
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock
from warnings import simplefilter as early_simplefilter
from warnings import warn as early_warn

import numpy as np
import pytest
from torch.utils.data import IterableDataset

from minato_async import MinatoLoader
from tests.cases.support import CHECKOUT, Made
from tests.loaders import PARALLEL, PROCESSES, TORCH_WORKERS, LoaderKind
from tests.semantics.support import PATIENCE, InThread

WORKERS = 3

Meet = Callable[[], Any]


@contextlib.contextmanager
def meeting(sample: Callable[[int, Meet], Any]) -> Iterator[tuple[InThread, Meet]]:
    """Loads a sample for each worker, which wait for one another and for the test. Gives the
    thread that loads, and what the test calls to meet them."""
    barrier = threading.Barrier(WORKERS + 1, timeout=PATIENCE)

    def make(index: int) -> Any:
        try:
            return sample(index, barrier.wait)
        except BaseException:
            barrier.abort()
            raise

    consumer = InThread(lambda: load(Made(WORKERS, make)))
    try:
        yield consumer, barrier.wait
    finally:
        barrier.abort()


def load(dataset: Any) -> list[Any]:
    """All samples, each a batch of its own."""
    loader = MinatoLoader(dataset, 1, num_workers=WORKERS, collate_fn=list, executor="thread")
    return [sample for batch in loader for sample in batch]


def run_together(
    sample: Callable[[int, Meet], Any], meanwhile: Callable[[], Any] | None = None
) -> list[Any]:
    """The samples, each of a worker of its own. They meet twice, and in between other threads have
    what they had before; the test calls `meanwhile` there."""
    before = what_all_have()
    with meeting(sample) as (consumer, meet):
        meet()
        assert_same_objects(what_all_have(), before)
        if meanwhile is not None:
            meanwhile()
        meet()
        found: list[Any] = consumer.result()
    assert_same_objects(what_all_have(), before)
    return found


def what_all_have() -> list[Any]:
    return [
        sys.stdout,
        sys.stderr,
        warnings.showwarning,
        warnings.formatwarning,
        warnings._showwarnmsg_impl,  # type: ignore[attr-defined]
        warnings.warn,
        warnings.filters,
        *warnings.filters,
    ]


def assert_same_objects(now: list[Any], before: list[Any]) -> None:
    assert len(now) == len(before)
    assert all(one is other for one, other in zip(now, before, strict=True)), (now, before)


def texts(record: list[warnings.WarningMessage]) -> list[str]:
    """But for what the loader itself warns of, on machines with few CPUs."""
    found = [str(warning.message) for warning in record]
    return [text for text in found if not text.startswith("This DataLoader will create")]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are shown, as outside pytest, which records them."""

    def show(message: warnings.WarningMessage) -> None:
        sys.stderr.write(warnings._formatwarnmsg(message))  # type: ignore[attr-defined]

    monkeypatch.setattr(warnings, "_showwarnmsg_impl", show)


# Warnings


def issue_in_python(text: str) -> None:
    warnings.warn(text, stacklevel=1)


def issue_early_bound(text: str) -> None:
    early_warn(text, stacklevel=1)


def issue_in_c(text: str) -> None:
    np.log(np.zeros(1))


ISSUERS = {"python": issue_in_python, "early": issue_early_bound, "c": issue_in_c}


@pytest.mark.parametrize("issue", ISSUERS.values(), ids=ISSUERS)
class TestWarnings:
    def test_each_worker_filters_as_it_says(self, issue: Callable[[str], None]) -> None:
        def sample(index: int, meet: Meet) -> str:
            with warnings.catch_warnings(record=True) as record:
                warnings.simplefilter(("error", "ignore", "always")[index])  # type: ignore[arg-type]
                meet()
                try:
                    issue("noise")
                except Warning:
                    return "raised"
                finally:
                    meet()
            return f"recorded {len(record)}"

        assert run_together(sample) == ["raised", "recorded 0", "recorded 1"]

    def test_the_training_thread_goes_on_filtering(self, issue: Callable[[str], None]) -> None:
        """It enters a context of its own while workers are in theirs, and warns."""

        def sample(index: int, meet: Meet) -> None:
            with warnings.catch_warnings():
                early_simplefilter(("error", "ignore", "error")[index])  # type: ignore[arg-type]
                meet()
                meet()

        def train() -> None:
            with warnings.catch_warnings(record=True) as record:
                warnings.simplefilter("always")
                issue("of the training loop")
            assert len(record) == 1

        run_together(sample, train)

    def test_what_others_were_told_is_told_anew_in_a_context(
        self, issue: Callable[[str], None]
    ) -> None:
        """By default a warning is shown once for each line: once in each context, as where every
        worker is a process."""

        class Decoded:
            def __len__(self) -> int:
                return 12

            def __getitem__(self, index: int) -> list[str]:
                with warnings.catch_warnings(record=True) as record:
                    warnings.simplefilter("default")
                    for _ in range(2):
                        issue("damaged")
                        warnings.warn("also", stacklevel=1)
                return texts(record)

        assert [len(seen) for seen in load(Decoded())] == [2] * 12

    def test_the_training_thread_is_told_once(self, issue: Callable[[str], None]) -> None:
        """And not again whenever a worker has entered a context or left one."""

        class Quiet:
            def __len__(self) -> int:
                return 24

            def __getitem__(self, index: int) -> int:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    issue("noise")
                return index

        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("default")
            for _ in MinatoLoader(Quiet(), 2, num_workers=WORKERS, executor="thread"):
                issue("of the training loop")
        assert len(texts(record)) == 1


def test_a_worker_with_filters_is_told_what_the_training_thread_was() -> None:
    def sample(index: int, meet: Meet) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            meet()
            meet()
            try:
                issue_in_python("damaged")
            except UserWarning:
                return "raised"
        return "nothing"

    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("default")
        assert run_together(sample, lambda: issue_in_python("damaged")) == ["raised"] * WORKERS
    assert texts(record) == ["damaged"]


def test_warnings_point_at_the_line_that_they_point_at_elsewhere() -> None:
    """`stacklevel` counts the same frames where a worker's own `warn` is called."""

    def inner(level: int) -> None:
        warnings.warn("here", UserWarning, level)

    def outer(level: int) -> None:
        inner(level)

    def places() -> list[Any]:
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            for level in (0, 1, 2, 3, 10**6):
                outer(level)
            warnings.warn_explicit("there", UserWarning, "file.py", 7)
            warnings.warn(DeprecationWarning("an object"))  # noqa: B028
        return [(w.filename, w.lineno, w.category, str(w.message)) for w in record]

    def sample(index: int, meet: Meet) -> list[Any]:
        meet()
        meet()
        return places()

    # Beyond the outermost frame versions of Python differ in the name that they give.
    expected = places()
    for found in run_together(sample):
        assert found[:4] + found[5:] == expected[:4] + expected[5:]


def test_wrong_categories_are_refused_in_contexts_too() -> None:
    def sample(index: int, meet: Meet) -> None:
        meet()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(TypeError, match="Warning subclass"):
                warnings.warn("text", int)  # type: ignore[call-overload]  # noqa: B028
        meet()

    run_together(sample)


def test_hooks_and_reset_are_the_workers_own(shown: None) -> None:
    def sample(index: int, meet: Meet) -> list[str]:
        shown: list[str] = []
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()) as errors:
            warnings.resetwarnings()
            warnings.formatwarning = lambda message, *_: f"{index} formats {message}"  # type: ignore[assignment]
            meet()
            warnings.warn("first", stacklevel=1)
            warnings.showwarning = lambda message, *_: shown.append(f"{index} shows {message}")
            warnings.warn("second", stacklevel=1)
            meet()
            assert warnings.filters == []
        return [errors.getvalue(), *shown]

    assert run_together(sample) == [[f"{n} formats first", f"{n} shows second"] for n in range(3)]


def test_filters_of_worker_init_fn_last_and_are_no_others() -> None:
    def quieten(worker_id: int) -> None:
        if worker_id:
            warnings.filterwarnings("error", "about one")

    class Doubtful:
        def __len__(self) -> int:
            return WORKERS

        def __getitem__(self, index: int) -> tuple[str | None, int]:
            every_worker.wait(PATIENCE)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ImportWarning)
            try:
                warnings.warn("about one", stacklevel=1)
            except UserWarning:
                return threading.current_thread().name, 1
            return threading.current_thread().name, 0

    every_worker = threading.Barrier(WORKERS)
    before = what_all_have()
    loader = MinatoLoader(
        Doubtful(),
        1,
        num_workers=WORKERS,
        collate_fn=list,
        executor="thread",
        worker_init_fn=quieten,
        persistent_workers=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            found = dict(sample for batch in loader for sample in batch)
            assert found == {f"minato-worker-{n}": min(n, 1) for n in range(WORKERS)}
    assert_same_objects(what_all_have(), before)


# Output


def redirected(target: io.StringIO) -> Any:
    return contextlib.redirect_stdout(target)


@contextlib.contextmanager
def assigned(target: io.StringIO) -> Iterator[None]:
    before, sys.stdout = sys.stdout, target
    try:
        yield
    finally:
        sys.stdout = before


def patched(target: io.StringIO) -> Any:
    return mock.patch("sys.stdout", target)


@pytest.mark.parametrize("redirect", [redirected, assigned, patched])
def test_output_goes_where_its_worker_says(
    redirect: Callable[[io.StringIO], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def sample(index: int, meet: Meet) -> str:
        target = io.StringIO()
        with redirect(target):
            meet()
            print(index, "prints")
            print(index, "prints on", file=None, flush=True)
            sys.stdout.write(f"{index} writes\n")
            with contextlib.redirect_stdout(io.StringIO()):
                print("elsewhere")
            meet()
            print("end")
        return target.getvalue()

    found = run_together(sample, lambda: print("the training loop prints"))
    assert found == [f"{n} prints\n{n} prints on\n{n} writes\nend\n" for n in range(WORKERS)]
    assert capsys.readouterr().out == "the training loop prints\n"


def test_errors_and_warnings_go_where_their_worker_says(
    shown: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def sample(index: int, meet: Meet) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as target, warnings.catch_warnings():
            warnings.simplefilter("always")
            meet()
            try:
                raise LookupError(index)
            except LookupError:
                traceback.print_exc()
            warnings.warn(f"of {index}", stacklevel=1)
            meet()
        return target.getvalue()

    def train() -> None:
        print("the training loop", file=sys.stderr)

    for index, found in enumerate(run_together(sample, train)):
        assert f"LookupError: {index}\n" in found
        assert f"UserWarning: of {index}\n" in found
    lines = capsys.readouterr().err.splitlines()
    assert "the training loop" in lines
    assert not any("LookupError" in line or "UserWarning: of" in line for line in lines)


def test_no_output_at_all() -> None:
    """`sys.stdout` is None where a program has no console."""

    def sample(index: int, meet: Meet) -> None:
        with contextlib.redirect_stdout(None):
            meet()
            print("lost")
            meet()

    with contextlib.redirect_stdout(io.StringIO()) as everyones:
        run_together(sample, lambda: print("kept"))
    assert everyones.getvalue() == "kept\n"


def assert_prints_follow_the_process(sample: Callable[[int, Meet], None]) -> None:
    """What `sample` prints at its end, after two meetings, goes where the training thread redirects
    its output to between the two."""
    later, outer = io.StringIO(), sys.stdout
    with meeting(sample) as (consumer, meet):
        meet()
        with contextlib.redirect_stdout(later):
            meet()
            consumer.result()
            assert sys.stdout is later
    assert sys.stdout is outer
    assert sorted(later.getvalue().split()) == ["0", "1", "2"]


@pytest.mark.parametrize("redirect", [redirected, assigned, patched])
def test_a_worker_follows_the_process_when_it_has_put_back_what_it_found(
    redirect: Callable[[io.StringIO], Any],
) -> None:
    def sample(index: int, meet: Meet) -> None:
        with redirect(io.StringIO()):
            pass
        meet()
        meet()
        print(index)

    assert_prints_follow_the_process(sample)


def test_a_worker_follows_the_process_that_has_changed_meanwhile() -> None:
    """The training thread enters a context while workers are in theirs, and leaves it last."""

    def sample(index: int, meet: Meet) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            meet()
            meet()
        print(index)

    assert_prints_follow_the_process(sample)


# Shards


class Suspended(IterableDataset[Any]):
    """Reads inside contexts, in which it is left by one thread and gone on with by another."""

    def __iter__(self) -> Iterator[Any]:
        with contextlib.redirect_stdout(io.StringIO()) as target, warnings.catch_warnings():
            warnings.simplefilter("error")
            for n in range(4):
                print(n)
                with pytest.raises(UserWarning):
                    warnings.warn("damaged", stacklevel=1)
                yield threading.get_ident(), target.getvalue().split()


def test_contexts_of_a_shard_go_with_it_from_thread_to_thread() -> None:
    """The first batch is held where it is collated, so another worker reads on."""
    second_read = threading.Event()

    def collate(batch: list[Any]) -> Any:
        [(_, printed)] = batch
        if printed == ["0"]:
            assert second_read.wait(PATIENCE)
        second_read.set()
        # Others collate and read meanwhile, with what the process has.
        return *batch[0], sys.stdout is everyones, warnings.filters is filters

    before = what_all_have()
    everyones, filters = sys.stdout, warnings.filters
    loader = MinatoLoader(
        Suspended(),
        1,
        num_workers=2,
        collate_fn=collate,
        executor="thread",
        iterable_mode="shared",
    )
    found = list(loader)
    assert len({thread for thread, *_ in found}) == 2
    assert [printed for _, printed, *_ in found] == [list("0123"[: n + 1]) for n in range(4)]
    assert all(rest == [True, True] for _, _, *rest in found)
    assert_same_objects(what_all_have(), before)


# What is each thread's own as it is


def test_what_the_libraries_keep_apart_themselves() -> None:
    def sample(index: int, meet: Meet) -> list[Any]:
        with (
            np.errstate(divide="raise" if index else "ignore"),
            np.printoptions(precision=index),
            decimal.localcontext(decimal.Context(prec=index + 5)),
        ):
            meet()
            here = [
                np.geterr()["divide"],
                np.get_printoptions()["precision"],
                decimal.getcontext().prec,
            ]
            meet()
        return here

    def own() -> list[Any]:
        return [np.geterr(), np.get_printoptions(), decimal.getcontext().prec]

    before = own()

    def train() -> None:
        assert own() == before

    assert run_together(sample, train) == [["ignore", 0, 5], ["raise", 1, 6], ["raise", 2, 7]]
    train()


def test_a_log_record_goes_to_the_stream_of_the_thread_that_logs() -> None:
    """By a handler that asks for `sys.stderr` when it writes, as that of last resort does."""

    def sample(index: int, meet: Meet) -> str:
        log = logging.Logger(f"of worker {index}")
        with contextlib.redirect_stderr(io.StringIO()) as target:
            meet()
            log.warning("message %s", index)
            meet()
        return target.getvalue()

    assert run_together(sample) == [f"message {n}\n" for n in range(WORKERS)]


# Event loops


@pytest.fixture
def fresh_event_loops() -> Iterator[None]:
    """Nobody has set a loop: in a forked process, the main thread's state is that of its parent."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(before)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="a main thread is given none either")
@pytest.mark.filterwarnings("ignore:There is no current event loop:DeprecationWarning")
@pytest.mark.parametrize("kind", [*PARALLEL, PROCESSES], ids=lambda kind: kind.name)
def test_a_worker_is_given_an_event_loop(fresh_event_loops: None, kind: LoaderKind) -> None:
    async def twice(value: int) -> int:
        await asyncio.sleep(0)
        return 2 * value

    class Fetched:
        loop: Any = None

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            loop = asyncio.get_event_loop()
            assert self.loop in (None, loop)
            self.loop = loop
            return loop.run_until_complete(twice(index))

    assert list(kind(Fetched(), batch_size=2, collate_fn=list)) == [[0, 2], [4, 6], [8, 10]]
    with pytest.raises(RuntimeError):
        InThread(asyncio.get_event_loop).result()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="a main thread is given none either")
def test_event_loops_are_made_at_the_first_use_and_closed_at_the_end() -> None:
    loops: list[Any] = []

    def sample(index: int, meet: Meet) -> int:
        descriptors = len(os.listdir("/proc/self/fd"))
        if index:
            loops.append(asyncio.get_event_loop())
        meet()
        meet()
        return descriptors

    run_together(sample)
    assert len(loops) == len(set(loops)) == WORKERS - 1
    assert all(loop.is_closed() for loop in loops)


@pytest.mark.parametrize("kind", [TORCH_WORKERS, *PARALLEL[1:]], ids=lambda kind: kind.name)
def test_asyncio_run_in_samples(kind: LoaderKind) -> None:
    async def text(value: int) -> str:
        await asyncio.sleep(0)
        return str(value)

    class Fetched:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            found = asyncio.run(text(index))
            # As on a main thread: `run` has said that there is none from now on.
            with pytest.raises(RuntimeError):
                asyncio.get_event_loop()
            return found

    assert [one for batch in kind(Fetched(), batch_size=2) for one in batch] == list("012345")


# How it is put in place


def test_it_is_put_in_place_once_and_for_threads() -> None:
    """Not for loaders whose workers are processes; and not again if the package is imported a
    second time: workers of loaders of both have what is their own."""
    code = """
        import io, sys, types, warnings, contextlib
        class Silent:
            def __len__(self): return 3
            def __getitem__(self, index):
                with contextlib.redirect_stdout(io.StringIO()) as target:
                    print(index)
                    mine = sys.stdout is not vars(sys)["stdout"]
                    assert sys.stdout is target
                return target.getvalue(), mine, type(sys) is types.ModuleType
        def state():
            functions = warnings._add_filter, warnings.resetwarnings, warnings._showwarnmsg
            return type(sys), type(warnings), print, [f.__code__ for f in functions]
        def fresh(executor="thread"):
            for name in [name for name in sys.modules if name.split(".")[0] == "minato_async"]:
                del sys.modules[name]
            from minato_async import MinatoLoader
            return MinatoLoader(
                Silent(), 1, num_workers=1, executor=executor, seed=False, collate_fn=list
            )
        def check(loader, untouched=False):
            assert list(loader) == [[(f"{n}\\n", not untouched, untouched)] for n in range(3)]
        before = state()
        check(fresh("process"), untouched=True)
        assert state() == before
        loaders = [fresh(), fresh()]
        for loader in loaders: check(loader)
        before = state()
        loaders.append(fresh())
        for loader in loaders: check(loader)
        assert state() == before
        assert [cls.__name__ for cls in type(sys).__mro__] == ["module", "module", "object"]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


def test_the_modules_are_as_they_were_for_others() -> None:
    list(MinatoLoader(range(2), num_workers=1, executor="thread"))  # type: ignore[arg-type]
    for module in (sys, warnings):
        assert pickle.loads(pickle.dumps(module)) is module
        assert copy.deepcopy(module) is module
    assert pickle.loads(pickle.dumps(print)) is print
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(sys, "stdout")
        assert not hasattr(sys, "stdout")
        with pytest.raises(AttributeError, match="'sys' has no attribute 'stdout'"):
            print(sys.stdout)
    assert vars(sys)["stdout"] is sys.stdout
