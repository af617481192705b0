"""`weights/`: the versions that a pool pod holds, as folders that vLLM loads, and the target that fills one.

A version is `weights/v000007/` with the signed manifest in it; it appears by one rename when its SHA-256 is the manifest's. What is being filled
lies in `v000007.partial/` and `.parts/v000007/` and outlives a kill. A version that is needed only as the base of another one lies in
`.chain/`. Called by `fetch`; the worker only reads finished folders. Several pods may share the folder: the one that holds `.lock` fills it.
"""

import fcntl
import shutil
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO

from shoal import telemetry
from shoal.broadcast.parts import FilePart, PlacedPart, ShardPart
from shoal.broadcast.relay_target import NoSpace
from shoal.contracts import keys
from shoal.contracts.signed import BadSignature, Signed, Signer
from shoal.contracts.trust import RoleKeys, ever_held
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest
from shoal.storage.checkpoint_files import Assembler, read_manifest, sealed_by

PARTIAL = ".partial"
PARTS = ".parts"
CHAIN = ".chain"
LOCK = ".lock"
DISK_RESERVE_BYTES = 64 << 20


class WeightsFolder:
    """The versions under one `weights/` folder."""

    def __init__(self, root: Path, run: str, trainer_key: Signer) -> None:
        self.root = root
        self._run = run
        self._trainer_key = trainer_key
        self._lock: IO[bytes] | None = None
        root.mkdir(parents=True, exist_ok=True)
        self.hold()

    def hold(self) -> bool:
        """Whether this process fills the folder, which it does from then on until it ends. Raises `OSError` on a file system without locks.

        Removes finished folders whose manifest is not the trainer's for this run (a volume of another run) when it begins.
        """
        if self._lock is None:
            lock = (self.root / LOCK).open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.close()
                if isinstance(error, BlockingIOError):
                    return False
                raise
            self._lock = lock
            for version in self.held():
                if not self._is_ours(version, self._run, self._trainer_key):
                    telemetry.get_logger().warning("removing weights of another run", version=version)
                    shutil.rmtree(self.path(version))
        return True

    def path(self, version: int) -> Path:
        return self.root / keys.version_name(version)

    def link(self, version: int) -> Path:
        """Where a version lies that is only a step on the way to another one; the worker does not look there."""
        return self.root / CHAIN / keys.version_name(version)

    def bases(self) -> dict[int, tuple[Path, str]]:
        """Finished versions that a delta may be made on, links included: folder and SHA-256 of the stream."""
        found = {}
        chain = self.root / CHAIN
        links = [keys.parse_version(path.name) for path in chain.iterdir()] if chain.is_dir() else []
        for path in (*map(self.link, sorted({n for n in links if n is not None})), *map(self.path, self.held())):
            try:
                manifest = read_manifest(path, self._trainer_key)
            except (OSError, ValueError):
                continue
            found[manifest.version] = (path, manifest.sha256)
        return found

    def remove(self, version: int) -> None:
        """Remove a finished version, for whatever reason, wherever it lies."""
        shutil.rmtree(self.link(version), ignore_errors=True)
        self._bury(version)

    def drop_void(self) -> None:
        """Remove versions that nobody believes after a change of keys; they come again as the trainer's new key seals them."""
        if not isinstance(self._trainer_key, RoleKeys):
            return
        for version in self.held():
            if self._trainer_key.is_void(sealed_by(self.path(version))):
                telemetry.get_logger().warning("removing a version that a leaked key sealed", version=version)
                self.remove(version)

    def held(self) -> list[int]:
        """Numbers of the finished versions, ascending."""
        numbers = (keys.parse_version(path.name) for path in self.root.iterdir() if path.is_dir())
        return sorted(number for number in numbers if number is not None)

    def keep_newest(self, count: int, needed: Collection[int] = ()) -> list[int]:
        """Remove all but the newest `count` (at least one) versions and those in `needed`; returns what was removed."""
        old = [version for version in self.held()[: -max(1, count)] if version not in needed]
        for version in old:
            self._bury(version)
        return old

    def _bury(self, version: int) -> None:
        # Out of sight first: a reader that lists the folder never sees half a version.
        if self.path(version).is_dir():
            grave = self.root / f".old-{keys.version_name(version)}"
            shutil.rmtree(grave, ignore_errors=True)
            self.path(version).rename(grave)
            shutil.rmtree(grave)

    def forget_others(self, wanted: Collection[int], base: int | None = None) -> None:
        """Remove what was begun of other versions than `wanted`, links other than `base`, and what a kill left of a removal."""
        names = {keys.version_name(version) for version in wanted}
        links = names if base is None else names | {keys.version_name(base)}
        for folder, kept in ((self.root, names), (self.root / PARTS, names), (self.root / CHAIN, links)):
            for path in folder.iterdir() if folder.is_dir() else ():
                name = path.name.removesuffix(PARTIAL)
                stale = keys.parse_version(name) is not None and name not in kept
                finished = folder == self.root and path.name == name
                if (stale and not finished) or path.name.startswith(".old-"):
                    shutil.rmtree(path, ignore_errors=True)

    def _is_ours(self, version: int, run: str, trainer_key: Signer) -> bool:
        # An earlier key's are ours as well: whether it is still believed about them is asked when they are used, and they need not come again.
        try:
            signed = sealed_by(self.path(version))
            manifest = signed.verified(signed.signer if ever_held(trainer_key, signed.signer) else trainer_key)
        except (OSError, ValueError, BadSignature):
            return False
        return (manifest.run, manifest.version) == (run, version)


