"""Running a script or a module as Python itself would."""

import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

import minato_async


class CannotStart(Exception):
    """There is nothing to run; `status` is what Python would exit with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Script:
    """What ``python SCRIPT ARGS`` or ``python -m MODULE ARGS`` runs."""

    def __init__(self, command: Sequence[str], is_module: bool) -> None:
        self._name, *self._arguments = command
        self._is_module = is_module
        self._main = ModuleType("__main__")

    def run(self) -> None:
        """Run it in this process, as its main module. What it raises comes out.

        A traceback that Python prints in the end shows the script's frames and not ours.

        Raises:
            CannotStart: if it is not there.
        """
        # Before the path is set: where the package is run in place, it is found through the folder
        # that the script's own takes the place of. Processes that are started afresh need it.
        home = os.path.dirname(os.path.dirname(os.path.abspath(minato_async.__file__)))
        # `multiprocessing` asks the main module where it is from, when it starts a process afresh.
        sys.modules["__main__"] = self._main
        try:
            code = self._module_code() if self._is_module else self._script_code()
            if home not in sys.path:
                sys.path.append(home)
            exec(code, vars(self._main))
        except (CannotStart, SystemExit):
            raise
        except BaseException:
            self._hide_our_frames()
            raise

    def _script_code(self) -> CodeType:
        # As Python makes it absolute: it is shown to the script, and in tracebacks.
        path = os.path.join(os.getcwd(), self._name.removeprefix("./"))
        try:
            with io.open_code(path) as file:
                source = file.read()
        except OSError as error:
            reason = f"[Errno {error.errno}] {error.strerror}"
            raise CannotStart(f"can't open file {path!r}: {reason}", 2) from None
        sys.argv[:] = [self._name, *self._arguments]
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.realpath(path))
        self._set_names(None, path)
        self._main.__loader__ = SourceFileLoader("__main__", path)
        return compile(source, path, "exec", dont_inherit=True)

    def _module_code(self) -> CodeType:
        sys.argv[:] = ["-m", *self._arguments]  # what packages see that are imported on the way
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd()
        spec, name = self._find(self._name), self._name
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{self._name}.__main__"
            spec = self._find(name)
        get_code = getattr(spec and spec.loader, "get_code", None)
        code = get_code(name) if get_code is not None else None
        if spec is None or code is None:
            raise CannotStart(f"there is no module {name!r} that can be run", 1)
        sys.argv[0] = spec.origin or self._name
        self._set_names(spec, spec.origin)
        self._main.__loader__ = spec.loader
        return code  # type: ignore[no-any-return]

    def _find(self, name: str) -> ModuleSpec | None:
        try:
            return importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            # A package on the way is missing, and not something that it imports.
            if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                return None
            raise

    def _set_names(self, spec: ModuleSpec | None, path: str | None) -> None:
        main: Any = self._main
        main.__spec__ = spec
        main.__package__ = None if spec is None else spec.parent
        main.__cached__ = None if spec is None else spec.cached
        main.__file__ = path

    def _hide_our_frames(self) -> None:
        hook = sys.excepthook

        def shorter_hook(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            sys.excepthook = hook
            shorter = self._own_part(error, traceback)
            hook(kind, error.with_traceback(shorter), shorter)

        sys.excepthook = shorter_hook

    def _own_part(
        self, error: BaseException, traceback: TracebackType | None
    ) -> TracebackType | None:
        part = traceback
        while part is not None and part.tb_frame.f_globals is not vars(self._main):
            part = part.tb_next
        if part is None and not isinstance(error, SyntaxError):
            return traceback  # it was not begun: a package on the way failed
        return part
