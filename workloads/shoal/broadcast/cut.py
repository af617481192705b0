"""How a checkpoint becomes shards: pure arithmetic over names and sizes, no I/O.

In: the files of a checkpoint with their sizes, and what is known of the version before. Out: the opening record with its encoding, descriptors, and
the sealing manifest. Called by `publishing`, which does the reading and writing.
"""

from collections.abc import Sequence

from shoal.contracts.weights import (
    CheckpointFile,
    DeltaBase,
    DeltaEncoding,
    Encoding,
    ShardDescriptor,
    VersionOpen,
    WeightsManifest,
)
from shoal.crypto.canonical import document_digest

MAX_SHARDS = 99_999  # shard names have five digits


class CannotCut(ValueError):
    """The checkpoint cannot be published as it is; the message says why and what to change."""


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
    return VersionOpen(
        run=run, version=version, files=ordered, shard_size=shard_size, shard_count=count, digest_of="shards"
    )


def base_for(
    record: VersionOpen, candidate: VersionOpen, sha256: str, item_size: int, *, anchor_every: int
) -> DeltaBase | None:
    """What a delta of `record` may be made against: `candidate`, whose digest is `sha256`; None where there can be no delta.

    There is none where all versions go out in full (`anchor_every` 1), and where `candidate` is not the version just before. Nor is there one where
    it is laid out otherwise: then its bytes are not those of the same weights.
    """
    if anchor_every == 1 or candidate.version != record.version - 1 or _layout(candidate) != _layout(record):
        return None
    return DeltaBase(version=candidate.version, sha256=sha256, item_size=item_size)


def is_anchor(record: VersionOpen, *, anchor_every: int, chain_bytes: int) -> bool:
    """Whether `record` goes out in full; its delta lies beside it where `has_delta_beside`.

    So goes every `anchor_every`-th version, so that no chain is longer; and one whose chain of deltas (`chain_bytes`, this one included) would be as
    large as a version in full: a client without a base must fetch them all.
    """
    return record.version % anchor_every == 0 or chain_bytes >= max(1, record.total_size)


def has_delta_beside(record: VersionOpen, *, anchor_every: int, last_bytes: int) -> bool:
    """Whether an anchor has a delta beside it, for who has the version before.

    One that large deltas made an anchor has none where the last delta (`last_bytes`) was half of a version in full: it would save little, and
    store and relays would hold both.
    """
    return record.version % anchor_every == 0 or 2 * last_bytes < record.total_size


def _layout(record: VersionOpen) -> tuple[object, ...]:
    return record.files, record.shard_size, record.digest_of


def as_delta(record: VersionOpen, base: DeltaBase) -> VersionOpen:
    """The same version, to be published as a delta against `base`."""
    return VersionOpen.model_validate({**record.model_dump(), "encoding": "delta", "base": base})


def with_delta_beside(record: VersionOpen, base: DeltaBase) -> VersionOpen:
    """The same version, to be published in full, and as a delta against `base` beside it."""
    return VersionOpen.model_validate({**record.model_dump(), "beside": base})


def descriptor(
    record: VersionOpen, index: int, size: int, sha256: str, encoding: Encoding | DeltaEncoding = "full"
) -> ShardDescriptor:
    """The descriptor of shard `index`, whose bytes as they travel are `size` many and have the digest `sha256`."""
    return ShardDescriptor(
        run=record.run, version=record.version, index=index, size=size, sha256=sha256, encoding=encoding
    )


def manifest(
    record: VersionOpen, model: str, sha256: str, shard_sha256s: Sequence[str], beside: Sequence[str] = ()
) -> WeightsManifest:
    """The document that seals the version: its digest, that of the opening record, and of every shard in order as it travels.

    `beside`: digests of the shards of the delta beside it, where there is one.
    """
    for given, expected in ((shard_sha256s, True), (beside, record.beside is not None)):
        count = record.shard_count if expected else 0
        if len(given) != count:
            raise ValueError(f"{len(given)} shard digests for {count} shards")
    return WeightsManifest(
        run=record.run,
        version=record.version,
        model=model,
        sha256=sha256,
        open_digest=document_digest(record),
        shards=list(shard_sha256s),
        beside=list(beside) or None,
    )
