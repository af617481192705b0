"""The only process of a sandbox that answers questions: locks itself in, then imports modules that nobody trusts, and hands them the pipes.

Standard input brings one frame (4 bytes of length, then `marshal`): limits, where modules are, and which of them serves. Standard output says `R`
when the walls are up, or `E` and why not, and belongs to the module that serves from then on. What anybody prints goes to standard error.
Standard library only. Started by `service`.
"""

import marshal
import os
import resource
import sys
from importlib import import_module
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location

from shoal.rewards.sandbox.inside import lockdown
from shoal.rewards.sandbox.inside.guest import FAILED, READY, lock_in, read_exactly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType
    from typing import Any


class NamedPlaces:
    """Finds top-level modules at the places given, whose parent folders need not be readable.

    Of all but Shoal's own the source is run, and no cache beside it: digests cover the source alone.
    """

    def __init__(self, places: "dict[str, str]") -> None:
        self._places = places

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        top, _, below = name.partition(".")
        place = self._places.get(top)
        if place is None or (below and top == "shoal"):
            return None
        if below:
            found = PathFinder.find_spec(name, path)
        elif os.path.isdir(place):
            found = spec_from_file_location(name, f"{place}/__init__.py", submodule_search_locations=[place])
        else:
            found = spec_from_file_location(name, place)
        if found is not None and type(found.loader) is SourceFileLoader and top != "shoal":
            found.loader = _SourceAlone(name, found.loader.path)
        return found


class _SourceAlone(SourceFileLoader):
    compiled: "dict[str, CodeType]" = {}  # noqa: RUF012 - of all: a module may be imported again, and no file changes meanwhile

    def get_code(self, fullname: str) -> "CodeType":
        if self.path not in self.compiled:
            self.compiled[self.path] = self.source_to_code(self.get_data(self.path), self.path)
        return self.compiled[self.path]


def main() -> None:
    try:
        lock_in(marshal.loads(bytes.fromhex(sys.argv[1])))  # noqa: S302 - from our own parent
    except (OSError, ValueError) as error:
        os.write(1, FAILED + f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(1, READY)
    start: dict[str, Any] = marshal.loads(read_exactly(int.from_bytes(read_exactly(4), "big")))  # noqa: S302 - the same
    for name, value in start["limits"].items():
        lockdown.limit(getattr(resource, name), value)
    answers = os.dup(1)
    os.dup2(2, 1)
    for name in [name for name in sys.modules if name.partition(".")[0] == "shoal"]:
        del sys.modules[name]  # a copy of a few modules; the whole package takes its place
    sys.meta_path.insert(0, NamedPlaces(start["places"]))
    sys.path += start["path"]
    sys.argv = [start["module"]]
    import_module(start["module"]).serve(0, answers, start["arguments"])
