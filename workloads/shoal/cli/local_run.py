"""From a manifest file to the operator's checked objects, its rendered children and its local run.

The operator is imported when a verb needs it. What it refuses comes back as `InputWrong`, one line a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.errors import InputWrong

if TYPE_CHECKING:
    from shoal_operator.api.training_run import TrainingRun


@dataclass(frozen=True)
class Manifest:
    """A checked manifest: where it lies, and the one TrainingRun in it."""

    path: Path
    run: TrainingRun

    @property
    def name(self) -> str:
        return self.run.metadata.name


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest; raises `InputWrong` with one line for each mistake."""
    from shoal_operator.api.manifest import ManifestError, load_manifest
    from shoal_operator.api.training_run import TrainingRun

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputWrong(f"{path}: cannot be read: {error.strerror}; give the path of a manifest") from None
    except UnicodeDecodeError as error:
        raise InputWrong(f"{path}: is not UTF-8 text (byte {error.start}); give the path of a manifest") from None
    try:
        objects = load_manifest(text, str(path))
    except ManifestError as error:
        raise InputWrong(*str(error).splitlines()) from None
    runs = [found for found in objects if isinstance(found, TrainingRun)]
    if len(runs) != 1 or len(objects) != 1:
        kinds = ", ".join(f"{found.kind} {found.metadata.name}" for found in objects)
        raise InputWrong(
            f"{path}: holds {kinds}; this machine runs exactly one TrainingRun, which makes the other kinds itself"
        )
    return Manifest(path, runs[0])
