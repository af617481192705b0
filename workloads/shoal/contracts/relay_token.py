"""Relay tokens: a signed `RelayToken` as one header-safe word, `base64url(canonical JSON).base64url(signature)`.

The orchestrator makes them for nodes (30 s); a relay's sync agent makes one for itself to ask the origin, which knows the relay role's key from the
roster. A relay checks a token without asking anyone, so that the orchestrator may be away.
"""

import base64
import binascii

from shoal.contracts.protocol import RelayToken
from shoal.crypto.canonical import signing_bytes
from shoal.crypto.keys import PrivateKey, verify

_TAG = b"shoal/RelayToken/v1\0"


class BadToken(ValueError):
    """The token is malformed, expired, of another run, or not signed by the key required."""


def encode(token: RelayToken, key: PrivateKey) -> str:
    """Sign a token and write it as one word for an `Authorization: Bearer` header."""
    document = _canonical(token)
    signature = key.sign(_TAG + document)
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (document, signature))


def decode(word: str, *, signer: str, run: str, now_unix: float) -> RelayToken:
    """The token, if `signer` made it for `run` and it has not expired; raises `BadToken` otherwise."""
    if len(word) > 1000:
        raise BadToken("token is longer than 1000 characters")
    parts = word.split(".")
    if len(parts) != 2:
        raise BadToken("token is not of the form document.signature")
    try:
        document, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in parts)
        token = RelayToken.from_json(document)
    except (binascii.Error, ValueError) as error:
        raise BadToken("token is not readable") from error
    if not verify(signer, signature, signing_bytes(token)):
        raise BadToken("token is not signed by the orchestrator of this run")
    if token.run != run:
        raise BadToken(f"token is for run {token.run!r}, this relay serves {run!r}")
    if token.expires_unix < now_unix:
        raise BadToken("token has expired")
    return token


def _canonical(token: RelayToken) -> bytes:
    """`canonical_bytes` of a token, written out: every heartbeat is answered with one, and its names and digits have one form only."""
    return f'{{"expires_unix":{token.expires_unix},"node":"{token.node}","run":"{token.run}"}}'.encode()
