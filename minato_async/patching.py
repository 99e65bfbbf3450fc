"""Putting ours in the place of torch's loader, for programs that build their loaders themselves.

What stands there is a subclass of `MinatoLoader`, made for each `patch()`, which knows the defaults
that were given. It is bound wherever a module holds torch's class under a name, so code that was
imported before gets it too. torch's class itself stays as it is, and so do its subclasses.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import threading
import uuid
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar, TypeVar, cast

# Bound here before anything is patched: whoever needs torch's own class gets it from this module.
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from minato_async.loader import MinatoLoader
from minato_async.options import check_options
from minato_async.seeding.rebinding import rebind
from minato_async.user_warnings import warn_user

__all__ = ["Patch", "TorchLoader", "patch"]

T_co = TypeVar("T_co", covariant=True)

_SIGNATURE = inspect.signature(MinatoLoader.__init__)
#: What belongs to one loader, and so can be no default for all.
_OF_ONE_LOADER = frozenset({"transforms", "pin_memory_device", "device_transform"})
_NEEDS_WORKERS = frozenset(
    {"prefetch_factor", "persistent_workers", "max_queue_size", "max_workers", "sample_timeout"}
)
_NEEDS_MAP_STYLE = frozenset({"sample_timeout", "on_error", "max_displacement", "assignment"})
_NEEDS_ITERABLE = frozenset({"iterable_mode"})
#: How many classes a warning names.
_NAMED = 5

# Guards what follows, and the names that are bound anew.
_patches_lock = threading.Lock()
#: The patches that hold, the one whose class is bound last.
_patches: list[Patch] = []
#: Classes that a warning has named.
_told: set[str] = set()
#: By the name under which their pickles know them.
_stand_ins: weakref.WeakValueDictionary[str, _StandInMeta] = weakref.WeakValueDictionary()


def patch(**defaults: Any) -> Patch:
    """Make code that asks for torch's `DataLoader` get a `MinatoLoader`, from now on.

    ::

        minato_async.patch(in_order=True)  # before the imports of libraries
        import some_library

        with minato_async.patch(seed=1):  # or for a while
            some_library.train()

    It takes the place of torch's class in `torch.utils.data` and in every module that has imported
    it by name. Loaders that exist stay as they are. Patches may be nested: the latest counts, with
    its own defaults only.

    Args:
        defaults: keyword-only arguments of `MinatoLoader`, for loaders that are not given them. One
            that makes no sense for a loader is left out there: `max_queue_size` without workers,
            `on_error` for an iterable dataset.

    Returns:
        A context manager that takes it all back at its end, as its method `undo()` does.

    Raises:
        TypeError: for names that are no such arguments, and values of a wrong type.
        ValueError: for bad values.

    Warns:
        UserWarning: if there are classes that were derived from torch's before. Their loaders
            stay torch's. Each is named once.
    """
    _check(defaults)
    return Patch(defaults)


class Patch:
    """What `patch()` has done, to be taken back.

    Attributes:
        loader: the class that stands in the place of torch's.
        out_of_reach: names of classes that were derived from torch's before, which stay as they
            are.
    """

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        with _patches_lock:
            made: Any = _make_stand_in(uuid.uuid4().hex, dict(defaults))
            self.loader: type[MinatoLoader[Any]] = made
            standing = _standing()
            _patches.append(self)
            try:
                _bind(self.loader, standing)
            except BaseException:  # Ctrl-C: all names or none
                self._take_back()
                raise
            classes = list(_derived_from(TorchLoader))
            self.out_of_reach = tuple(sorted(f"{c.__module__}.{c.__qualname__}" for c in classes))
            news = [name for name in self.out_of_reach if name not in _told]
            _told.update(news)
        if news:
            _warn_out_of_reach(news)

    def undo(self) -> None:
        """Bind torch's class again, or that of the patch before, wherever this one's is bound.

        Loaders that were made meanwhile go on, and so do classes that were derived meanwhile.
        Idempotent; patches may be undone in any order.
        """
        with _patches_lock:
            if self in _patches:
                self._take_back()

    def _take_back(self) -> None:
        _patches.remove(self)
        # Also where a module bound it that was imported meanwhile.
        _bind(_standing(), self.loader)

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()


def _standing() -> type[TorchLoader[Any]]:
    """The class that is bound now."""
    return _patches[-1].loader if _patches else TorchLoader


def _bind(new: type, old: type) -> None:
    rebind({id(old): (old, new)}, but_not="minato_async")


def _derived_from(cls: type) -> Iterator[type]:
    """Subclasses at any depth that are neither torch's nor ours."""
    subclass: type
    for subclass in type.__subclasses__(cls):
        if MinatoLoader not in subclass.__mro__:
            if not subclass.__module__.startswith("torch."):
                yield subclass
            yield from _derived_from(subclass)


