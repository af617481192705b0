"""Where packages of environments are: in this Python's own folders, or in folders of which nothing runs in this process.

A package beside Shoal's may run code whenever Python starts (`.pth` files), and may replace files of Shoal.
One in a folder of `FOLDERS_VARIABLE` does neither: nothing there is on this process's path. Called by `base` and `apart`.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, PackageNotFoundError, distributions
from importlib.util import find_spec

from shoal.environments.verifiers_names import ENVIRONMENT as VERIFIERS
from shoal.environments.verifiers_names import BadPackageName, parse_package

SANDBOXED = {"reasoning-gym": ("reasoning_gym",), "verifiers": ("verifiers",)}
"""Shoal's own environments that run in a sandbox even so, whomever the owner trusts: their scores are code of others. With the packages of that code,
of which every file counts in the digest (`code_of_others`)."""

FOLDERS_VARIABLE = "SHOAL_ENVIRONMENTS"
"""Folders with packages of environments, with `:` between them, as `pip install --target` fills one."""


def folders() -> list[str]:
    """Those of the variable that are there."""
    return [folder for folder in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if os.path.isdir(folder)]


def points_in_folders(group: str) -> list[EntryPoint]:
    """Entry points of a group that packages in those folders have."""
    found = folders()
    return [
        point
        for each in (distributions(path=found) if found else ())
        for point in each.entry_points.select(group=group)
    ]


def spec_of(name: str) -> ModuleSpec | None:
    """Where a module is. A top-level one is found without running anything, and this Python's own folders come first."""
    if name in ("", "__main__"):  # which `find_spec` takes for a mistake of its caller
        return None
    return find_spec(name) or PathFinder.find_spec(name, folders())


def version_of(name: str) -> str:
    """Version of a distribution, in this Python's own folders or in the others. PackageNotFoundError."""
    for each in distributions(name=name, path=[*sys.path, *folders()]):
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
