"""What a program needs to be imported, read from its source: every module of ours that it can reach, and every foreign package that those name.

Imports inside functions count, as they happen sooner or later. Those that the code itself is ready to miss (`try: ... except ImportError`) and those
for type checkers do not.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

OURS = ("shoal", "shoal_operator")


@cache
def source_of(module: str) -> Path | None:
    """The file of a module, found without importing anything, or None when the name is none of a module written in Python."""
    top, *rest = module.split(".")
    spec = PathFinder.find_spec(top)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder).joinpath(*rest)
        for candidate in (path / "__init__.py", path.with_suffix(".py")):
            if candidate.is_file():
                return candidate
    return None


def _is_guard(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
    if isinstance(node, ast.Try):
        caught = " ".join(ast.unparse(each.type) for each in node.handlers if each.type is not None)
        return "ImportError" in caught or "ModuleNotFoundError" in caught
    return False


@cache
def _imported(path: Path, package: str) -> tuple[str, ...]:
    return tuple(_imports(ast.parse(path.read_text()), package))


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    """Every name that an import statement below this node names, dotted; `from a import b` gives `a` and `a.b`."""
    for child in ast.iter_child_nodes(node):
        if _is_guard(child):
            continue
        if isinstance(child, ast.Import):
            yield from (each.name for each in child.names)
        elif isinstance(child, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - child.level + 1]) if child.level else ""
            origin = ".".join(filter(None, [base, child.module]))
            yield origin
            yield from (f"{origin}.{each.name}" for each in child.names)
        else:
            yield from _imports(child, package)


def closure(entry: str) -> tuple[set[str], dict[str, set[str]]]:
    """Modules of ours that `python -m entry` can reach, and foreign packages with the modules that name them. ValueError for no module."""
    start = f"{entry}.__main__" if source_of(f"{entry}.__main__") else entry
    if source_of(start) is None:
        raise ValueError(f"{entry} is no module that can be run")
    waiting, seen, foreign = [start], set[str](), dict[str, set[str]]()
    while waiting:
        module = waiting.pop()
        path = source_of(module)
        if module in seen or path is None:
            continue
        seen.add(module)
        # A package is imported before its modules.
        waiting += [module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)]
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for name in _imported(path, package):
            top = name.partition(".")[0]
            if top in OURS:
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                foreign.setdefault(top, set()).add(module)
    return seen, foreign


def is_runnable(entry: str) -> bool:
    """Whether `python -m entry` finds something to run, ours or not."""
    path = source_of(f"{entry}.__main__") or source_of(entry)
    return path is not None and path.name != "__init__.py"
