"""Where a relay keeps the pieces of one version: the `www/` tree, each visible as soon as it is checked.

The `Target` of a relay's `Transfer`. A piece is renamed into the tree after its signature or digest fitted, the descriptor just before its shard, so
clients of this relay can fetch what the origin is still making.
"""

from pathlib import Path

from shoal import telemetry
from shoal.broadcast import pieces
from shoal.broadcast.hashing import file_sha256
from shoal.broadcast.pieces import BadPiece, Wanted
from shoal.broadcast.tree import OPEN, WEIGHTS, Tree
from shoal.contracts import keys
from shoal.contracts.canonical import Signed, document_digest
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest

DISK_RESERVE_BYTES = 64 << 20  # log, index and part files


class NoSpace(OSError):
    """The disk cannot hold this version even after older ones were dropped."""


class TreeTarget:
    """One version in the tree."""

    def __init__(self, tree: Tree, wanted: Wanted) -> None:
        self._tree = tree
        self._wanted = wanted
        self._version = wanted.version

    def opened(self, signed: Signed[VersionOpen]) -> dict[int, str | None]:
        """Publish the record; what an earlier process had checked is hashed once more and kept if it still fits."""
        data = signed.to_json()
        present = self._tree.read(self._version, OPEN)
        if present is not None and not _same_record(present, signed):
            self._tree.drop(self._version)
        held = self._held(signed.document)
        self._make_room(signed.document, held)
        if self._tree.read(self._version, OPEN) != data:
            self._tree.publish(self._version, OPEN, data)
            self._tree.write_index()
        return dict(held)

    def part(self, index: int) -> Path:
        return self._tree.temporary(self._version, keys.shard_name(index))

    def put(self, signed: Signed[ShardDescriptor], part: Path) -> None:
        index = signed.document.index
        self._tree.publish(self._version, keys.descriptor_name(index), signed.to_json())
        self._tree.publish_file(self._version, keys.shard_name(index), part)

    def seal(self, signed: Signed[WeightsManifest]) -> None:
        self._tree.publish(self._version, WEIGHTS, signed.to_json())

    def _held(self, record: VersionOpen) -> dict[int, str]:
        found = {}
        for index in range(record.shard_count):
            data = self._tree.read(self._version, keys.descriptor_name(index))
            path = self._tree.path(self._version, keys.shard_name(index))
            if data is None or not path.is_file():
                continue
            try:
                digest = pieces.read_descriptor(data, self._wanted, record, index).document.sha256
            except BadPiece:
                continue
            if file_sha256(path) == digest:
                found[index] = digest
        return found

    def _make_room(self, record: VersionOpen, held: dict[int, str]) -> None:
        """Drop the oldest versions until this one fits; the newest sealed one stays, because clients may be reading it."""
        bounds = [record.shard_bounds(index) for index in range(record.shard_count) if index not in held]
        needed = sum(end - start for start, end in bounds) + DISK_RESERVE_BYTES
        others = [number for number in self._tree.held() if number != self._version]
        newest_sealed = self._tree.sealed()[-1:]
        for number in others:
            if self._tree.free_bytes() >= needed:
                return
            if number not in newest_sealed and number < self._version:
                telemetry.get_logger().warning("dropping a version for want of space", dropped=number)
                self._tree.drop(number)
        if self._tree.free_bytes() < needed:
            raise NoSpace(
                f"version {self._version} needs {needed} bytes more, {self._tree.free_bytes()} are free: give the relay a larger volume"
            )


def _same_record(data: bytes, signed: Signed[VersionOpen]) -> bool:
    try:
        return document_digest(Signed[VersionOpen].from_json(data).document) == document_digest(signed.document)
    except ValueError:
        return False


def unseal_torn(tree: Tree) -> None:
    """At start: take the seal off versions that lack a piece (a disk that lost files), so that they are completed from the origin."""
    for version in tree.sealed():
        if not _is_whole(tree, version):
            telemetry.get_logger().warning("a sealed version is not whole on disk, completing it", version=version)
            tree.unseal(version)


def _is_whole(tree: Tree, version: int) -> bool:
    try:
        record = Signed[VersionOpen].from_json(tree.read(version, OPEN) or b"").document
    except ValueError:
        return False
    for index in range(record.shard_count):
        start, end = record.shard_bounds(index)
        if tree.size(version, keys.shard_name(index)) != end - start:
            return False
        if tree.size(version, keys.descriptor_name(index)) is None:
            return False
    return True
