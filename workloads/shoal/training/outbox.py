"""The outbox: where a finished policy version waits for the publisher, as a checkpoint folder that appears whole or not at all.

In: a model and a version number. Out: `outbox/v000007/`, by one rename. The publisher takes the folder away once the version is
known to everyone; a version that is already sealed in the store is not written again. Called by `loop`.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from shoal.contracts import keys
from shoal.training.model import write_checkpoint


class Outbox:
    """Folders by version under `folder`; `base` gives the files that are not weights."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._folder = folder
        self._base = base
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, model: Any, version: int) -> None:
        """Write the version unless it lies there already (it has the same bytes then: a state gives one checkpoint)."""
        target = self._folder / keys.version_name(version)
        if target.is_dir():
            return
        partial = self._folder / f"partial-{keys.version_name(version)}"
        shutil.rmtree(partial, ignore_errors=True)
        write_checkpoint(model, self._base, partial)
        for path in partial.iterdir():
            _flush(path)
        partial.rename(target)
        _flush(self._folder)


def _flush(path: Path) -> None:
    """To the disk, so that a name that is seen after a crash has its bytes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
