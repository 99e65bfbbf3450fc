"""How long a script waits for data: counted from outside, so that it costs nothing elsewhere."""

import functools
import sys
import sysconfig
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader as torch_module

from minato_async.iteration.iterators import EngineIterator, SerialIterator
from minato_async.lifecycle.gil_watch import gil_is_on, module_that_turned_it_on
from minato_async.loader import MinatoLoader


class _Tally:
    """What some iterators have done in this process. All under `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seconds = 0.0
        self.batches = 0
        #: How many loaders there were, by description.
        self.loaders: Counter[str] = Counter()
        self._known: dict[int, weakref.ref[Any]] = {}

    def add(self, begun: float, batches: int) -> None:
        seconds = time.perf_counter() - begun
        with self.lock:
            self.seconds += seconds
            self.batches += batches

    def see(self, loader: Any, description: str) -> None:
        """`loader` is being iterated. Each is counted once; it need not be hashable."""
        with self.lock:
            known = self._known.get(id(loader))
            # A reference to another, which has died, means nothing.
            if known is None or known() is not loader:
                self._known[id(loader)] = weakref.ref(loader)
                self.loaders[description] += 1


class DataWait:
    """Counts the time inside `next()` of our iterators, and of those that are torch's still."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._ours = _Tally()
        self._torchs = _Tally()

    def count(self) -> None:
        """Count from now on, in this process. It cannot be ended."""
        see_ours, see_torchs = self._ours.see, self._torchs.see

        def new_iterator(self: MinatoLoader[Any]) -> Any:
            iterator = make(self)
            see_ours(self, "with workers" if self.num_workers else "without workers")
            return iterator

        def torchs_init(self: Any, loader: Any) -> None:
            init(self, loader)
            kind = type(loader)
            see_torchs(loader, f"{kind.__module__}.{kind.__qualname__}")

        # Where all iterators of ours come from, and all of torch's: libraries that make these by
        # themselves are not seen elsewhere.
        torchs: Any = torch_module._BaseDataLoaderIter
        make, init = MinatoLoader._get_iterator, torchs.__init__
        _replace(MinatoLoader, "_get_iterator", functools.wraps(make)(new_iterator))
        _replace(torchs, "__init__", functools.wraps(init)(torchs_init))
        _replace(torchs, "__next__", _timed(torchs.__next__, self._torchs))
        for ours in (EngineIterator, SerialIterator):
            _replace(ours, "__next__", _timed(ours.__next__, self._ours))
        _replace(EngineIterator, "__anext__", _timed_async(EngineIterator.__anext__, self._ours))

    def report(self) -> None:
        """Say it on standard error."""
        seconds = time.perf_counter() - self._begun
        for line in self.lines(seconds):
            print(f"minato-async: {line}", file=sys.stderr)
        sys.stderr.flush()

    def lines(self, seconds: float) -> list[str]:
        """What there is to say of a run that took `seconds`."""
        ours, torchs = self._ours, self._torchs
        waited = ours.seconds + torchs.seconds
        share = 100 * waited / seconds if seconds else 0.0
        lines = [
            f"waited {waited:.2f} s for data, inside next(): {share:.0f} % of {seconds:.2f} s",
            f"{_number(ours.batches, 'batch')} from "
            f"{_number(ours.loaders.total(), 'MinatoLoader')}",
        ]
        if serial := ours.loaders["without workers"]:
            lines[1] += f", {serial} of them without workers (num_workers=0)"
        if torchs.loaders:
            kinds = ", ".join(f"{count} of {kind}" for kind, count in torchs.loaders.items())
            lines.append(
                f"not reached: {_number(torchs.batches, 'batch')}, {torchs.seconds:.2f} s of the "
                f"waiting, from torch's own iterators of {kinds}"
            )
        else:
            lines.append("no loader of this process was out of reach")
        if sysconfig.get_config_var("Py_GIL_DISABLED") and gil_is_on():
            module = module_that_turned_it_on()
            cause = "" if module is None else f", since {module!r} was imported"
            lines.append(f"the GIL was on{cause}: start with PYTHON_GIL=0 to have it off")
        return lines


def _replace(cls: type, name: str, function: Callable[..., Any]) -> None:
    setattr(cls, name, function)


def _timed(method: Callable[[Any], Any], tally: _Tally) -> Callable[[Any], Any]:
    @functools.wraps(method)
    def timed(self: Any) -> Any:
        begun = time.perf_counter()
        try:
            batch = method(self)
        except BaseException:
            # Whoever keeps the exception must not keep the iterator by it, and its workers.
            del self
            tally.add(begun, 0)
            raise
        tally.add(begun, 1)
        return batch

    return timed


def _timed_async(method: Callable[[Any], Any], tally: _Tally) -> Callable[[Any], Any]:
    @functools.wraps(method)
    async def timed(self: Any) -> Any:
        begun = time.perf_counter()
        try:
            batch = await method(self)
        except BaseException:
            del self
            tally.add(begun, 0)
            raise
        tally.add(begun, 1)
        return batch

    return timed


def _number(count: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"
