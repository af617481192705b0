"""`weights/`: the versions that a pool pod holds, as folders that vLLM loads, and the target that fills one.

A version is `weights/v000007/` with the signed manifest in it; it appears by one rename when its SHA-256 is the manifest's. What is being filled
lies in `v000007.partial/` and `.parts/v000007/` and outlives a kill. Called by `fetch`; the worker only reads finished folders.
"""

import shutil
from pathlib import Path

from shoal import telemetry
from shoal.broadcast.relay_target import NoSpace
from shoal.contracts import keys
from shoal.contracts.canonical import BadSignature, Signed
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest
from shoal.storage.checkpoint_files import Assembler, read_manifest

PARTIAL = ".partial"
PARTS = ".parts"
DISK_RESERVE_BYTES = 64 << 20


class WeightsFolder:
    """The versions under one `weights/` folder."""

    def __init__(self, root: Path, run: str, trainer_key: str) -> None:
        """Removes finished folders whose manifest is not the trainer's for this run (a volume of another run)."""
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        for version in self.held():
            if not self._is_ours(version, run, trainer_key):
                telemetry.get_logger().warning("removing weights that are not of this run", version=version)
                shutil.rmtree(self.path(version))

    def path(self, version: int) -> Path:
        return self.root / keys.version_name(version)

    def held(self) -> list[int]:
        """Numbers of the finished versions, ascending."""
        numbers = (keys.parse_version(path.name) for path in self.root.iterdir() if path.is_dir())
        return sorted(number for number in numbers if number is not None)

    def keep_newest(self, count: int) -> list[int]:
        """Remove all but the newest `count` (at least one) versions; returns what was removed."""
        old = self.held()[: -max(1, count)]
        for version in old:
            # Out of sight first: a reader that lists the folder never sees half a version.
            grave = self.root / f".old-{keys.version_name(version)}"
            shutil.rmtree(grave, ignore_errors=True)
            self.path(version).rename(grave)
            shutil.rmtree(grave)
        return old

    def forget_others(self, version: int) -> None:
        """Remove what was begun of other versions, and what a kill left of a removal: only `version` is wanted now."""
        name = keys.version_name(version)
        for path in self.root.iterdir():
            begun = path.name.endswith(PARTIAL) and path.name != name + PARTIAL
            if begun or path.name.startswith(".old-"):
                shutil.rmtree(path, ignore_errors=True)
        parts = self.root / PARTS
        for path in parts.iterdir() if parts.is_dir() else ():
            if path.name != name:
                shutil.rmtree(path, ignore_errors=True)

    def _is_ours(self, version: int, run: str, trainer_key: str) -> bool:
        try:
            manifest = read_manifest(self.path(version), trainer_key)
        except (OSError, ValueError, BadSignature):
            return False
        return (manifest.run, manifest.version) == (run, version)


class FolderTarget:
    """The `Target` of a client's `Transfer`: shards go into preallocated files."""

    def __init__(self, weights: WeightsFolder, version: int, trainer_key: str) -> None:
        self._weights = weights
        self._version = version
        self._trainer_key = trainer_key
        self._parts = weights.root / PARTS / keys.version_name(version)
        self._assembler: Assembler | None = None
        self.resumed = False
        """Whether shards of an earlier process were taken over; their digests are known only at the end."""

    def opened(self, signed: Signed[VersionOpen]) -> dict[int, str | None]:
        record = signed.document
        self._parts.mkdir(parents=True, exist_ok=True)
        partial = self._weights.path(self._version).with_name(keys.version_name(self._version) + PARTIAL)
        free = shutil.disk_usage(self._weights.root).free
        # A partial folder has its files preallocated, but sparse: the space may still be taken by others. Count in full.
        if not partial.is_dir() and free < record.total_size + DISK_RESERVE_BYTES:
            raise NoSpace(
                f"version {self._version} needs {record.total_size} bytes, {free} are free: give weights/ a larger volume"
            )
        self._assembler = Assembler(record, self._weights.path(self._version))
        missing = set(self._assembler.missing())
        held: dict[int, str | None] = {index: None for index in range(record.shard_count) if index not in missing}
        self.resumed = bool(held)
        return held

    def part(self, index: int) -> Path:
        return self._parts / keys.shard_name(index)

    def put(self, signed: Signed[ShardDescriptor], part: Path) -> None:
        assert self._assembler is not None
        self._assembler.write_shard(signed.document.index, part.read_bytes())
        part.unlink()

    def seal(self, signed: Signed[WeightsManifest]) -> None:
        """Check the whole and make the version visible; raises `WrongWeights`, and then nothing of it is left."""
        assert self._assembler is not None
        self._assembler.finish(signed, self._trainer_key)
        shutil.rmtree(self._parts, ignore_errors=True)

    def discard(self) -> None:
        """Remove all that was begun."""
        if self._assembler is not None:
            self._assembler.discard()
        shutil.rmtree(self._parts, ignore_errors=True)