def _warn_out_of_reach(names: list[str]) -> None:
    packages = ", ".join(sorted({name.partition(".")[0] for name in names}))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    warn_user(
        "patch() does not reach classes that were derived from torch's DataLoader before: "
        f"{', '.join(names[:_NAMED])}{more}. Their loaders stay torch's. To have ours in them too, "
        f"call patch() before what imports {packages}."
    )


# The defaults


def _check(defaults: Mapping[str, Any]) -> None:
    allowed = {
        name
        for name, parameter in _SIGNATURE.parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in _OF_ONE_LOADER
    }
    for name, value in defaults.items():
        if name not in allowed:
            raise TypeError(
                f"patch() got {name!r}, which is no default for all loaders: these are "
                f"{', '.join(sorted(allowed))}"
            )
        if name == "in_order" and not (value is None or isinstance(value, bool)):
            raise ValueError(f"in_order must be True, False or None, got {value!r}")
        # A loader for which the option makes sense, as far as it is looked at: none is made.
        probe = {key: p.default for key, p in _SIGNATURE.parameters.items()}
        probe |= {"dataset": _Nothing() if name in _NEEDS_ITERABLE else (), "num_workers": 1}
        check_options(cast(Any, SimpleNamespace(**(probe | {name: value}))))


class _Nothing(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _fitting(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `defaults` that a loader gets which was `given` these arguments."""
    workers = given.get("num_workers", 0)
    out = set(given)
    if not workers:
        out |= _NEEDS_WORKERS
    out |= _NEEDS_MAP_STYLE if isinstance(given["dataset"], IterableDataset) else _NEEDS_ITERABLE
    fitting = {name: value for name, value in defaults.items() if name not in out}
    if isinstance(workers, int) and fitting.get("max_workers") is not None:
        fitting["max_workers"] = max(fitting["max_workers"], workers)
    return fitting


# The class


class _StandInMeta(ABCMeta):
    """Makes `isinstance` and `issubclass` answer as with torch's class, in whose place ours stands.

    Classes that are derived from ours have it too, and are not concerned. An `ABCMeta`, whose
    `isinstance` asks `__subclasscheck__`, and which is not in the way of
    `class MyLoader(DataLoader, ABC)`.
    """

    #: Of the class that stands for torch's alone: its name in pickles, and the defaults.
    _made_for: tuple[str, dict[str, Any]]

    def __subclasscheck__(cls, subclass: type) -> bool:
        if _stands_in(cls):
            return issubclass(subclass, TorchLoader)
        return super().__subclasscheck__(subclass)


def _stands_in(cls: type) -> bool:
    return "_made_for" in cls.__dict__


def _make_stand_in(key: str, defaults: dict[str, Any]) -> _StandInMeta:
    class DataLoader(MinatoLoader[T_co], metaclass=_StandInMeta):
        __doc__ = MinatoLoader.__doc__
        __init__ = _constructor(defaults)

        _made_for: ClassVar[tuple[str, dict[str, Any]]] = key, defaults

    DataLoader.__qualname__ = "DataLoader"
    stand_in = _stand_ins[key] = cast(_StandInMeta, DataLoader)
    return stand_in


def _constructor(defaults: Mapping[str, Any]) -> Callable[..., None]:
    plain: Callable[..., None] = MinatoLoader.__init__

    @functools.wraps(plain)
    def __init__(self: MinatoLoader[Any], *args: Any, **kwargs: Any) -> None:
        try:
            given = _SIGNATURE.bind(self, *args, **kwargs).arguments
        except TypeError:
            plain(self, *args, **kwargs)  # says what is wrong
            raise
        plain(self, *args, **kwargs, **_fitting(defaults, given))

    # Some rebuild loaders from what is written here, and would take `*args, **kwargs` for all that
    # there is.
    parameters = [
        parameter.replace(default=defaults.get(name, parameter.default))
        for name, parameter in _SIGNATURE.parameters.items()
    ]
    __init__.__signature__ = _SIGNATURE.replace(  # type: ignore[attr-defined]
        parameters=parameters
    )
    return __init__


def _find_stand_in(key: str, defaults: dict[str, Any]) -> _StandInMeta:
    """The class of a loader that was pickled, made anew where the patch does not hold."""
    with _patches_lock:
        return _stand_ins.get(key) or _make_stand_in(key, defaults)


def _pickled_class(cls: _StandInMeta) -> str | tuple[Any, ...]:
    # Under the name by which others find it there is torch's class, in another process at least.
    return (_find_stand_in, cls._made_for) if _stands_in(cls) else cls.__qualname__


copyreg.pickle(_StandInMeta, _pickled_class)
