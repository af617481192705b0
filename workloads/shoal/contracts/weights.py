"""Weights of a policy version, as published: opening record, shard descriptors, sealing manifest (DESIGN section 4).

A checkpoint is a list of files (an HF folder). Its *stream* is their concatenation in the order of `VersionOpen.files`; shards cut the stream into
equal pieces. `open.json` comes first, then each shard after its descriptor, and `weights.json` last. All three are signed by the trainer's key.
Written by the publisher; read by relays, workers and validators.

What a version's digest is over, `VersionOpen.digest_of` says: absent, as releases before 0.2.0 wrote it, the stream; `shards`, the SHA-256 of each
shard's bytes as assembled, one after the other. The latter needs one pass over the bytes, on as many cores as there are.

A version may be published as a *delta* against the version before it: each shard then holds what changed in the same bytes of the base. Digests of
shards are those of the bytes that are sent; the manifest's is always that of the assembled bytes, however they travelled.

Beside a version in full there may be a delta of it, for those who have the version before: `beside-00000.json` and `.bin`, and the same seal under
the name `beside.json` where these are all there.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer, model_validator

from shoal.contracts.base import Contract, RunName, Sha256Hex, unset

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
"""A file of a checkpoint: a plain name without folders, so that no publisher can make a reader write elsewhere."""

VersionNumber = Annotated[int, Field(ge=0, le=999_999)]
MAX_CHECKPOINT_BYTES = 1 << 44


class CheckpointFile(Contract):
    name: FileName
    size: int = Field(ge=0, le=MAX_CHECKPOINT_BYTES, description="bytes")


Encoding = Literal["full", "delta"]
"""How a version travels: as it is, or as what changed against the base's same bytes."""
DeltaEncoding = Literal["delta", "sparse"]
"""How what changed in a shard is written: in byte planes, or weight by weight (`storage.delta`)."""


class DeltaBase(Contract):
    """The base of a delta."""

    version: VersionNumber = Field(description="the version whose bytes are changed")
    sha256: Sha256Hex = Field(description="the base's digest, as its manifest has it")
    item_size: Literal[1, 2, 4] = Field(
        description="bytes of a weight: byte k of every item goes into plane k, where equal bytes lie together"
    )


class VersionOpen(Contract):
    """`open.json`: all that a reader must know to preallocate and to ask for shards."""

    schema_version: Literal[1] = 1
    run: RunName
    version: VersionNumber
    files: list[CheckpointFile] = Field(min_length=1, max_length=10_000)
    shard_size: int = Field(ge=1, le=1 << 34, description="bytes of every shard but the last")
    shard_count: int = Field(ge=1, le=99_999)
    encoding: Encoding = Field(default="full", description="a reader without deltas refuses this unknown value")
    base: DeltaBase | None = Field(
        default=None, description="for encoding delta only; files, shards and digest are alike"
    )
    beside: DeltaBase | None = Field(
        default=None,
        exclude_if=unset,
        description="for encoding full only; the same version lies beside it as a delta against this base",
    )
    digest_of: Literal["shards"] | None = Field(
        default=None,
        exclude_if=unset,
        description="the version's digest is over its shards' digests; absent: over its bytes",
    )

    @model_serializer(mode="wrap")
    def _as_before_without_base(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A full version is written as it was before there were deltas, so that its digest and signature stay good."""
        return _without(handler(self), "base", self.base is None)

    @property
    def total_size(self) -> int:
        """Bytes of the stream."""
        return sum(file.size for file in self.files)

    @property
    def largest_shard(self) -> int:
        """Bytes of the first shard as assembled; no other has more."""
        return self.shard_bounds(0)[1]

    def shard_bounds(self, index: int) -> tuple[int, int]:
        """Start and end offset (bytes) of shard `index` in the stream."""
        if not 0 <= index < self.shard_count:
            raise ValueError(f"shard {index} of version {self.version}: it has {self.shard_count}")
        start = index * self.shard_size
        return start, min(start + self.shard_size, self.total_size)

    @model_validator(mode="after")
    def _shards_cover_the_files(self) -> "VersionOpen":
        needed = max(1, -(-self.total_size // self.shard_size))
        if self.shard_count != needed:
            raise ValueError(
                f"shard_count is {self.shard_count}, {self.total_size} bytes in shards of {self.shard_size} need {needed}"
            )
        if (self.encoding == "delta") != (self.base is not None):
            raise ValueError(f"encoding is {self.encoding}: a delta names its base, and nothing else does")
        if self.base is not None and self.beside is not None:
            raise ValueError("a delta has no second delta beside it")
        for base in (self.base, self.beside):
            if base is not None and base.version >= self.version:
                raise ValueError(
                    f"version {self.version} cannot be a delta against version {base.version}: give an older one"
                )
        names = [file.name for file in self.files]
        if len(set(names)) != len(names):
            raise ValueError("two files have the same name")
        return self


class ShardDescriptor(Contract):
    """`00000.json`: published just before its shard."""

    run: RunName
    version: VersionNumber
    index: int = Field(ge=0, le=99_998)
    size: int = Field(ge=0, le=1 << 34, description="bytes that travel")
    sha256: Sha256Hex = Field(description="of the bytes that are sent")
    encoding: Encoding | DeltaEncoding = Field(
        default="full", description="a shard of a delta may be full, where that is not larger"
    )

    @model_serializer(mode="wrap")
    def _as_before_when_full(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """See `VersionOpen`."""
        return _without(handler(self), "encoding", self.encoding == "full")


class WeightsManifest(Contract):
    """`weights.json`: seals a version. `sha256` is over the assembled version, see `VersionOpen.digest_of`; it is the weights digest everywhere."""

    run: RunName
    version: VersionNumber
    model: str = Field(min_length=1, max_length=253, description="model id of the run")
    sha256: Sha256Hex
    open_digest: Sha256Hex = Field(description="canonical digest of the opening record")
    shards: list[Sha256Hex] = Field(min_length=1, max_length=99_999, description="digest of every shard, in order")
    beside: list[Sha256Hex] | None = Field(
        default=None,
        exclude_if=unset,
        min_length=1,
        max_length=99_999,
        description="the same of the delta beside a version in full, where there is one",
    )

    def sent(self, *, beside: bool) -> list[Sha256Hex]:
        """Digests of the shards as they travel, of the version or of the delta beside it; that has none where there is no such delta."""
        return (self.beside or []) if beside else self.shards


class VersionIndex(Contract):
    """`versions/index.json` of an origin or relay: what it holds, oldest first. A hint only, hence unsigned: every piece is checked by itself."""

    versions: list[VersionNumber] = Field(max_length=1000)


def _without(fields: dict[str, Any], name: str, absent: bool) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name} if absent else fields
