"""A program for `test_interrupt`: Ctrl-C reaches it at a moment of its own choice.

python -m tests.lifetime.interrupts FOLDER CASE...

With "-no-uvloop" after its name, a case does without uvloop.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch  # noqa: F401 - for all children alike

from tests.forked import fork_each

NO_UVLOOP = "-no-uvloop"
_PATIENCE = 60.0
#: Seconds that a case may take, on a machine that may be busy.
_LIFETIME = 240.0


class Held:
    """Samples that come only after `let_go` was set."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        self.let_go.wait(_PATIENCE)
        return index


def innermost(frame: FrameType | None) -> str:
    """The Python function that a thread is in, as 'module.function'."""
    assert frame is not None
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"


def press_ctrl_c_once(inside: Callable[[str], bool]) -> None:
    """Send SIGINT as soon as the main thread is in a function that `inside` says yes to."""
    main = threading.main_thread().ident
    assert main is not None

    def watch() -> None:
        while not inside(innermost(sys._current_frames()[main])):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def waits_for_batch(function: str) -> bool:
    return function == "minato_async.engine.bell.wait"


def loader(dataset: Any, **options: Any) -> Any:
    from minato_async import MinatoLoader  # not before it is known whether there is uvloop

    return MinatoLoader(
        dataset, **({"num_workers": 2, "batch_size": 2, "executor": "thread"} | options)
    )


def waiting() -> None:
    iterator = iter(loader(Held()))
    press_ctrl_c_once(waits_for_batch)
    next(iterator)


def waiting_in_a_loop() -> None:
    press_ctrl_c_once(waits_for_batch)
    for _ in loader(Held(), persistent_workers=True):
        raise AssertionError


def goes_on() -> None:
    dataset = Held()
    iterator = iter(loader(dataset, in_order=True))
    for _ in range(3):
        press_ctrl_c_once(waits_for_batch)
        try:
            next(iterator)
        except KeyboardInterrupt:
            print("interrupted")
    dataset.let_go.set()
    print([sample for batch in iterator for sample in batch.tolist()])


def waiting_for_the_sampler() -> None:
    """A sampler that is stuck: Ctrl-C must not wait until all it drew before is delivered."""

    class Stuck:
        def __iter__(self) -> Iterator[int]:
            yield from range(16)
            stuck_in_the_sampler()

        def __len__(self) -> int:
            return 20

    press_ctrl_c_once(lambda function: function.endswith(".stuck_in_the_sampler"))
    taken = 0
    try:
        for _ in loader(range(20), sampler=Stuck()):
            taken += 1
    finally:
        print("at once" if taken < 8 else f"after {taken} batches")


def stuck_in_the_sampler() -> None:
    for _ in range(10_000):
        time.sleep(0.01)


def in_asyncio() -> None:
    async def train() -> None:
        waiting = False

        async def ctrl_c() -> None:
            while not waiting:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGINT)

        keep = asyncio.ensure_future(ctrl_c())
        iterator = aiter(loader(Held()))
        waiting = True
        await anext(iterator)
        await keep

    asyncio.run(train())


def at_any_moment() -> None:
    """Ctrl-C again and again, wherever the main thread may be. What is in hand at that moment may
    be lost, but nothing comes twice, nothing hangs, and the rest comes."""
    rng = random.Random(0)
    interrupted = 0
    for options in (
        {"num_workers": 1, "prefetch_factor": 1},
        {"num_workers": 2, "in_order": False},
        {"num_workers": 2, "max_queue_size": 1, "persistent_workers": True},
    ):
        for _ in range(30):
            interrupted += epoch_with_interrupts(rng, options)
    while any(thread.name.startswith("minato-") for thread in threading.enumerate()):
        time.sleep(0.01)
    print("done" if interrupted > 100 else f"only {interrupted} interrupts")


class Button:
    """Presses Ctrl-C at random moments, while armed."""

    def __init__(self, rng: random.Random) -> None:
        self.armed = False
        self.pressed = 0
        self._rng = rng
        self._main = threading.main_thread().ident
        self._over = threading.Event()
        self._presser = threading.Thread(target=self._press)

    def __enter__(self) -> Button:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        self._presser.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.armed = False
        self._over.set()
        self._presser.join()
        signal.signal(signal.SIGINT, self._before)

    def _press(self) -> None:
        assert self._main is not None
        while not self._over.wait(self._rng.expovariate(500)):
            signal.pthread_kill(self._main, signal.SIGINT)

    def _interrupt(self, number: int, frame: object) -> None:
        if self.armed:
            self.pressed += 1
            raise KeyboardInterrupt


def epoch_with_interrupts(rng: random.Random, options: dict[str, Any]) -> int:
    """Go through an epoch, and on after every interrupt; returns how many there were."""
    seen: Counter[int] = Counter()
    iterator = iter(loader(range(2000), batch_size=4, **options))
    going_on = True
    with Button(rng) as button:
        while going_on:
            try:
                button.armed = True
                for batch in iterator:
                    seen.update(batch.tolist())
                going_on = button.armed = False
            except KeyboardInterrupt:
                button.armed = False
            except RuntimeError as error:
                # The sampler, a generator, was hit, and has ended by it; or the engine itself.
                going_on = button.armed = False
                if "KeyboardInterrupt" not in f"{error} {error.__cause__}":
                    raise
    assert max(seen.values(), default=1) == 1, seen.most_common(3)
    return button.pressed


CASES = {
    case.__name__: case
    for case in (
        waiting,
        waiting_in_a_loop,
        goes_on,
        waiting_for_the_sampler,
        in_asyncio,
        at_any_moment,
    )
}

if __name__ == "__main__":
    if case := fork_each(Path(sys.argv[1]), sys.argv[2:], at_once=8, lifetime=_LIFETIME):
        if case.endswith(NO_UVLOOP):
            sys.modules["uvloop"] = None  # type: ignore[assignment]
        CASES[case.removesuffix(NO_UVLOOP)]()
