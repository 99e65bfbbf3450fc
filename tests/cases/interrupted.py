"""A program for `test_stopping`: waits for batches that never come, until Ctrl-C.

    python -m tests.cases.interrupted WAY...

Forks a child for each way to wait, "serial", "sync" or "async". Of each, as JSON lines, it prints
its process when it waits inside `next()`, that it was interrupted when the exception has arrived
there, and in the end its status and what it wrote to its standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from typing import Any

from minato_async import MinatoLoader
from minato_async.engine.engine import Engine

#: Never set.
_never = threading.Event()


def say(event: str, **more: Any) -> None:
    line = json.dumps({"event": event, "way": way, "process": os.getpid()} | more) + "\n"
    os.write(1, line.encode())


class Stuck:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if way == "serial":
            say("waiting")
        _never.wait()
        return index


def say_when_waiting() -> None:
    """Says "waiting" when the consumer has asked for a batch and found none."""
    pop = Engine._pop

    def told(*arguments: Any) -> Any:
        found = pop(*arguments)
        if len(arguments) == 4:  # with a bell to be rung by
            say("waiting")
        return found

    Engine._pop = told  # type: ignore[method-assign]


def wait_for_a_batch() -> None:
    dataset: Any = Stuck()
    iterator = iter(MinatoLoader(dataset, num_workers=0 if way == "serial" else 2))
    try:
        if way == "async":
            asyncio.run(_wait_in_a_coroutine(iterator))
        else:
            next(iterator)
    except KeyboardInterrupt:
        say("interrupted")
        raise


async def _wait_in_a_coroutine(iterator: Any) -> None:
    await anext(iterator)


def main() -> None:
    """Returns in the parent; raises in the children, which do not clean up."""
    global way
    children = {}
    for way in sys.argv[1:]:
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read when the child has ended
        if (pid := os.fork()) == 0:
            os.dup2(errors.fileno(), 2)
            say_when_waiting()
            wait_for_a_batch()
        children[pid] = way, errors
    while children:
        pid, status = os.wait()
        way, errors = children.pop(pid)
        errors.seek(0)
        say("ended", status=os.waitstatus_to_exitcode(status), errors=errors.read())


if __name__ == "__main__":
    way = ""
    main()
