"""Assembling a published version on disk: shards in any order into preallocated files, checked as a whole, visible at once.

`Assembler` is used by whoever has verified shards in hand: the client in a pool pod (from relays) and `versions.materialise` (from the store). It
writes into `<folder>.partial/`, remembers finished shards across a restart. It renames to `<folder>/` only when the SHA-256 of the whole stream is
the one in the signed manifest. No second copy of the weights is ever made. Shards of a delta are unpacked on their way in, against the folder of
the base version. The whole is hashed behind the first gap while shards still come, so that little is left to do when the last one is here.
"""

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from shoal.contracts.base import Contract, Sha256Hex
from shoal.contracts.signed import Signed, Signer
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest
from shoal.crypto.canonical import canonical_bytes, document_digest
from shoal.storage import delta

MANIFEST_FILE = "shoal-weights.json"
"""In a finished folder: the signed `WeightsManifest`, so that a reader knows the digest of what it loads."""
SHARDS_FILE = "shoal-shards.json"
"""In a finished folder of an agent: `AssembledShards`, so that whoever loads the version can see that its bytes are still those."""
OWN_FILES = frozenset((MANIFEST_FILE, SHARDS_FILE))
"""Files in a finished folder that are none of the version's."""
HASH_THREADS = 4
"""Of a process that reads a version's shards again: one hashes 1 to 2 GB/s, and a GPU has four cores at least."""
READ_BYTES = 256 << 10  # stays in a core's cache between the copy and the hash


class WrongWeights(ValueError):
    """The assembled bytes are not those of the manifest; the version is given up."""


class VersionGone(WrongWeights):
    """The version is not there any more: whoever fetches made room for newer ones."""


NOT_THERE = "is not there"
"""How `wrong_shard` says that, at its end."""


class AssembledShards(Contract):
    """The opening record of an assembled version, and the SHA-256 of each of its shards. The signed manifest has digests of both."""

    open: VersionOpen
    sha256: list[Sha256Hex]