class FolderTarget:
    """The `Target` of a client's `Transfer`: shards go into preallocated files."""

    def __init__(
        self,
        weights: WeightsFolder,
        version: int,
        trainer_key: Signer,
        base: Path | None = None,
        *,
        link: bool = False,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """`base`: the finished folder that a delta is made on. `link`: the version is only a step on the way to another. `beat`: see `Assembler`."""
        self._beat = beat
        self._weights = weights
        self._base = base
        self._folder = weights.link(version) if link else weights.path(version)
        self._version = version
        self._trainer_key = trainer_key
        self._parts = weights.root / PARTS / keys.version_name(version)
        self._assembler: Assembler | None = None
        self._lock = threading.Lock()
        self._placed: dict[int, PlacedPart] = {}
        self.resumed = False
        """Whether shards of an earlier process were taken over; their digests are known only at the end."""

    def opened(self, signed: Signed[VersionOpen]) -> dict[int, str | None]:
        record = signed.document
        partial = self._folder.with_name(self._folder.name + PARTIAL)
        free = shutil.disk_usage(self._weights.root).free
        # A partial folder has its files preallocated, but sparse: the space may still be taken by others. Count in full.
        if not partial.is_dir() and free < record.total_size + DISK_RESERVE_BYTES:
            raise NoSpace(
                f"version {self._version} needs {record.total_size} bytes, {free} are free: give weights/ a larger volume"
            )
        self._assembler = Assembler(record, self._folder, self._base, self._beat)
        if not self._assembler.resumed:  # notes of how far shards were are of files that are gone
            shutil.rmtree(self._parts, ignore_errors=True)
        self._parts.mkdir(parents=True, exist_ok=True)
        missing = set(self._assembler.missing())
        held: dict[int, str | None] = {index: None for index in range(record.shard_count) if index not in missing}
        self.resumed = bool(held)
        return held

    def part(self, descriptor: ShardDescriptor, *, second: bool) -> ShardPart:
        """Versions in full are written directly to their final place. Deltas, which are unpacked, and second copies have files of their own."""
        assert self._assembler is not None
        index = descriptor.index
        path = self._parts / keys.shard_name(index)
        if second:
            path = path.with_suffix(".second")
            path.unlink(missing_ok=True)
        elif descriptor.encoding == "full":
            part = PlacedPart(self._assembler, index, path.with_suffix(".at"))
            with self._lock:
                self._placed[index] = part
            return part
        return FilePart(path)

    def put(self, signed: Signed[ShardDescriptor], part: ShardPart) -> None:
        assert self._assembler is not None
        index = signed.document.index
        with self._lock:
            placed = self._placed.pop(index, None)
        if placed is not None:
            placed.close_for_good()  # it may be another thread's, which lost
        if placed is part:
            self._assembler.placed(index, bytes.fromhex(signed.document.sha256))
        else:
            assert isinstance(part, FilePart)
            self._assembler.put(signed.document, part.path.read_bytes())
            part.path.unlink()

    def seal(self, signed: Signed[WeightsManifest]) -> None:
        """Check the whole and make the version visible; raises `WrongWeights`, and then nothing of it is left."""
        assert self._assembler is not None
        self._assembler.finish(signed, self._trainer_key, notes_shards=True)
        shutil.rmtree(self._parts, ignore_errors=True)

    def discard(self) -> None:
        """Remove all that was begun."""
        if self._assembler is not None:
            self._assembler.discard()
        shutil.rmtree(self._parts, ignore_errors=True)
