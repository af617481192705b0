"""Empty modules for what verifiers' `vf-eval` imports and these runs do not use: its makers' machines, tunnels and optimisers.

Python imports this in every process whose PYTHONPATH has this folder: `vf-eval` and its tool servers. Used by `verifiers_environments`.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

UNUSED = ("gepa", "msgpack", "prime_sandboxes", "prime_tunnel", "tomli_w")


class Anything(ModuleType):
    """A module with every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class StandIns(MetaPathFinder, Loader):
    """Finds `UNUSED` where nothing else does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in UNUSED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(StandIns())
