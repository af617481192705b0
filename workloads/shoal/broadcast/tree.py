"""`www/`: the folder that nginx serves, and the only code that changes it.

Every file appears by an atomic rename from `www/tmp/` after it reached the disk. So a reader sees all of it or none, whenever a process is
killed. Removing a version takes it out of the index, moves the folder away, then deletes: who has a file open reads on to its end. Used by the
publisher (`origin`) and the relays' sync agent (`relay`), one process a folder, which may publish from several threads.
"""

import os
import shutil
import threading
from pathlib import Path

from shoal.contracts import keys
from shoal.contracts.signed import Signed
from shoal.contracts.weights import VersionIndex, VersionOpen
from shoal.storage import chains
from shoal.storage.checkpoint_files import flush

OPEN = "open.json"
WEIGHTS = "weights.json"
INDEX = "index.json"


class Tree:
    """The versions under one `www/` folder."""

    def __init__(self, root: Path, limit_bytes: int | None = None) -> None:
        """Make the folders that are missing and delete what a killed process left in `tmp/`. `limit_bytes`: versions may take no more of the disk."""
        self.root = root
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._versions = root / keys.VERSIONS.rstrip("/")
        self._temporary = root / "tmp"
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir(parents=True)
        self._versions.mkdir(exist_ok=True)
        self._used = sum(self._bytes_of(number) for number in self._numbers())
        self._known_bases: dict[int, int | None] = {}
        self.write_index()

    def held(self) -> list[int]:
        """Numbers of the versions with at least an opening record, ascending."""
        return [number for number in self._numbers() if self.path(number, OPEN).is_file()]

    def sealed(self) -> list[int]:
        """Numbers of the versions that are complete, ascending."""
        return [number for number in self.held() if self.path(number, WEIGHTS).is_file()]

    def newest_whole(self) -> list[int]:
        """The newest complete version whose whole chain is complete; empty where there is none. An anchor of which only its delta is here is not."""
        return chains.newest_whole(self.bases(), self.sealed())

    def path(self, version: int, name: str) -> Path:
        """Where a piece lies, whether it is there or not."""
        return self._versions / keys.version_name(version) / name

    def read(self, version: int, name: str) -> bytes | None:
        """A piece, or None when it is not there."""
        try:
            return self.path(version, name).read_bytes()
        except FileNotFoundError:
            return None

    def size(self, version: int, name: str) -> int | None:
        """Bytes of a piece, or None when it is not there."""
        try:
            return self.path(version, name).stat().st_size
        except FileNotFoundError:
            return None

    def temporary(self, version: int, name: str) -> Path:
        """A place on the same file system for a piece that is being written; `publish_file` moves it."""
        return self._temporary / f"{keys.version_name(version)}-{name}"

    def publish(self, version: int, name: str, data: bytes) -> None:
        """Make a small piece visible, replacing what was there."""
        path = self.temporary(version, name)
        path.write_bytes(data)
        self.publish_file(version, name, path)

    def publish_file(self, version: int, name: str, path: Path) -> None:
        """Make a piece, written under `temporary`, visible."""
        target = self.path(version, name)
        target.parent.mkdir(exist_ok=True)
        if name == OPEN:
            self._known_bases.pop(version, None)
        before, size = self.size(version, name) or 0, path.stat().st_size
        _replace(path, target)
        with self._lock:
            self._used += size - before

    def write_index(self, without: frozenset[int] = frozenset()) -> None:
        """Write `index.json` from what is there, leaving out `without`, if it changed."""
        data = VersionIndex(versions=[number for number in self.held() if number not in without]).to_json()
        target = self._versions / INDEX
        if not target.is_file() or target.read_bytes() != data:
            path = self._temporary / INDEX
            path.write_bytes(data)
            _replace(path, target)

    def unseal(self, version: int) -> None:
        """Take the seal off a version that turned out not to be complete, so that it is completed again."""
        for beside in (False, True):
            self.path(version, keys.seal_name(beside=beside)).unlink(missing_ok=True)

    def drop(self, version: int) -> None:
        """Remove a version: out of the index first, then out of sight at once, then off the disk."""
        folder = self._versions / keys.version_name(version)
        if not folder.exists():
            return
        self.write_index(without=frozenset({version}))
        grave = self._temporary / f"dropped-{folder.name}"
        shutil.rmtree(grave, ignore_errors=True)
        os.replace(folder, grave)
        with self._lock:
            self._used -= sum(path.stat().st_size for path in grave.iterdir())
        self._known_bases.pop(version, None)
        shutil.rmtree(grave)

    def bases(self) -> dict[int, int | None]:
        """The base of each held version (see `storage.chains`); None for versions in full."""
        return {number: self._base(number) for number in self.held()}

    def shard_bytes(self, version: int) -> int:
        """Bytes of the version's shards that are here, as they travel."""
        return sum(path.stat().st_size for path in self.path(version, OPEN).parent.glob("*.bin"))

    def keep_newest(self, count: int) -> list[int]:
        """Drop all but the newest `count` versions, the newest whole one, and what these are based on; returns what was dropped."""
        bases = self.bases()
        kept = chains.must_keep(bases, count, chains.newest_whole(bases, self.sealed()))
        dropped = [number for number in bases if number not in kept]
        for number in dropped:
            self.drop(number)
        return dropped

    def _base(self, version: int) -> int | None:
        if version not in self._known_bases:
            try:
                record = Signed[VersionOpen].from_json(self.read(version, OPEN) or b"").document
            except ValueError:  # not readable: whoever completes this version replaces it
                return None
            self._known_bases[version] = chains.base_of(record)
        return self._known_bases[version]

    def free_bytes(self) -> int:
        """Bytes that may still be written: on this disk, and within the limit."""
        free = shutil.disk_usage(self.root).free
        return free if self._limit is None else min(free, self._limit - self._used)

    def _numbers(self) -> list[int]:
        """Numbers of all folders of versions, ascending."""
        numbers = (keys.parse_version(path.name) for path in self._versions.iterdir())
        return sorted(number for number in numbers if number is not None)

    def _bytes_of(self, version: int) -> int:
        return sum(path.stat().st_size for path in (self._versions / keys.version_name(version)).iterdir())


def _replace(source: Path, target: Path) -> None:
    """Rename once the bytes are on the disk: after a power cut a name must not stand for a torn file."""
    flush(source)
    os.replace(source, target)
