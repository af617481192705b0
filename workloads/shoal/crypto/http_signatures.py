"""Signed requests: RFC 9421 HTTP message signatures with Ed25519 over method, target URI and Content-Digest (RFC 9530).

`sign_request` gives the headers to add; `verify_request` says who signed, or raises. Time and nonce memory belong to the caller: it passes `now`
and keeps every returned nonce for `NONCE_SECONDS`, so that a replay inside the clock window is always known. Which node a request
*speaks for* is in its body or path: the server compares it with `SignedBy.key`.

The library reads any form that the RFC allows. Headers in the one form that `sign_request` writes are read here without it, in a third of the time:
a heartbeat is little more than its signature. What does not have that form to the letter goes to the library.
"""

import base64
import binascii
import datetime
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import HTTPMessageVerifier, HTTPSignatureKeyResolver
from http_message_signatures.algorithms import ED25519
from http_message_signatures.exceptions import HTTPMessageSignaturesException

from shoal.crypto.keys import PrivateKey, public_key

CLOCK_WINDOW_SECONDS = 60
"""A request is refused when its `created` differs from the server's clock by more than this, either way."""
NONCE_SECONDS = 3 * CLOCK_WINDOW_SECONDS
"""A sender's clock may be ahead, so that a head fits for twice the window. A server may wait for a body, by half a window, before it takes
the nonce."""
SIGNATURE_TAG = "shoal-request-v1"
COVERED = ("@method", "@target-uri", "content-digest")
MAX_HEADER_BYTES = 4096
KNOWN_KEYS = 16_384
"""Key objects that are kept ready, about 200 bytes each: reading one from its hex digits costs a tenth of a check."""

_PLAIN_INPUT = re.compile(
    r'shoal=(\("@method" "@target-uri" "content-digest"\);created=([0-9]{1,10});keyid="([0-9a-f]{64})";alg="ed25519"'
    r';nonce="([A-Za-z0-9_-]{16,64})";tag="shoal-request-v1")'
)
_PLAIN_DIGEST = re.compile(r"sha-256=:[A-Za-z0-9+/]{43}=:")
_PLAIN_SIGNATURE = re.compile(r"shoal=:([A-Za-z0-9+/]{86}==):")
_PLAIN_URL = re.compile(r"https?://[a-z0-9.:\[\]-]+/[A-Za-z0-9/._~?=&-]*")
"""URLs that mean themselves: nothing in them is escaped or could be written otherwise."""


class BadRequestSignature(ValueError):
    """The request is not signed as required; the message says what is wrong (for the 401 answer)."""


@dataclass(frozen=True)
class SignedBy:
    """A verified signature: the signer's public key in hex, and the nonce that must not be seen again."""

    key: str
    nonce: str
    created_unix: int


@dataclass
class _Message:
    """The request as the library needs it: upper-case method, absolute URL, headers that can be written."""

    method: str
    url: str
    headers: dict[str, str]


class _Keys(HTTPSignatureKeyResolver):
    """A key id is the public key itself; whether that key may do anything is decided after the signature is known to fit."""

    def resolve_private_key(self, key_id: str) -> object:
        raise KeyError(key_id)  # nothing is signed by the library

    def resolve_public_key(self, key_id: str) -> object:
        return public_key(key_id)


class _Verifier(HTTPMessageVerifier):
    # The window is checked in `verify_request` against the caller's clock, in both directions.
    max_clock_skew = datetime.timedelta(days=36500)


def sign_request(
    *, method: str, url: str, body: bytes, key: PrivateKey, created_unix: int, nonce: str
) -> dict[str, str]:
    """Headers `Content-Digest`, `Signature-Input` and `Signature` for a request to the absolute `url` with `body` (may be empty)."""
    digest = _content_digest(body)
    parameters = (
        f'("@method" "@target-uri" "content-digest");created={created_unix};keyid="{key.public}";alg="ed25519"'
        f';nonce="{nonce}";tag="{SIGNATURE_TAG}"'
    )
    signature = base64.b64encode(key.sign(_signature_base(method, url, digest, parameters))).decode()
    return {
        "Content-Digest": digest,
        "Signature-Input": f"shoal={parameters}",
        "Signature": f"shoal=:{signature}:",
    }


