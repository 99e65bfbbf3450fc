"""Who imports whom: no circles, and what each folder may know.

Found by parsing, so that imports under `TYPE_CHECKING` and inside functions count as well: a circle
of types is a circle to whoever reads.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "minato_async"
ROOT = Path(__file__).parents[1] / PACKAGE

#: What modules in a folder must not import.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    # The engine knows no executor, nothing of how samples are made, and no torch.
    "engine": (
        "torch",
        "executors",
        "sample",
        "shards",
        "replicas",
        "process_wide",
        "seeding",
        "device",
        "resuming",
        "iteration",
        "loader",
        "options",
    ),
    # Policies are asked by the engine, and know nothing of it.
    "scheduling": (
        "torch",
        "engine",
        "executors",
        "sample",
        "shards",
        "replicas",
        "process_wide",
        "seeding",
        "device",
        "resuming",
        "iteration",
        "loader",
        "options",
    ),
    "lifecycle": (
        "engine",
        "scheduling",
        "executors",
        "sample",
        "shards",
        "replicas",
        "process_wide",
        "seeding",
        "device",
        "resuming",
        "iteration",
        "loader",
        "options",
    ),
    "replicas": (
        "engine",
        "executors",
        "sample",
        "shards",
        "seeding",
        "device",
        "resuming",
        "iteration",
        "loader",
        "options",
    ),
    "seeding": (
        "executors",
        "sample",
        "shards",
        "replicas",
        "process_wide",
        "device",
        "resuming",
        "iteration",
        "loader",
        "options",
    ),
    # What is saved, and whether it can be loaded: the iterators do both.
    "resuming": (
        "engine",
        "executors",
        "sample",
        "shards",
        "replicas",
        "process_wide",
        "iteration",
        "loader",
        "options",
    ),
    "process_wide": (
        "engine",
        "executors",
        "sample",
        "shards",
        "replicas",
        "device",
        "resuming",
        "iteration",
        "loader",
        "options",
    ),
    "sample": ("executors", "shards", "device", "resuming", "iteration", "loader", "options"),
    # Moves batches, and knows nothing of how they are made.
    "device": (
        "engine",
        "executors",
        "shards",
        "replicas",
        "process_wide",
        "resuming",
        "iteration",
        "loader",
        "options",
    ),
    "shards": ("executors", "iteration", "loader", "options"),
    "executors": ("iteration", "loader"),
    "executors.thread": ("executors.process", "executors.factory"),
    "executors.process": ("executors.thread", "executors.factory"),
    # How values travel: nothing of jobs.
    "executors.process.transport": ("engine", "sample", "shards", "replicas", "seeding", "options"),
    # Which executor loads is the affair of `executors.factory`.
    "iteration": ("loader", "executors.thread", "executors.process"),
    "": ("cli",),
}
#: They are to go: whoever removes one removes it here.
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "iteration.iterators": ("executors.process.transport.failures",),
    "iteration.iterable": ("executors.process.worker_shards",),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def names_imported(source: str, package: str) -> Iterator[str]:
    """Every name that `source` imports, in full; `package` is the one that it belongs to."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join([*parts, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_of(module: str) -> set[str]:
    """What `module` imports: modules of the package by their names in it, and other packages."""
    path = MODULES[module]
    full = f"{PACKAGE}.{module}" if module else PACKAGE
    package = full if path.name == "__init__.py" else full.rpartition(".")[0]
    found = set()
    for name in names_imported(path.read_text(), package):
        if name.partition(".")[0] != PACKAGE:
            found.add(name.partition(".")[0])
            continue
        own = name.partition(".")[2]
        # A name from a module, or a module itself.
        found.add(own if own in MODULES else own.rpartition(".")[0])
    return found - {module}


IMPORTS = {module: imports_of(module) for module in MODULES}


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, by whatever way (Tarjan's components)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for other in sorted(imports[module] & imports.keys()):
            if other not in numbers:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], numbers[other])
        if lowest[module] == numbers[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in imports:
        if module not in numbers:
            visit(module)
    return found


def within(module: str, folders: tuple[str, ...]) -> bool:
    return any(module == folder or module.startswith(f"{folder}.") for folder in folders)


def test_no_modules_import_each_other() -> None:
    # The commands of the command line are imported when they are called.
    library = {module: found for module, found in IMPORTS.items() if not within(module, ("cli",))}
    assert circles(library) == []


def folder_of(module: str) -> str:
    """Modules at the top are folders of their own; the executors are apart from each other."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "executors" else parts[0]


def test_no_folders_import_each_other() -> None:
    folders: dict[str, set[str]] = {}
    for module, found in IMPORTS.items():
        if not within(module, ("cli",)):
            folders.setdefault(folder_of(module), set()).update(folder_of(o) for o in found)
    assert circles({folder: found - {folder} for folder, found in folders.items()}) == []


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_folders_know_only_what_they_may(folder: str) -> None:
    found = {
        (module, other)
        for module, imported in IMPORTS.items()
        if (within(module, (folder,)) if folder else not within(module, ("cli",)))
        for other in imported
        if within(other, FORBIDDEN[folder]) and not within(other, (folder or "-",))
    }
    allowed = {
        (module, other)
        for module, other in found
        for where, others in EXCEPTIONS.items()
        if within(module, (where,)) and other in others
    }
    assert found == allowed


def test_every_exception_is_needed() -> None:
    needed = {
        (where, other)
        for where, others in EXCEPTIONS.items()
        for other in others
        if any(within(m, (where,)) and other in imported for m, imported in IMPORTS.items())
    }
    assert needed == {(where, other) for where, others in EXCEPTIONS.items() for other in others}


def test_circles_are_found_in_whatever_form_they_are_imported() -> None:
    sources = {
        "a": "if TYPE_CHECKING:\n    from minato_async.b import B",
        "b": "def f():\n    import minato_async.c",
        "c": "from . import a",
        "d": "from minato_async import a",
    }
    imports = {
        name: {found.split(".")[1] for found in names_imported(source, PACKAGE) if "." in found}
        for name, source in sources.items()
    }
    assert circles({name: found & sources.keys() for name, found in imports.items()}) == [
        ["a", "b", "c"]
    ]
