"""Where packages of environments are: in this Python's own folders, or in folders of which nothing runs in this process.

A package beside Shoal's may run code whenever Python starts (`.pth` files), and may replace files of Shoal.
One in a folder of `FOLDERS_VARIABLE`, or of the run's own packages, does neither: nothing there is on this process's path.
The run's own come before all others, so that every machine has the same. Called by `base` and `apart`.
"""

import json
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, PackageNotFoundError, distributions
from importlib.util import find_spec
from pathlib import Path

from shoal.environments.verifiers_names import ENVIRONMENT as VERIFIERS
from shoal.environments.verifiers_names import BadPackageName, parse_package

SANDBOXED = {"reasoning-gym": ("reasoning_gym",), "verifiers": ("verifiers",)}
"""Shoal's own environments that run in a sandbox even so, whomever the owner trusts: their scores are code of others. With the packages of that code,
of which every file counts in the digest (`code_of_others`)."""

FOLDERS_VARIABLE = "SHOAL_ENVIRONMENTS"
"""Folders with packages of environments, with `:` between them, as `pip install --target` fills one."""


RUN_VARIABLE = "SHOAL_RUN_PACKAGES"
"""The folder with the packages of the run that this process works for: `packages.install` sets it, for processes that it starts too."""
LOCK_FILE = "shoal-packages.json"
"""In that folder: `name==version sha256` of each package, in order. No module and no metadata has this name."""


def run_folder() -> list[str]:
    """The folder of the run's packages, if it has some."""
    folder = os.environ.get(RUN_VARIABLE, "")
    return [folder] if os.path.isdir(folder) else []


def folders() -> list[str]:
    """That of the run's packages, then those of the owner's variable that are there."""
    owners = os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)
    return [*run_folder(), *(folder for folder in owners if os.path.isdir(folder))]


def points_in(paths: list[str], group: str) -> list[EntryPoint]:
    """Entry points of a group that packages in some folders have."""
    return [
        point
        for each in (distributions(path=paths) if paths else ())
        for point in each.entry_points.select(group=group)
    ]


def locked(modules: tuple[str, ...]) -> list[str]:
    """The run's packages, a line each, where one of the modules comes from them; else none."""
    for folder in run_folder():
        if any(PathFinder.find_spec(name, [folder]) is not None for name in modules if "." not in name):
            lines: list[str] = json.loads((Path(folder) / LOCK_FILE).read_text())
            return lines
    return []


def spec_of(name: str) -> ModuleSpec | None:
    """Where a module is. A top-level one is found without running anything, first among the run's packages, then in this Python's own folders."""
    if name in ("", "__main__"):  # which `find_spec` takes for a mistake of its caller
        return None
    of_run = PathFinder.find_spec(name, run_folder()) if "." not in name else None
    return of_run or find_spec(name) or PathFinder.find_spec(name, folders())


def version_of(name: str) -> str:
    """Version of a distribution, among the run's packages, in this Python's own folders or in the others. PackageNotFoundError."""
    for each in distributions(name=name, path=[*run_folder(), *sys.path, *folders()]):
        return each.version
    raise PackageNotFoundError(name)


def code_of_others(name: str) -> tuple[str, ...]:
    """Top-level modules that one of `SANDBOXED` runs, by its whole name: of verifiers the package that it names too."""
    plain, _, part = name.partition(":")
    found = SANDBOXED.get(plain, ())
    if plain != VERIFIERS or not part:
        return found
    try:
        return (*found, parse_package(part).module)
    except BadPackageName:  # which it says itself when it is made
        return found
