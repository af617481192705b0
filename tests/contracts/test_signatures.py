"""Keys, signed documents and signed requests: what was signed is what was meant, by whom it was meant, once."""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import INVITE, NODE_KEY, NOW, ORCHESTRATOR_KEY, ROLE_KEYS, ROSTER, RUN, RUN_KEY, TRAINER_KEY, key
from shoal.contracts.base import Contract
from shoal.contracts.protocol import Invite, RelayToken
from shoal.contracts.roster import Roster
from shoal.contracts.signed import BadSignature, Signed, sign
from shoal.contracts.verdicts import Verdict
from shoal.crypto.canonical import canonical_bytes, document_digest, signing_bytes
from shoal.crypto.http_signatures import (
    CLOCK_WINDOW_SECONDS,
    NONCE_SECONDS,
    BadRequestSignature,
    SignedBy,
    sign_request,
    verify_request,
)
from shoal.crypto.keys import PrivateKey, verify
from shoal.transport.patience import BODY_SECONDS

URL = "http://127.0.0.1:8080/v1/leases?wait_seconds=20"
BODY = b'{"node": "n", "step": 7}'
NONCE = "0123456789abcdef0123456789abcdef"


class Anything(Contract):
    value: Any


class TestKeys:
    def test_signatures_are_those_of_rfc_8032(self) -> None:
        # RFC 8032 section 7.1, TEST 1
        public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        signature = bytes.fromhex(
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        )
        assert verify(public, signature, b"")
        assert not verify(public, signature, b"x")

    @given(st.text(max_size=80), st.binary(max_size=80), st.binary(max_size=20))
    def test_hostile_keys_and_signatures_are_false_and_never_a_crash(
        self, node: str, signature: bytes, data: bytes
    ) -> None:
        assert verify(node, signature, data) is False

    def test_a_key_survives_its_pem(self) -> None:
        again = PrivateKey.from_pem(NODE_KEY.to_pem())
        assert again.public == NODE_KEY.public
        assert verify(NODE_KEY.public, again.sign(b"x"), b"x")

    def test_a_pem_of_another_kind_is_refused(self) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

        pem = generate_private_key(SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with pytest.raises(ValueError, match="expected an Ed25519 private key in PEM"):
            PrivateKey.from_pem(pem)
        with pytest.raises(ValueError, match=r"(?i)pem"):
            PrivateKey.from_pem(b"no pem at all")

    def test_the_secret_does_not_show_in_the_repr(self) -> None:
        raw = NODE_KEY._key.private_bytes_raw().hex()
        assert raw not in repr(NODE_KEY)
        assert NODE_KEY.public[:12] in repr(NODE_KEY)

    def test_the_roster_tells_roles_from_strangers(self) -> None:
        roster = ROSTER.verified(RUN_KEY.public)
        assert {role: roster.role_of(held.public) for role, held in ROLE_KEYS.items()} == {r: r for r in ROLE_KEYS}
        assert roster.role_of(NODE_KEY.public) is None


class TestCanonicalBytes:
    def test_they_are_those_of_rfc_8785(self) -> None:
        # RFC 8785 section 3.2.2
        text = (
            r'{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
            r' "string": "\u20ac$\u000F\u000aA'
            r"'"
            r'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}'
        )
        expected = '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        assert canonical_bytes(Anything(value=json.loads(text))) == b'{"value":' + expected.encode() + b"}"

    def test_keys_are_sorted_by_utf_16_units_as_in_rfc_8785(self) -> None:
        # RFC 8785 section 3.2.3
        members = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
        found = canonical_bytes(Anything(value=dict.fromkeys(reversed(members), 0)))
        assert list(json.loads(found)["value"]) == members

    @pytest.mark.parametrize(
        ("bits", "expected"),
        [  # RFC 8785 appendix B
            ("0000000000000000", "0"), ("8000000000000000", "0"), ("0000000000000001", "5e-324"),
            ("7fefffffffffffff", "1.7976931348623157e+308"), ("4340000000000000", "9007199254740992"),
            ("4430000000000000", "295147905179352830000"), ("44b52d02c7e14af5", "9.999999999999997e+22"),
            ("44b52d02c7e14af6", "1e+23"), ("444b1ae4d6e2ef4f", "999999999999999900000"), ("444b1ae4d6e2ef50", "1e+21"),
            ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"), ("3eb0c6f7a0b5ed8d", "0.000001"),
            ("41b3de4355555553", "333333333.3333332"), ("becbf647612f3696", "-0.0000033333333333333333"),
        ],
    )  # fmt: skip
    def test_numbers_are_written_as_in_rfc_8785(self, bits: str, expected: str) -> None:
        import struct

        number = struct.unpack(">d", bytes.fromhex(bits))[0]
        assert canonical_bytes(Anything(value=number)) == f'{{"value":{expected}}}'.encode()

    def test_the_order_of_keys_in_the_source_does_not_matter_and_every_value_does(self) -> None:
        assert document_digest(Anything(value={"a": 1, "b": 2})) == document_digest(Anything(value={"b": 2, "a": 1}))
        values = [None, 0, 1, "", "1", [], {}, [1], {"a": 1}, True, "a"]
        assert len({document_digest(Anything(value=value)) for value in values}) == len(values)


class TestSignedDocuments:
    def test_a_signed_document_survives_the_wire(self) -> None:
        signed = sign(INVITE, ORCHESTRATOR_KEY)
        again = Signed[Invite].from_json(signed.to_json())
        assert again.verified(ORCHESTRATOR_KEY.public) == INVITE

    def test_another_signer_is_refused_by_name(self) -> None:
        expected = rf"Invite is signed by {NODE_KEY.public[:12]}...; required: {ORCHESTRATOR_KEY.public[:12]}"
        with pytest.raises(BadSignature, match=expected):
            sign(INVITE, NODE_KEY).verified(ORCHESTRATOR_KEY.public)

    def test_a_signer_that_is_only_claimed_is_refused(self) -> None:
        forged = sign(INVITE, NODE_KEY).model_copy(update={"signer": ORCHESTRATOR_KEY.public})
        with pytest.raises(BadSignature, match="does not fit the document"):
            forged.verified(ORCHESTRATOR_KEY.public)

    @pytest.mark.parametrize("field", list(Invite.model_fields))
    def test_every_field_is_covered(self, field: str) -> None:
        other = {
            "run": "other", "pool": "other", "node": key(9).public, "orchestrator_url": "http://evil:1", "nonce": "0" * 32,
            "expires_unix": NOW * 2,
        }[field]  # fmt: skip
        signed = sign(INVITE, ORCHESTRATOR_KEY)
        changed = signed.model_copy(update={"document": INVITE.model_copy(update={field: other})})
        with pytest.raises(BadSignature, match="does not fit the document"):
            changed.verified(ORCHESTRATOR_KEY.public)

    def test_a_verdict_from_before_it_named_its_validator_still_fits_its_signature(self) -> None:
        written = {
            "run": RUN, "node": "0" * 64, "lease": "0" * 32, "step": 1, "submission": 0, "sha256": "1" * 64, "policy_version": None,
            "outcome": "expired", "reason": None, "evidence": "late", "rewards": [], "rows": 0, "completion_tokens": 0, "proof_rows": 0,
            "check_seconds": 0.5,
        }  # fmt: skip
        old = rfc8785.dumps(written)  # all of its fields, as they were signed then
        assert canonical_bytes(Verdict.model_validate(written)) == old
        signed = sign(Verdict.model_validate(written), key(9))
        assert Signed[Verdict].from_json(signed.to_json()).verified(signed.signer).evidence == "late"
        named = Verdict.model_validate(written | {"validator": "v-0", "seconds_by_check": {"parse": 0.25}})
        assert canonical_bytes(named) != old
        assert Verdict.from_json(named.to_json()) == named

    def test_a_signature_over_one_kind_of_document_does_not_fit_another_kind(self) -> None:
        class Look(Contract):
            run: str
            keys: dict[str, str]

        look = Look.from_json(ROSTER.document.to_json())
        assert canonical_bytes(look) == canonical_bytes(ROSTER.document)
        assert signing_bytes(look) != signing_bytes(ROSTER.document)
        passed_off = Signed[Look](document=look, signer=ROSTER.signer, signature=ROSTER.signature)
        with pytest.raises(BadSignature):
            passed_off.verified(RUN_KEY.public)
        assert signing_bytes(ROSTER.document).startswith(b"shoal/Roster/v1\0")

    def test_the_roster_of_a_run_is_believed_only_from_the_run_key(self) -> None:
        forged = sign(Roster(run=RUN, keys=dict.fromkeys(ROLE_KEYS, NODE_KEY.public)), NODE_KEY)
        with pytest.raises(BadSignature, match="Roster is signed by"):
            forged.verified(RUN_KEY.public)


def signed_headers(**changes: Any) -> dict[str, str]:
    options = {
        "method": "POST",
        "url": URL,
        "body": BODY,
        "key": NODE_KEY,
        "created_unix": NOW,
        "nonce": NONCE,
    } | changes
    return sign_request(**options)


def check(headers: Mapping[str, str], **changes: Any) -> SignedBy:
    options = {"method": "POST", "url": URL, "headers": headers, "body": BODY, "now_unix": NOW + 0.5} | changes
    return verify_request(**options)


class TestSignedRequests:
    def test_the_signer_nonce_and_time_are_given_back(self) -> None:
        assert check(signed_headers()) == SignedBy(key=NODE_KEY.public, nonce=NONCE, created_unix=NOW)

    def test_an_empty_body_is_covered_too(self) -> None:
        headers = signed_headers(method="GET", body=b"")
        assert check(headers, method="GET", body=b"").key == NODE_KEY.public
        with pytest.raises(BadRequestSignature):
            check(headers, method="GET", body=b"x")

    def test_header_names_are_read_in_any_case_and_the_method_too(self) -> None:
        headers = {name.upper(): value for name, value in signed_headers(method="post").items()}
        assert check(headers, method="post").key == NODE_KEY.public

    def test_the_digest_of_the_body_is_that_of_rfc_9530(self) -> None:
        digest = base64.b64encode(hashlib.sha256(BODY).digest()).decode()
        assert f"sha-256=:{digest}:" in {name.lower(): v for name, v in signed_headers().items()}["content-digest"]

    @pytest.mark.parametrize(
        "change",
        [
            {"method": "PUT"},
            {"method": "GET"},
            {"url": URL.replace("leases", "uploads")},
            {"url": URL.replace("=20", "=21")},
            {"url": URL.split("?")[0]},
            {"url": URL + "&node=other"},
            {"url": URL.replace("127.0.0.1", "127.0.0.2")},
            {"url": URL.replace("8080", "8081")},
            {"url": URL.replace("http:", "https:")},
            {"body": BODY + b" "},
            {"body": b""},
            {"body": BODY.replace(b"7", b"8")},
        ],
        ids=str,
    )
    def test_every_covered_part_is_covered(self, change: dict[str, Any]) -> None:
        with pytest.raises(BadRequestSignature, match="signature does not match"):
            check(signed_headers(), **change)

    @pytest.mark.parametrize("parameter", ["created", "nonce", "keyid", "tag", "content-digest", "alg"])
    def test_the_parameters_of_the_signature_are_covered(self, parameter: str) -> None:
        headers = {name.lower(): value for name, value in signed_headers().items()}
        text = headers["signature-input"]
        changed = {
            "created": text.replace(str(NOW), str(NOW + 1)),
            "nonce": text.replace(NONCE, NONCE[::-1]),
            "keyid": text.replace(NODE_KEY.public, TRAINER_KEY.public),
            "tag": text.replace("shoal-request-v1", "shoal-request-v2"),
            "content-digest": text.replace(' "content-digest"', ""),
            "alg": text + ';alg="hmac-sha256"',
        }[parameter]
        assert changed != text
        with pytest.raises(BadRequestSignature):
            check(headers | {"signature-input": changed})

    def test_a_signature_that_leaves_the_body_out_is_refused(self) -> None:
        import datetime

        from http_message_signatures import HTTPMessageSigner
        from http_message_signatures.algorithms import ED25519

        from shoal.crypto.http_signatures import SIGNATURE_TAG, _Keys, _Message

        digest = base64.b64encode(hashlib.sha256(BODY).digest()).decode()
        message = _Message("POST", URL, {"content-digest": f"sha-256=:{digest}:"})
        keys = _Keys()
        keys.resolve_private_key = lambda _: NODE_KEY._key
        HTTPMessageSigner(signature_algorithm=ED25519, key_resolver=keys).sign(
            message, key_id=NODE_KEY.public, created=datetime.datetime.fromtimestamp(NOW, tz=datetime.UTC), nonce=NONCE,
            label="shoal", tag=SIGNATURE_TAG, covered_component_ids=("@method", "@target-uri"),
            use_existing_digest=True,
        )  # fmt: skip
        with pytest.raises(BadRequestSignature):
            check(message.headers)

    @pytest.mark.parametrize("name", ["Signature", "Signature-Input", "Content-Digest"])
    def test_a_header_that_is_missing_is_named_and_says_how_to_sign(self, name: str) -> None:
        headers = {key: value for key, value in signed_headers().items() if key.lower() != name.lower()}
        with pytest.raises(
            BadRequestSignature, match=f"the request lacks the header {name.lower()}; sign it as RFC 9421 with Ed25519"
        ):
            check(headers)

    @pytest.mark.parametrize("age", [CLOCK_WINDOW_SECONDS + 1, -CLOCK_WINDOW_SECONDS - 1, 10**6])
    def test_a_signature_outside_the_clock_window_is_refused_either_way(self, age: int) -> None:
        with pytest.raises(BadRequestSignature, match="at most 60 s are allowed: check this machine's clock"):
            check(signed_headers(), now_unix=NOW + age)

    @pytest.mark.parametrize("age", [CLOCK_WINDOW_SECONDS, -CLOCK_WINDOW_SECONDS, 0])
    def test_a_signature_inside_the_clock_window_is_taken(self, age: int) -> None:
        assert check(signed_headers(), now_unix=NOW + age).created_unix == NOW

    def test_nonces_are_kept_for_longer_than_a_signature_can_be_used(self) -> None:
        assert NONCE_SECONDS > 2 * CLOCK_WINDOW_SECONDS + BODY_SECONDS

    @pytest.mark.parametrize("nonce", ["", "short", "x" * 65])
    def test_a_nonce_that_cannot_tell_replays_is_refused(self, nonce: str) -> None:
        with pytest.raises(BadRequestSignature, match="nonce of 16 to 64 characters"):
            check(signed_headers(nonce=nonce))

    def test_a_replay_has_the_nonce_that_was_seen(self) -> None:
        headers = signed_headers()
        assert check(headers).nonce == check(headers, now_unix=NOW + 30).nonce

    def test_a_header_that_is_too_long_is_refused_unparsed(self) -> None:
        with pytest.raises(BadRequestSignature, match="header signature has more than 4096 bytes"):
            check({name.lower(): value for name, value in signed_headers().items()} | {"signature": "x" * 4097})

    def test_two_signatures_are_one_too_many(self) -> None:
        first = {name.lower(): value for name, value in signed_headers().items()}
        second = {name.lower(): value for name, value in signed_headers(key=TRAINER_KEY).items()}
        both = {
            name: f"{first[name]}, {second[name].replace('shoal=', 'other=', 1)}"
            for name in ("signature", "signature-input")
        }
        with pytest.raises(BadRequestSignature):
            check(first | both)

    def test_a_signature_of_another_key_does_not_fit_the_key_it_names(self) -> None:
        mine = {name.lower(): value for name, value in signed_headers().items()}
        theirs = {name.lower(): value for name, value in signed_headers(key=TRAINER_KEY).items()}
        with pytest.raises(BadRequestSignature, match="signature does not match"):
            check(mine | {"signature": theirs["signature"]})

    @settings(deadline=None)  # a busy machine is no defect
    @given(st.sampled_from(["signature", "signature-input", "content-digest"]), st.text(max_size=120))
    def test_hostile_headers_are_refused_and_never_a_crash(self, name: str, value: str) -> None:
        headers = {header.lower(): text for header, text in signed_headers().items()} | {name: value}
        with pytest.raises(BadRequestSignature):
            check(headers)

    @settings(deadline=None)
    @given(st.data())
    def test_a_header_with_a_part_replaced_is_refused_and_never_a_crash(self, data: st.DataObject) -> None:
        headers = {header.lower(): text for header, text in signed_headers().items()}
        name = data.draw(st.sampled_from(sorted(headers)))
        text = headers[name]
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, len(text)))
        changed = text[:start] + data.draw(st.text(alphabet='()";=:, aA0-@\x00\u00e9', max_size=12)) + text[end:]
        try:
            assert check(headers | {name: changed}) == check(headers), "another signer, nonce or time was accepted"
        except BadRequestSignature:
            return


