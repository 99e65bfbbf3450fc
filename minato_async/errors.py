"""Errors of user code, on their way to the consumer with a note of where they came from."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from minato_async.checkpoint import SampleCancelled

#: A batch may hold thousands of samples; a message that lists them all helps nobody.
_LISTED = 8


class WorkerSetupError(Exception):
    """A worker could not be set up; `error` is what the user is to see: what `worker_init_fn`
    raised, say."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Unmade:
    """An error that is made when it is to be raised. What it says shows keys of the user's: that
    may happen neither under the engine's lock nor on the event loop. It can be pickled."""

    def __init__(self, make: Callable[..., BaseException], *args: Any) -> None:
        self._make = make
        self._args = args

    def unpack(self) -> BaseException:
        return self._make(*self._args)


def took_too_long(index: Any, seconds: float) -> TimeoutError:
    """What becomes of a sample that `sample_timeout` has ended."""
    return TimeoutError(f"sample index {shown(index)} took longer than sample_timeout={seconds} s")


def name_sample(error: BaseException, index: Any, step: str, worker: str) -> BaseException:
    """`error` with a note naming the sample. The message itself stays as the user wrote it.

    A `StopIteration`, or its async sister, becomes the cause of a `RuntimeError`: raised from
    `next()` it would end the epoch without a word.
    """
    error = _no_stop(error, step)
    _note(error, f"minato_async: sample index {shown(index)}, step {step}, worker {worker}")
    return error


def name_transform(number: int, transform: Any) -> str:
    """Names the step that is `transforms[number]`."""
    return f"transforms[{number}] ({getattr(transform, '__qualname__', type(transform).__name__)})"


def name_read(error: BaseException, where: str, step: str, worker: str) -> BaseException:
    """As `name_sample`, for what an iterable dataset raised while it was read: `where` names the
    sample by its place."""
    error = _no_stop(error, step)
    _note(error, f"minato_async: {where}, step {step}, worker {worker}")
    return error


def name_batch(
    error: BaseException,
    indices: Sequence[Any],
    samples: Sequence[Any],
    worker: str,
    doing: str = "collating",
) -> BaseException:
    """`error`, raised while `doing` something with a batch, with a note naming its samples and,
    where they differ from the first in shape or type, which one does."""
    error = _no_stop(error, "collate_fn" if doing == "collating" else doing)
    _note(error, f"minato_async: {doing} {shown_batch(indices)}, worker {worker}")
    # Samples may be of any class: what goes wrong in describing them must not hide the error.
    with _whatever_it_raises():
        if odd := _odd_one_out(indices, samples):
            _note(error, f"minato_async: {odd}")
    return error


def shown_batch(indices: Sequence[Any]) -> str:
    """Names a batch by the `indices` of its samples."""
    listed = ", ".join(shown(index) for index in indices[:_LISTED])
    more = f" and {len(indices) - _LISTED} more" if len(indices) > _LISTED else ""
    return f"samples with indices [{listed}{more}]"


def forget_frames(error: BaseException) -> None:
    """`error` is to be kept for long. Its traceback becomes a note, and so do those of the errors
    that it came from: they would keep all variables of all functions that were running, and of
    those that had called them."""
    if all(linked.__traceback__ is None for linked in linked_errors(error)):
        return
    with _whatever_it_raises():
        trace = error.__traceback__
        while trace is not None and _is_ours(trace.tb_frame):
            trace = trace.tb_next
        if len(linked_errors(error)) == 1:
            lines = traceback.format_list(traceback.extract_tb(trace))
        else:
            lines = traceback.format_exception(type(error), error, trace)
        _note(error, "minato_async: it was raised at\n" + "".join(lines).rstrip())
    for linked in linked_errors(error):
        linked.__traceback__ = None
        if type(linked) is AttributeError:
            linked.obj = None


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("minato_async.")


def linked_errors(error: BaseException) -> list[BaseException]:
    """`error` and all that it came from or consists of."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and all(one is not other for other in found):
            found.append(one)
            left += [one.__cause__, one.__context__]
            if isinstance(one, BaseExceptionGroup):
                left += one.exceptions
    return found


def _no_stop(error: BaseException, step: str) -> BaseException:
    if not isinstance(error, (StopIteration, StopAsyncIteration)):
        return error
    wrapped = RuntimeError(f"{step} raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def _note(error: BaseException, note: str) -> None:
    # A dataset may raise one exception object over and over: it must not collect notes for ever.
    with _whatever_it_raises():
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def shown(index: Any) -> str:
    """`repr(index)`, whatever that raises."""
    text = f"<{type(index).__name__}>"
    with _whatever_it_raises():
        text = repr(index)
    return text


@contextlib.contextmanager
def _whatever_it_raises() -> Iterator[None]:
    """For code of the user's that is only to describe something."""
    try:
        yield
    except SampleCancelled:
        raise
    except BaseException:
        pass


def _odd_one_out(indices: Sequence[Any], samples: Sequence[Any]) -> str | None:
    if not samples:
        return None
    first = describe(samples[0])
    for index, sample in zip(indices, samples, strict=False):
        if (other := describe(sample)) != first:
            return (
                f"sample index {shown(index)} is {other}, "
                f"but sample index {shown(indices[0])} is {first}"
            )
    return None


def describe(sample: Any) -> str:
    """The structure of a sample in a few words: types, shapes and dtypes, no values."""
    if isinstance(sample, torch.Tensor):
        return f"tensor{tuple(sample.shape)} {str(sample.dtype).removeprefix('torch.')}"
    if hasattr(sample, "shape") and hasattr(sample, "dtype"):
        return f"{type(sample).__name__}{tuple(sample.shape)} {sample.dtype}"
    if isinstance(sample, dict):
        parts = ", ".join(f"{key!r}: {describe(value)}" for key, value in sample.items())
        return f"{{{parts}}}"
    if isinstance(sample, (list, tuple)):
        return f"{type(sample).__name__}({', '.join(describe(part) for part in sample)})"
    return type(sample).__name__
