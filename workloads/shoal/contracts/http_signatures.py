"""Signed requests: RFC 9421 HTTP message signatures with Ed25519 over method, target URI and Content-Digest (RFC 9530).

`sign_request` gives the headers to add; `verify_request` says who signed, or raises. Time and nonce memory belong to the caller: it passes `now`
and keeps every returned nonce for `NONCE_SECONDS`, twice the clock window, so that a replay inside the window is always known. Which node a request
*speaks for* is in its body or path: the server compares it with `SignedBy.key`.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, HTTPSignatureKeyResolver
from http_message_signatures.algorithms import ED25519
from http_message_signatures.exceptions import HTTPMessageSignaturesException

from shoal.contracts.identity import PrivateKey, public_key

CLOCK_WINDOW_SECONDS = 60
"""A request is refused when its `created` differs from the server's clock by more than this, either way."""
NONCE_SECONDS = 2 * CLOCK_WINDOW_SECONDS
SIGNATURE_TAG = "shoal-request-v1"
COVERED = ("@method", "@target-uri", "content-digest")
MAX_HEADER_BYTES = 4096


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
    """The request as the library wants it: upper-case method, absolute URL, headers that can be written."""

    method: str
    url: str
    headers: dict[str, str]


class _Keys(HTTPSignatureKeyResolver):
    """A key id is the public key itself; whether that key may do anything is decided after the signature is known to fit."""

    def __init__(self, private: PrivateKey | None = None) -> None:
        self._private = private

    def resolve_private_key(self, key_id: str) -> object:
        if self._private is None or key_id != self._private.public:
            raise KeyError(key_id)
        return self._private.cryptography_key

    def resolve_public_key(self, key_id: str) -> object:
        return public_key(key_id)


class _Verifier(HTTPMessageVerifier):
    # The window is checked in `verify_request` against the caller's clock, in both directions.
    max_clock_skew = datetime.timedelta(days=36500)


def sign_request(
    *, method: str, url: str, body: bytes, key: PrivateKey, created_unix: int, nonce: str
) -> dict[str, str]:
    """Headers `Content-Digest`, `Signature-Input` and `Signature` for a request to the absolute `url` with `body` (may be empty)."""
    message = _Message(method.upper(), url, {})
    HTTPMessageSigner(signature_algorithm=ED25519, key_resolver=_Keys(key)).sign(
        message,
        key_id=key.public,
        created=datetime.datetime.fromtimestamp(created_unix, tz=datetime.UTC),
        nonce=nonce,
        label="shoal",
        tag=SIGNATURE_TAG,
        covered_component_ids=COVERED[:2],
        body=body,
    )
    return message.headers


def verify_request(*, method: str, url: str, headers: Mapping[str, str], body: bytes, now_unix: float) -> SignedBy:
    """Who signed this request; raises `BadRequestSignature` when it is not signed, covers too little, is out of the clock window or does not fit.

    `url` is the absolute URL as the server knows itself (a wrong audience then does not verify), not as the client claims it.
    """
    wanted = {name.lower(): value for name, value in headers.items()}
    for name in ("signature", "signature-input", "content-digest"):
        if name not in wanted:
            raise BadRequestSignature(
                f"request lacks the header {name}; sign it as RFC 9421 with Ed25519 over {', '.join(COVERED)}"
            )
        if len(wanted[name]) > MAX_HEADER_BYTES:
            raise BadRequestSignature(f"header {name} has more than {MAX_HEADER_BYTES} bytes")
    message = _Message(method.upper(), url, wanted)
    try:
        results = _Verifier(signature_algorithm=ED25519, key_resolver=_Keys()).verify(
            message, max_age=None, expect_tag=SIGNATURE_TAG, require_components=COVERED, body=body
        )
    except (HTTPMessageSignaturesException, ValueError) as error:
        raise BadRequestSignature(f"signature does not fit: {str(error)[:200]}") from error
    if len(results) != 1:
        raise BadRequestSignature(f"request carries {len(results)} signatures tagged {SIGNATURE_TAG}, required is one")
    parameters = results[0].parameters
    created, key, nonce = parameters.get("created"), str(parameters.get("keyid", "")), results[0].nonce
    if not isinstance(created, int) or abs(now_unix - created) > CLOCK_WINDOW_SECONDS:
        raise BadRequestSignature(
            f"signature was created {now_unix - (created if isinstance(created, int) else 0):.0f} s from now,"
            f" allowed are {CLOCK_WINDOW_SECONDS} s: check this machine's clock"
        )
    if not nonce or not 16 <= len(nonce) <= 64:
        raise BadRequestSignature("signature needs a nonce of 16 to 64 characters")
    return SignedBy(key=key, nonce=nonce, created_unix=created)
