"""What a verb lacks where the CLI is installed alone: one line with the package and the extra of shoal that brings it. Called by `main`."""

import re
from collections import defaultdict
from importlib.metadata import PackageNotFoundError

from shoal.installed import installed

_OF_EXTRA = re.compile(r"^([A-Za-z0-9._-]+).*\bextra == ['\"]([a-z0-9-]+)['\"]")


def lacking(error: ModuleNotFoundError) -> str | None:
    """The line for a module that is not installed; None for one that no extra brings, which is a mistake of ours.

    It names no command: a package called `shoal` on an index may be somebody else's.
    """
    module = (error.name or "").partition(".")[0]
    extra = _extras().get(module.replace("_", "-").lower())
    if extra is None:
        return None
    return f"this needs {module}, which is not here: install the extra `{extra}` of shoal-rl in this Python environment"


def _extras() -> dict[str, str]:
    """The smallest extra that brings a package, by the package's name."""
    brings = defaultdict[str, set[str]](set)
    try:
        lines = installed().requires or []
    except PackageNotFoundError:
        lines = []
    for line in lines:
        if of_extra := _OF_EXTRA.match(line):
            package, extra = of_extra.groups()
            brings[extra].add(package.replace("_", "-").lower())
    largest_first = sorted(brings, key=lambda extra: (len(brings[extra]), extra), reverse=True)
    return {package: extra for extra in largest_first for package in brings[extra]}
