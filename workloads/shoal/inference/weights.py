"""Which policy versions lie in `weights/`, and which one to use.

In: the folder that the fetcher fills (it renames a version into place when it is complete and checked). Out: the newest
version that a step allows. Called by `worker`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.contracts.keys import parse_version, version_name
from shoal.contracts.signed import BadSignature, Signer
from shoal.contracts.weights import WeightsManifest
from shoal.storage.checkpoint_files import read_manifest
from shoal.telemetry import get_logger


@dataclass(frozen=True)
class VersionOnDisk:
    """A version on disk: its folder and its signed manifest (whose `sha256` is the weights digest)."""

    version: int
    folder: Path
    manifest: WeightsManifest

    def is_same(self, other: "VersionOnDisk") -> bool:
        """Whether these are the same weights: a number is sealed again with others where a leaked key had sealed it."""
        return (self.version, self.manifest.sha256) == (other.version, other.manifest.sha256)


def versions_in(folder: Path) -> list[int]:
    """Versions in `weights/`, ascending; a folder that is not there holds none."""
    if not folder.is_dir():
        return []
    found = (parse_version(path.name) for path in folder.iterdir() if path.is_dir())
    return sorted(version for version in found if version is not None)


def newest_policy(
    folder: Path,
    trainer_key: Signer,
    run: str,
    lowest: int = 0,
    highest: int = 999_999,
    usable: Callable[[VersionOnDisk], bool] = lambda policy: True,
) -> VersionOnDisk | None:
    """The newest version from `lowest` to `highest` whose manifest the trainer signed and which is `usable`, or None."""
    for version in reversed(versions_in(folder)):
        if not lowest <= version <= highest:
            continue
        path = folder / version_name(version)
        try:
            manifest = read_manifest(path, trainer_key)
        except (BadSignature, OSError, ValueError) as error:  # removed meanwhile by retention, or not the fetcher's
            get_logger().warning("the version on disk is not usable", version=version, reason=str(error))
            continue
        if (manifest.run, manifest.version) == (run, version):
            policy = VersionOnDisk(version, path, manifest)
            if usable(policy):
                return policy
            continue
        get_logger().warning("the version on disk belongs to another run", version=version, run=manifest.run)
    return None
