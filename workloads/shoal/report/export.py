"""Gets the trained model out of the object store into a folder of its own: the last sealed version, every piece checked."""

import os
import shutil
from pathlib import Path

from shoal.report.access import RunAccess
from shoal.report.collect import ModelPlace
from shoal.storage.checkpoint_files import MANIFEST_FILE, read_manifest
from shoal.storage.versions import materialise, sealed_versions


def export_model(access: RunAccess, folder: Path) -> ModelPlace | None:
    """Make `folder` hold the last trained version; None when no step was trained (version 0 is the base model).

    A folder with an older version is replaced when the newer one is whole. Raises `WrongWeights` or `BadSignature` for pieces that the trainer did
    not sign.
    """
    versions = sealed_versions(access.store)
    if not versions or versions[-1] == 0:
        return None
    last, signer = versions[-1], access.roster.keys["trainer"]
    if held_version(folder, signer) != last:
        fresh = folder.with_name(f".{folder.name}-{last:06d}")
        materialise(access.store, last, fresh, access.run, signer)
        _replace(fresh, folder)
    return ModelPlace(str(folder), last)


def held_version(folder: Path, signer: str) -> int | None:
    """Version that a folder holds, or None when it is none of this run's."""
    return read_manifest(folder, signer).version if (folder / MANIFEST_FILE).is_file() else None


def _replace(fresh: Path, folder: Path) -> None:
    """Put `fresh` in the place of `folder`; a folder cannot be renamed over a full one, so the old one steps aside first."""
    old = folder.with_name(f".{folder.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)
