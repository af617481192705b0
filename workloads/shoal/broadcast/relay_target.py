"""Where a relay keeps the pieces of one version: the `www/` tree, each visible as soon as it is checked.

The `Target` of a relay's `Transfer`. A piece is renamed into the tree after its signature or digest
fitted, the descriptor just before its shard. So clients of this relay can fetch what the origin is still making.
"""

from collections.abc import Callable

from shoal import telemetry
from shoal.broadcast import pieces
from shoal.broadcast.parts import FilePart, ShardPart
from shoal.broadcast.pieces import BadPiece, WantedVersion
from shoal.broadcast.tree import OPEN, Tree
from shoal.contracts import keys
from shoal.contracts.signed import Signed
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.files import file_sha256
from shoal.storage import chains

DISK_RESERVE_BYTES = 64 << 20  # log, index and part files
SHARDS_AHEAD = 8  # as many as a transfer has in flight, and as many again


class NoSpace(OSError):
    """The disk cannot hold this version even after older ones were dropped."""


class TreeTarget:
    """One version in the tree, for one transfer after the other: what this process has checked is not hashed again."""

    def __init__(self, tree: Tree, wanted: WantedVersion, beat: Callable[[], None] = lambda: None) -> None:
        """`beat` is called for each shard that is hashed: 65.5 GB that an earlier process left take minutes of a slow disk."""
        self._tree = tree
        self._wanted = wanted
        self._version = wanted.version
        self._beside = wanted.beside
        self._beat = beat
        self._shard_size = 0
        self._checked: dict[int, str] = {}

    def opened(self, signed: Signed[VersionOpen]) -> dict[int, str | None]:
        """Publish the record; what an earlier process had checked is hashed once more and kept if it still fits."""
        data = signed.to_json()
        present = self._tree.read(self._version, OPEN)
        if present is not None and not _same_record(present, signed):
            self._tree.drop(self._version)
            self._checked = {}
        self._shard_size = signed.document.shard_size
        held = self._held(signed.document)
        self._make_room(signed.document, held)
        if self._tree.read(self._version, OPEN) != data:
            self._tree.publish(self._version, OPEN, data)
            self._tree.write_index()
        return dict(held)

    def part(self, descriptor: ShardDescriptor, *, second: bool) -> FilePart:
        """Raises `NoSpace` when the disk has filled up since `opened`."""
        free = self._tree.free_bytes()
        if free < self._shard_size:
            raise NoSpace(
                f"version {self._version}: {free} bytes are free, but its next shard may have {self._shard_size}"
            )
        name = keys.shard_name(descriptor.index, beside=self._beside) + (".second" if second else "")
        return FilePart(self._tree.temporary(self._version, name))

    def put(self, signed: Signed[ShardDescriptor], part: ShardPart) -> None:
        assert isinstance(part, FilePart)
        index = signed.document.index
        self._tree.publish(self._version, keys.descriptor_name(index, beside=self._beside), signed.to_json())
        self._tree.publish_file(self._version, keys.shard_name(index, beside=self._beside), part.path)
        self._checked[index] = signed.document.sha256

    def seal(self, signed: Signed[WeightsManifest]) -> None:
        self._tree.publish(self._version, keys.seal_name(beside=self._beside), signed.to_json())

    def _held(self, record: VersionOpen) -> dict[int, str]:
        found = {}
        for index in range(record.shard_count):
            data = self._tree.read(self._version, keys.descriptor_name(index, beside=self._beside))
            path = self._tree.path(self._version, keys.shard_name(index, beside=self._beside))
            if data is None or not path.is_file():
                continue
            try:
                digest = pieces.read_descriptor(data, self._wanted, record, index).document.sha256
            except BadPiece:
                continue
            if self._checked.get(index) == digest or file_sha256(path) == digest:
                found[index] = digest
            self._beat()
        self._checked = dict(found)
        return found

    def _make_room(self, record: VersionOpen, held: dict[int, str]) -> None:
        """Drop the oldest versions until this one fits; the newest whole one and what either is based on stay: clients may be reading them."""
        bounds = [record.shard_bounds(index) for index in range(record.shard_count) if index not in held]
        whole = sum(end - start for start, end in bounds)
        # How small a delta becomes is known only at its end: begin if a few shards fit, and look again before each (`part`).
        needed = min(whole, SHARDS_AHEAD * record.shard_size) if record.base is not None or self._beside else whole
        needed += DISK_RESERVE_BYTES
        bases = {**self._tree.bases(), self._version: chains.base_of(record)}
        kept = chains.closure(bases, [*self._tree.newest_whole(), self._version])
        for number in self._tree.held():
            if self._tree.free_bytes() >= needed:
                return
            if number not in kept and number < self._version:
                telemetry.get_logger().warning("dropping a version because the volume is full", dropped=number)
                self._tree.drop(number)
        if self._tree.free_bytes() < needed:
            raise NoSpace(
                f"version {self._version} needs {needed} more bytes, but only {self._tree.free_bytes()} are free: give the relay a larger volume"
            )


def _same_record(data: bytes, signed: Signed[VersionOpen]) -> bool:
    try:
        return document_digest(Signed[VersionOpen].from_json(data).document) == document_digest(signed.document)
    except ValueError:
        return False


def unseal_torn(tree: Tree) -> None:
    """At start: take the seal off versions that lack a piece (a disk that lost files), so that they are completed from the origin."""
    for version in tree.held():
        seals = [beside for beside in (False, True) if tree.size(version, keys.seal_name(beside=beside)) is not None]
        if not all(_is_whole(tree, version, beside=beside) for beside in seals):
            telemetry.get_logger().warning("a sealed version is incomplete on disk; completing it", version=version)
            tree.unseal(version)


def _is_whole(tree: Tree, version: int, *, beside: bool) -> bool:
    try:
        record = Signed[VersionOpen].from_json(tree.read(version, OPEN) or b"").document
    except ValueError:
        return False
    for index in range(record.shard_count):
        try:
            data = tree.read(version, keys.descriptor_name(index, beside=beside)) or b""
            size = Signed[ShardDescriptor].from_json(data).document.size
        except ValueError:
            return False
        if tree.size(version, keys.shard_name(index, beside=beside)) != size:
            return False
    return True
