"""Running a piece of work as a sample, on a thread of its own."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from minato_async.seeding import SampleStreams, install, sample_seed

T = TypeVar("T")
ROOT = Path(__file__).parents[2]

install()


def on_thread(work: Callable[[], T]) -> T:
    """What `work` returns on a new thread; raises what it raises."""
    results: list[T] = []
    errors: list[BaseException] = []

    def main() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def new_streams(seed: int = 0) -> SampleStreams:
    """Streams whose samples are those of the base seed `seed`, with integers for tickets."""
    streams = SampleStreams()
    streams.begin(functools.partial(sample_seed, seed, 0))
    return streams


def draw_something() -> None:
    """Leave every generator of the thread in some state, with second normal values pending."""
    random.random()
    random.gauss(0, 1)
    np.random.randn()
    torch.rand(3)
    torch.randn(1)


def as_sample(work: Callable[[], T], ticket: int = 1, *, seed: int = 0, after: int = 0) -> T:
    """What `work` returns as the sample `ticket`, on a new thread that ran `after` others."""

    def main() -> T:
        streams = new_streams(seed)
        with streams.active():
            for other in range(1000, 1000 + after):
                streams.ticket = other
                draw_something()
            streams.ticket = ticket
            return work()

    return on_thread(main)


def global_state() -> tuple[Any, ...]:
    """The state of the process-wide generators, as the calling thread sees them."""
    name, key, *rest = np.random.get_state()
    return random.getstate(), (name, bytes(key), *rest), bytes(torch.get_rng_state().tolist())


def plain(value: Any) -> Any:
    """The same value in types that compare by equality, bit for bit."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return value


def python(script: str, *options: str) -> str:
    """What a fresh interpreter prints that runs the script."""
    command = [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=270)
    assert done.returncode == 0, done.stderr
    return done.stdout
