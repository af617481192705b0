"""The base of every typed document: strict, bounded, and written the same way everywhere.

`Contract` is for documents that our own processes exchange (snake_case JSON); `SpecModel` is for what a person writes in a manifest (camelCase).
Both refuse unknown keys, because a misspelt key that is silently dropped is a wrong run. The string types here are shared: their patterns are the
only place that says what a node id, a digest or a run name looks like.
"""

from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

NodeId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""An Ed25519 public key, 32 bytes in lower-case hex: the name of a node or of a trusted role's key."""

Sha256Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 digest in lower-case hex."""

SignatureHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
"""An Ed25519 signature (RFC 8032), 64 bytes in lower-case hex."""

RunName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
"""Name of a run: an RFC 1123 label of at most 40 characters, so that the names of its children stay within 63."""

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=253)]

QUANTITY_SUFFIX = "(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?"
"""Of Kubernetes quantities as people write them; exponents and signs are left out on purpose."""

SIZE_PATTERN = rf"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*){QUANTITY_SUFFIX}$"
"""Quantities of more than nothing: a claim of no size is refused."""

LeaseId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""A lease: 16 random bytes in hex, chosen by the orchestrator."""

Probability = Annotated[float, Field(ge=0.0, le=1.0)]

LARGEST_INTEGER = (1 << 53) - 1
"""Of a number that every reader of JSON has exactly (RFC 7493, section 2.2); beyond it a document has no canonical form (RFC 8785) and no digest."""


def unset(value: object) -> bool:
    """For `exclude_if` of a field that a release adds: a document that does not use it is written as before, and an earlier release reads it."""
    return value is None or value == [] or value == {}


class Contract(BaseModel):
    """A document between processes: unknown keys are refused, instances do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tells: ClassVar[bool] = False
    """As an answer it only tells: what a later release adds to it can be left out. Of work, or of terms, nothing can be."""

    def to_json(self) -> bytes:
        """UTF-8 JSON of this document, for a file or a request body."""
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Parse and check; raises `pydantic.ValidationError` naming every wrong field."""
        return cls.model_validate_json(data)


class SpecModel(Contract):
    """Part of a manifest: camelCase in YAML and JSON, snake_case in Python; either is accepted when parsing."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )
