"""How a checkpoint becomes shards: pure arithmetic over names and sizes, no I/O.

In: the files of a checkpoint with their sizes. Out: the opening record, for each shard the pieces of files that it is made of, and the sealing
manifest. Called by `origin`, which does the reading and writing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.contracts.canonical import document_digest
from shoal.contracts.weights import CheckpointFile, ShardDescriptor, VersionOpen, WeightsManifest

MAX_SHARDS = 99_999  # shard names have five digits


class CannotCut(ValueError):
    """The checkpoint cannot be published as it is; the message says why and what to change."""


@dataclass(frozen=True)
class Span:
    """Bytes [start, start + length) of the file `name`."""

    name: str
    start: int
    length: int


def opening_record(run: str, version: int, files: Sequence[CheckpointFile], shard_size: int) -> VersionOpen:
    """The record for a checkpoint of `files` (sizes in bytes), in the order of their names, cut every `shard_size` bytes."""
    ordered = sorted(files, key=lambda file: file.name)
    if not ordered:
        raise CannotCut(f"version {version} has no files")
    total = sum(file.size for file in ordered)
    count = max(1, -(-total // shard_size))
    if count > MAX_SHARDS:
        raise CannotCut(
            f"version {version}: {total} bytes in shards of {shard_size} make {count} shards, at most {MAX_SHARDS} are allowed;"
            f" set a shard size of {-(-total // MAX_SHARDS)} or more"
        )
    return VersionOpen(run=run, version=version, files=ordered, shard_size=shard_size, shard_count=count)


def spans(record: VersionOpen, index: int) -> list[Span]:
    """Which parts of which files make shard `index`, in order; their lengths add up to the size of the shard."""
    start, end = record.shard_bounds(index)
    found, file_start = [], 0
    for file in record.files:
        low, high = max(start, file_start), min(end, file_start + file.size)
        if low < high:
            found.append(Span(file.name, low - file_start, high - low))
        file_start += file.size
    return found


def descriptor(record: VersionOpen, index: int, sha256: str) -> ShardDescriptor:
    """The descriptor of shard `index`, whose bytes have the digest `sha256`."""
    start, end = record.shard_bounds(index)
    return ShardDescriptor(run=record.run, version=record.version, index=index, size=end - start, sha256=sha256)


def manifest(record: VersionOpen, model: str, stream_sha256: str, shard_sha256s: Sequence[str]) -> WeightsManifest:
    """What seals the version: the digest of the whole stream, of the opening record, and of every shard in order."""
    if len(shard_sha256s) != record.shard_count:
        raise ValueError(f"{len(shard_sha256s)} shard digests for {record.shard_count} shards")
    return WeightsManifest(
        run=record.run,
        version=record.version,
        model=model,
        sha256=stream_sha256,
        open_digest=document_digest(record),
        shards=list(shard_sha256s),
    )