def verify_request(
    *, method: str, url: str, headers: Mapping[str, str], body: bytes | None, now_unix: float
) -> SignedBy:
    """Who signed this request; raises `BadRequestSignature` when it is not signed, covers too little, is out of the clock window or does not fit.

    `url` is the absolute URL as the server knows itself (a wrong audience then does not verify), not as the client claims it. With `body` None only
    the head is looked at: who signed it, and a digest that the body must have (`has_digest`, or a second call).
    """
    wanted = {name.lower(): value for name, value in headers.items()}
    plain = _verify_plain(method, url, wanted, body)
    if plain is not None:
        _check_clock(plain.created_unix, now_unix)
        return plain
    for name in ("signature", "signature-input", "content-digest"):
        if name not in wanted:
            raise BadRequestSignature(
                f"the request lacks the header {name}; sign it as RFC 9421 with Ed25519 over {', '.join(COVERED)}"
            )
        if len(wanted[name]) > MAX_HEADER_BYTES:
            raise BadRequestSignature(f"header {name} has more than {MAX_HEADER_BYTES} bytes")
    message = _Message(method.upper(), url, wanted)
    try:
        results = _Verifier(signature_algorithm=ED25519, key_resolver=_Keys()).verify(
            message, max_age=None, expect_tag=SIGNATURE_TAG, require_components=COVERED, body=body
        )
    except (HTTPMessageSignaturesException, ValueError) as error:
        raise BadRequestSignature(f"the signature does not match: {str(error)[:200]}") from error
    if len(results) != 1:
        raise BadRequestSignature(
            f"request carries {len(results)} signatures tagged {SIGNATURE_TAG}; exactly one is required"
        )
    parameters = results[0].parameters
    created, key, nonce = parameters.get("created"), str(parameters.get("keyid", "")), results[0].nonce
    created = created if isinstance(created, int) else 0
    _check_clock(created, now_unix)
    if not nonce or not 16 <= len(nonce) <= 64:
        raise BadRequestSignature("the signature needs a nonce of 16 to 64 characters")
    return SignedBy(key=key, nonce=nonce, created_unix=created)


def has_digest(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a body is the one whose digest a head names in the form of `sign_request`; another form is for `verify_request` with the body."""
    return names_digest(headers, hashlib.sha256(body).digest())


def names_digest(headers: Mapping[str, str], sha256: bytes) -> bool:
    """The same for a body that is not kept, by its SHA-256."""
    return headers.get("content-digest") == _digest_header(sha256)


def _verify_plain(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> SignedBy | None:
    """The signer of a request in the form of `sign_request`; None when anything is otherwise or does not fit: the library then says what."""
    given = _PLAIN_INPUT.fullmatch(headers.get("signature-input", ""))
    signature = _PLAIN_SIGNATURE.fullmatch(headers.get("signature", ""))
    if (
        given is None
        or signature is None
        or not method.isascii()
        or not method.isalpha()
        or not _PLAIN_URL.fullmatch(url)
    ):
        return None
    digest = headers.get("content-digest", "")
    if not _PLAIN_DIGEST.fullmatch(digest) or (body is not None and digest != _content_digest(body)):
        return None
    parameters, created, key, nonce = given.groups()
    base = _signature_base(method, url, digest, parameters)
    try:
        _known_key(key).verify(base64.b64decode(signature[1], validate=True), base)
    except (InvalidSignature, ValueError, binascii.Error):
        return None
    return SignedBy(key=key, nonce=nonce, created_unix=int(created))


def _content_digest(body: bytes) -> str:
    return _digest_header(hashlib.sha256(body).digest())


def _digest_header(sha256: bytes) -> str:
    """The header of RFC 9530."""
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"


def _signature_base(method: str, url: str, digest: str, parameters: str) -> bytes:
    """The signed bytes (RFC 9421 section 2.5) for our three components; `url` is written as it stands."""
    lines = (
        ("@method", method.upper()),
        ("@target-uri", url),
        ("content-digest", digest),
        ("@signature-params", parameters),
    )
    return "\n".join(f'"{name}": {value}' for name, value in lines).encode()


@lru_cache(maxsize=KNOWN_KEYS)
def _known_key(key: str) -> Ed25519PublicKey:
    return public_key(key)


def _check_clock(created: int, now_unix: float) -> None:
    if abs(now_unix - created) > CLOCK_WINDOW_SECONDS:
        raise BadRequestSignature(
            f"signature was created {now_unix - created:.0f} s from now,"
            f" at most {CLOCK_WINDOW_SECONDS} s are allowed: check this machine's clock"
        )
