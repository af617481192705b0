"""Checking the signed pieces of a version as they arrive: bytes in, verified documents out, or `BadPiece`.

Pure. A signature alone is not enough: an old piece is well signed too, hence every document must also be of this run, this version and this
place. Called by `transfer` for bytes from relays and origin, and by `origin` for bytes from the store.
"""

from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from shoal.contracts.base import Contract
from shoal.contracts.newer import UNKNOWN as UNKNOWN_KEY
from shoal.contracts.signed import BadSignature, Signed, Signer
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest
from shoal.crypto.canonical import document_digest

Document = TypeVar("Document", bound=Contract)

# Upper bounds of honest documents: 10,000 files of 200 bytes each, one digest, twice 99,999 digests of 67 bytes each, 1,000 numbers.
MAX_OPEN_BYTES = 4 << 20
MAX_DESCRIPTOR_BYTES = 4 << 10
MAX_MANIFEST_BYTES = 16 << 20
MAX_INDEX_BYTES = 64 << 10


LATER_RELEASE = "not known here; if every source says so, the publisher is of a later release: upgrade this one"


class BadPiece(ValueError):
    """A piece that the trainer did not make for this place; the message says which and why."""


class OtherOpening(BadPiece):
    """The manifest seals a different opening record than the one in hand: the version was made again before it was sealed."""


@dataclass(frozen=True)
class WantedVersion:
    """Which version of which run is being read, and whose signature it must carry. `beside`: as the delta beside a version in full."""

    run: str
    version: int
    trainer_key: Signer
    beside: bool = False


def read_open(data: bytes, wanted: WantedVersion) -> Signed[VersionOpen]:
    """Check `open.json`."""
    signed = _parse(Signed[VersionOpen], data, "open.json", wanted)
    _same_place(signed.document.run, signed.document.version, "open.json", wanted)
    return signed


def read_descriptor(data: bytes, wanted: WantedVersion, record: VersionOpen, index: int) -> Signed[ShardDescriptor]:
    """Check the descriptor of shard `index` against the opening record."""
    name = f"descriptor of shard {index}"
    signed = _parse(Signed[ShardDescriptor], data, name, wanted)
    found = signed.document
    _same_place(found.run, found.version, name, wanted)
    if found.index != index:
        raise BadPiece(f"{name} of version {wanted.version}: it is that of shard {found.index}")
    start, end = record.shard_bounds(index)
    if found.encoding == "full" and found.size != end - start:
        raise BadPiece(
            f"{name} of version {wanted.version}: it gives {found.size} bytes, the opening record {end - start}"
        )
    base = record.beside if wanted.beside else record.base
    if found.encoding != "full" and (base is None or found.size >= end - start):
        raise BadPiece(
            f"{name} of version {wanted.version}: a delta of {found.size} bytes, where the opening record allows"
            f" {'none' if base is None else f'fewer than {end - start}'}"
        )
    return signed


def read_manifest(data: bytes, wanted: WantedVersion, record: VersionOpen) -> Signed[WeightsManifest]:
    """Check `weights.json` against the opening record; raises `OtherOpening` when it seals another one."""
    signed = _parse(Signed[WeightsManifest], data, "weights.json", wanted)
    found = signed.document
    _same_place(found.run, found.version, "weights.json", wanted)
    if found.open_digest != document_digest(record):
        raise OtherOpening(f"weights.json of version {wanted.version} seals a different opening record")
    for listed, expected in ((found.shards, True), (found.beside or [], record.beside is not None)):
        count = record.shard_count if expected else 0
        if len(listed) != count:
            raise BadPiece(
                f"weights.json of version {wanted.version} lists {len(listed)} shards, the opening record {count}"
            )
    return signed


def _parse(kind: type[Signed[Document]], data: bytes, name: str, wanted: WantedVersion) -> Signed[Document]:
    try:
        signed = kind.from_json(data)
        signed.verified(wanted.trainer_key)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        said = LATER_RELEASE if first["type"] == UNKNOWN_KEY else first["msg"]
        raise BadPiece(f"{name} of version {wanted.version} cannot be read: {place}{said}") from error
    except BadSignature as error:
        raise BadPiece(f"{name} of version {wanted.version}: {error}") from error
    return signed


def _same_place(run: str, version: int, name: str, wanted: WantedVersion) -> None:
    if (run, version) != (wanted.run, wanted.version):
        raise BadPiece(f"{name} is of run {run} version {version}; expected {wanted.run} version {wanted.version}")