class Assembler:
    """Collects the shards of one version into `folder`. Shards may be written from several threads."""

    def __init__(
        self,
        record: VersionOpen,
        folder: Path,
        base: Path | None = None,
        beat: Callable[[], None] = lambda: None,
        *,
        whole_shards: bool = False,
    ) -> None:
        """Start, or continue with what an earlier process had written for the same opening record.

        `base` is the finished folder of `record.base`, for a delta, or of `record.beside` where that is taken; with `whole_shards` shards come
        unpacked, and it is that of their first delta, if any. Raises `WrongWeights` when its files are not laid out like this version's.
        `beat` is called for each shard that is hashed: what an earlier process had written is, all of it, in `finish` where nothing is missing.
        """
        self.record = record
        self.folder = folder
        self._base = base
        self._beat = beat
        self._lock = threading.Lock()
        if base is not None or (record.base is not None and not whole_shards):
            _check_layout(record, base)
        self._partial = folder.with_name(folder.name + ".partial")
        self._log = self._partial / ".shards"
        mark = self._partial / ".open"
        expected = canonical_bytes(record)
        self.resumed = mark.is_file() and mark.read_bytes() == expected
        """Whether the files are those of an earlier process; else they are empty."""
        if not self.resumed:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.mkdir(parents=True)
            for file in record.files:
                with (self._partial / file.name).open("wb") as handle:
                    handle.truncate(file.size)
            mark.write_bytes(expected)
        self._done = self._read_log()
        self._hashing = threading.Lock()
        self._hashed = 0
        """Shards before this one are in `_running`."""
        self._running = hashlib.sha256()
        self._in_running: list[str] = []
        """SHA-256 of the shards in `_running`, of a version whose digest is over these."""
        self._digests: dict[int, bytes] = {}
        """Of shards that were hashed when they were written, until they are in `_running`."""

    def missing(self) -> list[int]:
        """Indices of the shards that are still needed, ascending."""
        return [index for index in range(self.record.shard_count) if index not in self._done]

    def put(self, descriptor: ShardDescriptor, data: delta.Bytes) -> None:
        """Take over the bytes of a shard as they travelled, their digest checked; raises `WrongWeights` when they are not this shard's."""
        is_delta = descriptor.encoding != "full" and self._base is not None
        base = self._base_bytes(descriptor.index) if is_delta else b""
        self.write_shard(descriptor.index, unpacked(self.record, descriptor, data, base))

    def write_shard(self, index: int, data: delta.Bytes) -> None:
        """Put a shard, whose digest the caller has checked, in its place; raises `WrongWeights` when its size does not fit."""
        start, end = self.record.shard_bounds(index)
        if len(data) != end - start:
            raise WrongWeights(f"shard {index} has {len(data)} bytes, the opening record says {end - start}")
        with self.place(index) as place:
            place.write(memoryview(data), 0)
        # Each writer hashes its shards, so that no thread must read all of them again.
        self.placed(index, hashlib.sha256(data).digest() if self.record.digest_of is not None else None)

    def place(self, index: int) -> "ShardPlace":
        """Where the bytes of a shard go, for somebody who writes and checks them there, and then says `placed`."""
        return ShardPlace(self._partial, extents(self.record, index))

    def placed(self, index: int, digest: bytes | None = None) -> None:
        """Shard `index` is in its place and was checked; may be said again of a shard whose bytes were replaced.

        `digest`: SHA-256 of its bytes, if known. It is not read again then, where the version's digest is that of its shards.
        """
        with self._lock:
            self._digests.pop(index, None)
            if digest is not None and self.record.digest_of is not None:
                self._digests[index] = digest
            if index in self._done and index <= self._hashed:
                self._start_over()
            self._done.add(index)
            with self._log.open("ab") as log:
                log.write(b"%d\n" % index)
        self._hash_on()

    def finish(self, manifest: Signed[WeightsManifest], signer: Signer, *, notes_shards: bool = False) -> Path:
        """Check signature and whole, then make the folder visible; raises `WrongWeights` and drops everything when the bytes are wrong.

        With `notes_shards` it leaves `SHARDS_FILE` there, for versions whose digest is over their shards.
        """
        sealed = manifest.verified(signer)
        if sealed.run != self.record.run or sealed.version != self.record.version:
            raise WrongWeights(f"manifest is of {sealed.run} version {sealed.version}, not of {self.record.version}")
        if self.missing():
            raise WrongWeights(f"{len(self.missing())} shards of version {self.record.version} are missing")
        if sealed.open_digest != document_digest(self.record):
            self.discard()
            raise WrongWeights(f"version {self.record.version}: the manifest seals a different opening record")
        found = self._stream_digest()
        if found != sealed.sha256:
            self.discard()
            raise WrongWeights(
                f"version {self.record.version}: SHA-256 of the assembled checkpoint is {found[:12]}..., the manifest says {sealed.sha256[:12]}..."
            )
        # Shards that were hashed when they were written are not read again; a disk that lost the end of a file shows it by the size.
        for file in self.record.files:
            if (self._partial / file.name).stat().st_size < file.size:
                self.discard()
                raise WrongWeights(f"{self._partial.name}/{file.name} is shorter than its version requires")
        (self._partial / MANIFEST_FILE).write_bytes(manifest.to_json())
        if notes_shards and self.record.digest_of is not None:
            shards = AssembledShards(open=self.record, sha256=self._in_running)
            (self._partial / SHARDS_FILE).write_bytes(shards.to_json())
        (self._partial / ".open").unlink()
        self._log.unlink(missing_ok=True)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        os.replace(self._partial, self.folder)
        return self.folder

    def discard(self) -> None:
        """Forget everything written so far."""
        shutil.rmtree(self._partial, ignore_errors=True)
        with self._lock:
            self._done = set()
            self._start_over()
            self._digests.clear()

    def _start_over(self) -> None:
        self._hashed, self._running, self._in_running = 0, hashlib.sha256(), []

    def _hash_on(self) -> None:
        """Hash the whole shards before the first gap. One thread does so at a time; the others have shards to fetch."""
        while self._next_to_hash() is not None and self._hashing.acquire(blocking=False):
            try:
                self._hash_to_gap()
            finally:
                self._hashing.release()

    def _stream_digest(self) -> str:
        """Of everything, when every shard is here."""
        with self._hashing:
            self._hash_to_gap()
            return self._running.hexdigest()

    def _hash_to_gap(self) -> None:
        while (following := self._next_to_hash()) is not None:
            index, running = following
            with self._lock:
                known = self._digests.pop(index, None)
            if known is not None:
                running.update(known)
            else:
                with self.place(index) as place:
                    known = feed_shard(running, self.record, place)
            self._beat()
            with self._lock:
                if running is self._running:  # else a shard was replaced meanwhile, and it restarts
                    self._hashed = index + 1
                    if known is not None:
                        self._in_running.append(known.hex())

    def _next_to_hash(self) -> "tuple[int, hashlib._Hash] | None":
        with self._lock:
            return (self._hashed, self._running) if self._hashed in self._done else None

    def _base_bytes(self, index: int) -> bytearray:
        assert self._base is not None
        return read_shard(self.record, self._base, index)

    def _read_log(self) -> set[int]:
        if not self._log.is_file():
            return set()
        # A last line without newline was cut by a crash: its shard is fetched again.
        lines = self._log.read_bytes().split(b"\n")[:-1]
        return {int(line) for line in lines if line.isdigit() and int(line) < self.record.shard_count}


