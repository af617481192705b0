"""The outbox: where a finished policy version waits for the publisher, as a checkpoint folder that appears whole or not at all.

In: host copies of a version's weights, and its number. Out: `outbox/v000007/`, by one rename. The publisher takes the folder away once the version is
known to everyone; a version that is already sealed in the store is not written again. Called by `loop`, in the background, on all ranks.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from shoal.contracts import keys
from shoal.training.export import Export
from shoal.training.parallel import Ranks


class Outbox:
    """Folders by version under `folder`, written by `export`."""

    def __init__(self, folder: Path, export: Export, ranks: Ranks) -> None:
        self._folder = folder
        self._export = export
        self._ranks = ranks.in_background
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, copies: Mapping[str, Tensor], version: int) -> None:
        """Write the version unless it lies there already: what was handed over stands."""
        target = self._folder / keys.version_name(version)
        if self._ranks.broadcast(target.is_dir(), "whether a version was handed over"):
            return
        partial = self.write(copies, version)
        if self._ranks.leader:
            for path in partial.iterdir():
                _flush(path)
            partial.rename(target)
            _flush(self._folder)

    def digest(self, copies: Mapping[str, Tensor], version: int) -> str:
        """SHA-256 that the version would have if it were published: over its files, in order of their names. Empty but on the leader."""
        partial = self.write(copies, version)
        if not self._ranks.leader:
            return ""
        running = hashlib.sha256()
        for path in sorted(partial.iterdir()):
            with path.open("rb") as file:
                while data := file.read(1 << 22):
                    running.update(data)
        shutil.rmtree(partial)
        return running.hexdigest()

    def write(self, copies: Mapping[str, Tensor], version: int) -> Path:
        """A folder with the version's files, which the publisher does not look at; the leader removes it."""
        partial = self._folder / f"partial-{keys.version_name(version)}"
        if self._ranks.leader:
            shutil.rmtree(partial, ignore_errors=True)
        self._export.write(copies, partial)
        return partial


def _flush(path: Path) -> None:
    """To the disk, so that a name that is seen after a crash has its bytes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
