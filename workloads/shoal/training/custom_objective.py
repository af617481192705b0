"""A run's own objective, `recipe.algorithm.custom`: found by import path, held against its digest, then executed. Called by `objectives`.

In: `package.module:NAME` and the SHA-256 of the module's file. Out: its `Objective`. The bytes that were digested are the bytes that run; nothing of
the module, nor of its parent packages, runs before. The digest covers that one file: what it imports is the image's.
"""

import functools
import hashlib
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType

from shoal.training.loss import Objective


class _DigestedFile(SourceFileLoader):
    """Executes the bytes that it is given: neither what the file has become since, nor a compiled copy beside it."""

    def __init__(self, name: str, file: Path, data: bytes) -> None:
        super().__init__(name, str(file))
        self._data = data

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._data, self.path)
        return code


class BadObjective(ValueError):
    """The run's own objective is not there, not what its digest says, or no objective."""


@functools.cache
def load_objective(path: str, sha256: str) -> Objective:
    """The objective at an import path. Raises BadObjective, before anything of the module runs if the digest differs."""
    name, _, attribute = path.partition(":")
    where = f"recipe.algorithm.custom.path {path!r}"
    file = _source(name)
    if file is None:
        raise BadObjective(f"{where}: the trainer's image has no module {name!r} as a .py file; install it there")
    data = file.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise BadObjective(
            f"{where}: {file} has SHA-256 {found}, the recipe says {sha256}; give the right digest, or install the right file"
        )
    loader = _DigestedFile(name, file, data)
    spec = spec_from_file_location(name, file, loader=loader)
    assert spec is not None  # a loader was given
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BadObjective(f"{where}: the module cannot be executed: {type(error).__name__}: {error}") from error
    objective = getattr(module, attribute, None)
    if not isinstance(objective, Objective):
        raise BadObjective(
            f"{where}: {attribute} is {type(objective).__name__}; allowed: an Objective of shoal.training.loss"
        )
    return objective


def _source(name: str) -> Path | None:
    """The file of a module, found without importing its packages."""
    places: list[str] | None = None
    spec: ModuleSpec | None = None
    for end in [index for index, letter in enumerate(name) if letter == "."] + [len(name)]:
        spec = PathFinder.find_spec(name[:end], places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or [])
    file = Path(spec.origin) if spec is not None and spec.origin else None
    return file if file is not None and file.suffix == ".py" and file.is_file() else None