def flush(path: Path) -> None:
    """A file or folder to the disk, so that a name that is seen after a power cut has its bytes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unpacked(record: VersionOpen, descriptor: ShardDescriptor, data: delta.Bytes, base: delta.Bytes) -> delta.Bytes:
    """A shard from its bytes as they travelled and, where it is a delta, those of the version before. Raises `WrongWeights`."""
    if descriptor.encoding == "full":
        return data
    against = record.base or record.beside
    if against is None:
        raise WrongWeights(f"shard {descriptor.index} is a delta, version {record.version} is none")
    try:
        return delta.decode(descriptor.encoding, data, base, against.item_size)
    except delta.BadDelta as error:
        raise WrongWeights(f"shard {descriptor.index} of version {record.version}: {error}") from error


class Extent(NamedTuple):
    """Bytes [start, start + length) of the file `name`, which are bytes [at, at + length) of a shard."""

    name: str
    start: int
    at: int
    length: int


class ShardPlace:
    """The place of one shard in the files under `folder`, its bytes numbered from 0. Files are opened when they are first needed."""

    def __init__(self, folder: Path, parts: list[Extent]) -> None:
        self.size = sum(part.length for part in parts)
        self._folder = folder
        self._parts = parts
        self._files: dict[str, int] = {}

    def __enter__(self) -> "ShardPlace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: memoryview, at: int) -> None:
        """Put `data` where byte `at` of the shard lies; raises `OSError` when the disk takes no more."""
        for part, start, length in self._within(at, len(data)):
            piece, offset = data[start - at : start - at + length], part.start + start - part.at
            while piece:
                count = os.pwrite(self._open(part.name), piece, offset)
                piece, offset = piece[count:], offset + count

    def read(self, at: int, size: int) -> bytes:
        """At most `size` bytes from byte `at` on, fewer where a file ends or is too short, none after the end."""
        for part, start, length in self._within(at, size):
            return os.pread(self._open(part.name), length, part.start + start - part.at)
        return b""

    def feed(self, running: "hashlib._Hash") -> None:
        """Hash all of it."""
        buffer = memoryview(bytearray(min(READ_BYTES, max(self.size, 1))))
        for part in self._parts:
            done = 0
            while done < part.length:
                view = buffer[: part.length - done]
                count = os.preadv(self._open(part.name), [view], part.start + done)
                if not count:
                    raise WrongWeights(f"{self._folder.name}/{part.name} is shorter than its version requires")
                running.update(view[:count])
                done += count

    def close(self) -> None:
        """Let go of the files; they are opened again when they are needed."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _within(self, at: int, size: int) -> list[tuple[Extent, int, int]]:
        """Parts that lie in [at, at + size) of the shard, with start in the shard and length of what does."""
        found = []
        for part in self._parts:
            low, high = max(at, part.at), min(at + size, part.at + part.length)
            if low < high:
                found.append((part, low, high - low))
        return found

    def _open(self, name: str) -> int:
        if name not in self._files:
            path = self._folder / name
            try:
                self._files[name] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except PermissionError:  # somebody else's, to be read alone
                self._files[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._files[name]


def extents(record: VersionOpen, index: int) -> list[Extent]:
    """Which parts of which files make shard `index`, in order; their lengths add up to the size of the shard."""
    start, end = record.shard_bounds(index)
    found, file_start = [], 0
    for file in record.files:
        low, high = max(start, file_start), min(end, file_start + file.size)
        if low < high:
            found.append(Extent(file.name, low - file_start, low - start, high - low))
        file_start += file.size
    return found


def read_shard(record: VersionOpen, folder: Path, index: int) -> bytearray:
    """The bytes of shard `index` from the files in `folder`; raises `WrongWeights` when a file is too short."""
    start, end = record.shard_bounds(index)
    data = bytearray(end - start)
    view = memoryview(data)
    for part in extents(record, index):
        with (folder / part.name).open("rb", buffering=0) as handle:
            handle.seek(part.start)
            got = 0
            while got < part.length:
                count = handle.readinto(view[part.at + got : part.at + part.length])
                if not count:
                    raise WrongWeights(f"{folder.name}/{part.name} is shorter than its version requires")
                got += count
    return data


def feed_shard(running: "hashlib._Hash", record: VersionOpen, place: ShardPlace) -> bytes | None:
    """The next shard's part in a version's digest: its bytes, or their SHA-256, which is returned."""
    if record.digest_of is None:
        place.feed(running)
        return None
    digest = hashlib.sha256()
    place.feed(digest)
    running.update(digest.digest())
    return digest.digest()


def digest_of_shards(shards: Iterable[str]) -> str:
    """A version's digest from those of its shards as assembled, in hex and in order; for a record with `digest_of: shards`."""
    return hashlib.sha256(b"".join(bytes.fromhex(shard) for shard in shards)).hexdigest()


def version_digest(record: VersionOpen, folder: Path, beat: Callable[[], None] = lambda: None) -> str:
    """The digest that `folder` has if it is the version of `record`; of one with other files or sizes, none that any version has: empty.

    Reads all of it: 40 s for 65.5 GB on one core, nine minutes from a disk of 125 MB/s, so `beat` is called for each shard. Raises OSError.
    """
    there = {path.name: path.stat().st_size for path in folder.iterdir() if path.name not in OWN_FILES}
    if there != {file.name: file.size for file in record.files}:
        return ""
    running = hashlib.sha256()
    for index in range(record.shard_count):
        with ShardPlace(folder, extents(record, index)) as place:
            feed_shard(running, record, place)
        beat()
    return running.hexdigest()


def wrong_shard(folder: Path, open_digest: str, sha256: str, part: int = 0, parts: int = 1) -> str:
    """What is wrong with the first of these shards whose bytes are no longer those that were assembled; empty where none is.

    Looks at each shard number `part`, `part + parts` and so on; `open_digest` and `sha256` are the signed manifest's. Reads them all: 65.5 GB in 12 s
    by HASH_THREADS cores of 1.4 GB/s where the machine holds them in memory. Versions of releases before 0.2, and those that an earlier release
    assembled, have no digests here, and are not looked at.
    """
    path = folder / SHARDS_FILE
    if not (folder / MANIFEST_FILE).is_file():
        return f"{folder} {NOT_THERE}"
    if not path.is_file():
        return ""
    try:
        shards = AssembledShards.from_json(path.read_bytes())
    except ValueError as error:
        return f"{path} is not readable: {error}"
    if document_digest(shards.open) != open_digest or digest_of_shards(shards.sha256) != sha256:
        return f"{path} is not of the version that the manifest seals"

    def differs(index: int) -> str:
        found, pieces = hashlib.sha256(), extents(shards.open, index)
        where = ", ".join(f"{each.name} from byte {each.start} to {each.start + each.length}" for each in pieces)
        try:
            with ShardPlace(folder, pieces) as place:
                place.feed(found)
        except (OSError, WrongWeights) as error:
            return f"shard {index} is not readable: {error}"
        if found.hexdigest() == shards.sha256[index]:
            return ""
        return f"shard {index} ({where}) has SHA-256 {found.hexdigest()[:12]}..., was assembled as {shards.sha256[index][:12]}..."

    with ThreadPoolExecutor(HASH_THREADS) as threads:
        return next(filter(None, threads.map(differs, range(part, shards.open.shard_count, parts))), "")


def _check_layout(record: VersionOpen, base: Path | None) -> None:
    if base is None:
        raise WrongWeights(f"version {record.version} is a delta: its base is needed to assemble it")
    for file in record.files:
        path = base / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            raise WrongWeights(
                f"version {record.version} is a delta, but {base.name}/{file.name} does not have its {file.size} bytes"
            )


def sealed_by(folder: Path) -> Signed[WeightsManifest]:
    """The manifest of an assembled folder, not verified; raises as `read_manifest` does."""
    return Signed[WeightsManifest].from_json((folder / MANIFEST_FILE).read_bytes())


def read_manifest(folder: Path, signer: Signer) -> WeightsManifest:
    """The verified manifest of an assembled folder; raises `BadSignature`, or FileNotFoundError when the folder is not one."""
    return sealed_by(folder).verified(signer)
