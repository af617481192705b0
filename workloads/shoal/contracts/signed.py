"""Signed documents: the envelope that travels between processes, `Signed[T]`.

The type tag (`shoal/<ClassName>/v1`) keeps a signature over one kind of document from being passed off as another. The document itself stays
readable JSON, and a reader verifies before it looks.
"""

import json
from typing import Any, Generic, Protocol, TypeVar

import rfc8785

from shoal.contracts.base import Contract, NodeId, SignatureHex
from shoal.crypto.canonical import canonical_bytes, signing_bytes
from shoal.crypto.keys import PrivateKey, verify

Document = TypeVar("Document", bound=Contract)


class BadSignature(ValueError):
    """A signed document whose signature does not fit, or whose signer is not the one required."""


class Signers(Protocol):
    """Several keys that may have signed a document, and about what each is believed (`trust.RoleKeys`)."""

    def refusal(self, signer: str, document: Contract) -> str:
        """Why a document of this signer is not believed, in words; empty when it is, if its signature fits."""
        ...


Signer = str | Signers
"""Who must have signed: one key, or any that a role held."""


class Signed(Contract, Generic[Document]):
    """A document with its signer and signature. `Signed[Roster].from_json(...)` parses; `.verified(...)` gives the document."""

    document: Document
    signer: NodeId
    signature: SignatureHex

    def verified(self, signer: Signer) -> Document:
        """The document, if `signer` is who signed it; raises `BadSignature` otherwise."""
        return self.verified_canonical(signer)[0]

    def verified_canonical(self, signer: Signer) -> tuple[Document, bytes]:
        """The same, with the document's canonical bytes, for a reader who hashes them too."""
        name = type(self.document).__name__
        if isinstance(signer, str):
            if self.signer != signer:
                raise BadSignature(f"{name} is signed by {self.signer[:12]}...; required: {signer[:12]}...")
        elif problem := signer.refusal(self.signer, self.document):
            raise BadSignature(f"{name} is signed by {self.signer[:12]}...: {problem}")
        try:
            canonical = canonical_bytes(self.document)
        except rfc8785.CanonicalizationError as error:  # nobody can have signed it
            raise BadSignature(f"{name} has no canonical form (RFC 8785): {error}") from error
        if not verify(self.signer, bytes.fromhex(self.signature), signing_bytes(self.document, canonical)):
            raise BadSignature(f"{name}: the signature of {self.signer[:12]}... does not fit the document")
        return self.document, canonical


def signed_object(name: str, text: str, signer: str) -> dict[str, Any] | None:
    """The fields of a document of class `name` that `signer` signed, as another version of this software may have them; None where it signed no such
    thing."""
    try:
        envelope = json.loads(text)
        document = envelope["document"]
        signed = f"shoal/{name}/v1".encode() + b"\0" + rfc8785.dumps(document)
        fits = verify(signer, bytes.fromhex(envelope["signature"]), signed)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return document if fits and isinstance(document, dict) else None


def sign(document: Document, key: PrivateKey) -> Signed[Document]:
    """Sign a document with a key; the inverse of `Signed.verified`."""
    return Signed[type(document)](  # type: ignore[misc, no-any-return, operator]  # the document's own class, which mypy cannot name
        document=document, signer=key.public, signature=key.sign(signing_bytes(document)).hex()
    )
