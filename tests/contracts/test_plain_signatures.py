"""Signed requests in the one form that we write are read without the library: what is taken then is what the library takes, and nothing else is."""

import base64
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import NODE_KEY, NOW
from shoal.contracts.protocol import RelayToken
from shoal.contracts.relay_token import encode
from shoal.crypto import http_signatures
from shoal.crypto.canonical import canonical_bytes, signing_bytes
from shoal.crypto.http_signatures import BadRequestSignature, SignedBy, sign_request, verify_request
from shoal.crypto.keys import verify

URL = "http://127.0.0.1:8080/v1/heartbeats?wait_seconds=20"
BODY = b'{"node": "n"}'
NONCE = "0123456789abcdef0123456789abcdef"


def signed(url: str = URL) -> dict[str, str]:
    return sign_request(method="POST", url=url, body=BODY, key=NODE_KEY, created_unix=NOW, nonce=NONCE)


def check(headers: dict[str, str], method: str = "POST", url: str = URL, body: bytes = BODY) -> SignedBy | str:
    try:
        return verify_request(method=method, url=url, headers=headers, body=body, now_unix=NOW)
    except BadRequestSignature as error:
        return f"refused: {error}"


@pytest.fixture
def library_only(monkeypatch: pytest.MonkeyPatch):
    """The same checks without the short way."""

    def judge(*arguments: object, **named: object) -> SignedBy | str:
        with monkeypatch.context() as patch:
            patch.setattr(http_signatures, "_verify_plain", lambda *_: None)
            return check(*arguments, **named)

    return judge


def test_what_we_sign_takes_the_short_way() -> None:
    lower = {name.lower(): value for name, value in signed().items()}
    found = http_signatures._verify_plain("POST", URL, lower, BODY)
    assert found == SignedBy(key=NODE_KEY.public, nonce=NONCE, created_unix=NOW)


def test_the_short_way_and_the_library_agree(library_only) -> None:
    good = signed()
    label = good["Signature-Input"].replace("shoal=", "other=")
    cases: list[tuple[dict[str, str], dict[str, object]]] = [
        (good, {}),
        (good, {"method": "post"}),
        (good, {"method": "PUT"}),
        (good, {"body": BODY + b" "}),
        (good, {"url": URL.replace("20", "21")}),
        (good, {"url": URL.replace("http:", "https:")}),
        ({**good, "Signature-Input": label, "Signature": good["Signature"].replace("shoal=", "other=")}, {}),
        ({**good, "Signature-Input": good["Signature-Input"].replace(';alg="ed25519"', "")}, {}),
        ({**good, "Signature-Input": good["Signature-Input"].replace(str(NOW), str(NOW + 1))}, {}),
        ({**good, "Signature-Input": good["Signature-Input"].replace(NONCE, "f" * 32)}, {}),
        ({**good, "Signature-Input": good["Signature-Input"].replace(NODE_KEY.public, "0" * 64)}, {}),
        ({**good, "Signature-Input": good["Signature-Input"].replace(' "@target-uri"', "")}, {}),
        ({**good, "Signature-Input": good["Signature-Input"].replace("shoal-request-v1", "shoal-request-v2")}, {}),
        ({**good, "Signature": "shoal=:" + "A" * 86 + "==:"}, {}),
        ({**good, "Signature": good["Signature"] + ", " + good["Signature"]}, {}),
        ({**good, "Content-Digest": "sha-256=:" + "A" * 43 + "=:"}, {}),
        ({**good, "Content-Digest": good["Content-Digest"] + ", sha-512=:AA==:"}, {}),
    ]
    answers = []
    for headers, changes in cases:
        ours, theirs = check(headers, **changes), library_only(headers, **changes)
        assert ours == theirs, (headers, changes)
        answers.append(ours)
    # The unchanged request, the same in lower case, and one under another label, which nobody signs.
    taken = [number for number, answer in enumerate(answers) if isinstance(answer, SignedBy)]
    assert taken == [0, 1, 6]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_changed_character_is_never_taken_for_what_was_signed(data: st.DataObject) -> None:
    headers = signed()
    name = data.draw(st.sampled_from(sorted(headers)))
    text = headers[name]
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(min_codepoint=32, max_codepoint=126).filter(lambda c: c != text[place]))
    changed = text[:place] + letter + text[place + 1 :]
    answer = check({**headers, name: changed})
    # A label, and the form of white space around a header's parts, are not signed; everything else is. Base64's last letter has four bits that mean
    # nothing: it is the same signature then, of the same nonce.
    if isinstance(answer, SignedBy):
        assert answer == SignedBy(key=NODE_KEY.public, nonce=NONCE, created_unix=NOW)
        same = name == "Signature" and signature_bytes(changed) == signature_bytes(text)
        assert same or re.search(r"[a-z=]|:|\s", letter), (name, place, letter)


def signature_bytes(header: str) -> bytes:
    """What `sig=:...:` holds, however its last letter is written."""
    return base64.b64decode(header.split(":")[1])


def test_an_address_that_could_be_written_otherwise_is_left_to_the_library() -> None:
    for url in ("http://Host/v1/x", "http://host/%76", "http://host", "http://host/a#b", "http://höst/"):
        lower = {name.lower(): value for name, value in signed().items()}
        assert http_signatures._verify_plain("POST", url, lower, BODY) is None, url


def test_the_clock_is_looked_at_on_the_short_way_too() -> None:
    with pytest.raises(BadRequestSignature, match="check this machine's clock"):
        verify_request(method="POST", url=URL, headers=signed(), body=BODY, now_unix=NOW + 3600)


def test_the_library_takes_what_we_sign(library_only) -> None:
    assert library_only(signed()) == SignedBy(key=NODE_KEY.public, nonce=NONCE, created_unix=NOW)


def test_a_relay_token_is_written_as_any_signed_document_is() -> None:
    token = RelayToken(run="a-run-7", node=NODE_KEY.public, expires_unix=NOW)
    document, signature = (base64.urlsafe_b64decode(part + "==") for part in encode(token, NODE_KEY).split("."))
    assert document == canonical_bytes(token)
    assert verify(NODE_KEY.public, signature, signing_bytes(token))