class TestRelayTokens:
    from shoal.contracts import relay_token

    TOKEN = RelayToken(run=RUN, node=NODE_KEY.public, expires_unix=NOW + 30)

    def decode(self, word: str, **changes: Any) -> RelayToken:
        options = {"signer": ORCHESTRATOR_KEY.public, "run": RUN, "now_unix": float(NOW)} | changes
        return self.relay_token.decode(word, **options)

    def test_a_token_travels_as_one_header_safe_word(self) -> None:
        word = self.relay_token.encode(self.TOKEN, ORCHESTRATOR_KEY)
        assert set(word) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
        assert self.decode(word) == self.TOKEN
        assert self.decode(word, now_unix=NOW + 30.0) == self.TOKEN

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"signer": NODE_KEY.public}, "not signed by the orchestrator"),
            ({"run": "other"}, f"token is for run '{RUN}', this relay serves 'other'"),
            ({"now_unix": NOW + 31.0}, "token has expired"),
        ],
    )
    def test_a_token_of_another_signer_run_or_time_is_refused(self, change: dict[str, Any], error: str) -> None:
        with pytest.raises(self.relay_token.BadToken, match=error):
            self.decode(self.relay_token.encode(self.TOKEN, ORCHESTRATOR_KEY), **change)

    def test_a_token_that_was_changed_is_refused(self) -> None:
        later = self.relay_token.encode(self.TOKEN.model_copy(update={"expires_unix": NOW * 2}), NODE_KEY)
        mine = self.relay_token.encode(self.TOKEN, ORCHESTRATOR_KEY)
        with pytest.raises(self.relay_token.BadToken, match="not signed"):
            self.decode(later.split(".")[0] + "." + mine.split(".")[1])

    @pytest.mark.parametrize(
        "word", ["", ".", "a", "a.b", "a.b.c", "..", "e30.AAAA", "x" * 1001, "\u00e9.\u00e9", "%%.%%"]
    )
    def test_a_malformed_token_is_refused(self, word: str) -> None:
        with pytest.raises(self.relay_token.BadToken, match="token is"):
            self.decode(word)

    @given(st.text(max_size=60), st.text(max_size=60))
    def test_hostile_tokens_are_refused_and_never_a_crash(self, document: str, signature: str) -> None:
        with pytest.raises(self.relay_token.BadToken):
            self.decode(f"{document}.{signature}")
