"""Other runs on this machine, to be read only: a run may start from the results of a run in the folder beside its own.

In: a name that the run does not have itself. Out: the other run's TrainingRun, or the claim of its folder store, whose volume is then linked among
this run's volumes. Called by `LocalCluster.get`.
"""

import json
from pathlib import Path

from shoal_operator.children import names
from shoal_operator.engine.cluster import Object
from shoal_operator.local.objects import Objects


class Neighbours:
    """The runs beside the one in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, kind: str, name: str) -> Object | None:
        """A neighbour's TrainingRun, or the claim of its store; None for all else, and while its file cannot be read."""
        if kind == "TrainingRun":
            return self._find(name, kind, name)
        store_of = name.removesuffix(names.store(""))
        if kind != "PersistentVolumeClaim" or names.store(store_of) != name:
            return None
        found = self._find(store_of, kind, name)
        if found is not None:
            self._link(store_of, name)
        return found

    def _find(self, run: str, kind: str, name: str) -> Object | None:
        path = self._folder.parent / run / "objects.json"
        if run == self._folder.name or not path.is_file():
            return None
        try:
            return Objects(path).get(kind, name)
        except (OSError, json.JSONDecodeError, KeyError):
            return None  # removed or replaced at this moment; asked again soon

    def _link(self, run: str, claim: str) -> None:
        link = self._folder / "volumes" / claim
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((self._folder.parent / run / "volumes" / claim).resolve(), target_is_directory=True)
