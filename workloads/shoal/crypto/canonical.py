"""Canonical bytes of documents (RFC 8785), and the bytes that are signed: a type tag before them. Pure."""

import hashlib

import rfc8785
from pydantic import BaseModel


def canonical_bytes(document: BaseModel) -> bytes:
    """RFC 8785 (JSON Canonicalization Scheme) bytes of the document; raises ValueError for an integer beyond 2^53 - 1."""
    return rfc8785.dumps(document.model_dump(mode="json", by_alias=True))


def document_digest(document: BaseModel) -> str:
    """SHA-256 of the canonical bytes, in hex."""
    return hashlib.sha256(canonical_bytes(document)).hexdigest()


def signing_bytes(document: BaseModel) -> bytes:
    """The signed bytes: the type tag, a NUL byte, the canonical bytes."""
    return f"shoal/{type(document).__name__}/v1".encode() + b"\0" + canonical_bytes(document)
