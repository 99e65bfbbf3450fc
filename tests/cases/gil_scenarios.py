"""A program for `test_gil_watch`: ways in which a process may come to have its GIL on.

    python -m tests.cases.gil_scenarios FOLDER SCENARIO...

Forks a child for each scenario, which spares it the import of torch, and prints a JSON object:
what each wrote to its standard error. FOLDER is where the extension modules lie that need the GIL.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch.utils.data


def load(num_workers: int = 1, dataset: Any = range(4), **options: Any) -> Any:
    from minato_async import MinatoLoader

    loader = MinatoLoader(dataset, num_workers=num_workers, **options)
    assert len(list(loader)) == 4
    return loader


def turn_on(module: str = "needs_gil") -> None:
    importlib.import_module(module)


# The scenarios


def nothing() -> None:
    load()


def before_minato_is_imported() -> None:
    assert "minato_async" not in sys.modules
    turn_on()
    load()


def before_the_loader_is_made() -> None:
    importlib.import_module("minato_async")
    turn_on()
    load()


def between_two_epochs() -> None:
    loader = load()
    turn_on()
    list(loader)


def between_two_epochs_of_persistent_workers() -> None:
    loader = load(persistent_workers=True)
    turn_on()
    list(loader)


def iterable() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(4))

    loader = load(dataset=Stream())
    turn_on()
    list(loader)


def many_loaders_from_many_threads() -> None:
    turn_on()
    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load()


def first_of_two() -> None:
    turn_on()
    turn_on("needs_gil_too")
    load()


def warning_was_ignored() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        turn_on()
    load()


def warning_was_recorded_elsewhere() -> None:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        turn_on()
        turn_on("needs_gil_too")
    load()


def import_failed() -> None:
    try:
        turn_on("needs_gil_and_fails")
    except ImportError:
        load()


def no_trace_is_left() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        turn_on()
    del sys.modules["needs_gil"]
    load()


def without_workers() -> None:
    turn_on()
    load(num_workers=0)


def warnings_are_errors() -> None:
    turn_on()
    warnings.simplefilter("error")
    try:
        load()
    except RuntimeWarning as warning:
        print(f"raised {warning}", file=sys.stderr)
    assert not [t for t in threading.enumerate() if t.name.startswith("minato-")]
    load()


def run(scenario: Callable[[], None], folder: str) -> str:
    """What a child writes to its standard error in `scenario`."""
    with tempfile.TemporaryFile("w+") as errors:
        if (pid := os.fork()) == 0:
            os.dup2(errors.fileno(), 2)
            sys.path.insert(0, folder)
            scenario()
            sys.stderr.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        errors.seek(0)
        text = errors.read()
        return text if status == 0 else f"exit status {status}\n{text}"


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    # One needs a process without minato_async and goes first; the others are spared the import.
    names.sort(key=lambda name: name != before_minato_is_imported.__name__)
    written = {}
    for name in names:
        written[name] = run(globals()[name], folder)
        importlib.import_module("minato_async")
    print(json.dumps(written))
