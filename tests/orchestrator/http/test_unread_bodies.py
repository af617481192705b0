"""How much of a body the orchestrator reads of whom: nothing before the head's signature fits, and 16 MiB of a validator alone."""

import secrets
import socket
import time
from collections.abc import Mapping

import pytest

from protocol_stack import RUN, Node, Stack
from shoal.crypto.http_signatures import sign_request
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.http.service import BODY_BYTES, MAX_BODY_BYTES

VERDICTS = "/v1/verdicts"
QUIET_SECONDS = 0.5


class HalfRequest:
    """A request whose head is sent and whose body is held back."""

    def __init__(self, stack: Stack, path: str, length: int, headers: Mapping[str, str]) -> None:
        self._line = socket.create_connection((stack.address, 8080), timeout=10)
        head = [f"POST {path} HTTP/1.1", f"Host: {stack.address}:8080", f"Content-Length: {length}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        self._line.sendall("\r\n".join([*head, "", ""]).encode())

    def status(self) -> int:
        return int(self._line.recv(65536).split()[1])

    def is_read_on(self) -> bool:
        """Nothing is answered: the service waits for the body."""
        self._line.settimeout(QUIET_SECONDS)
        try:
            self._line.recv(65536)
        except TimeoutError:
            return True
        finally:
            self._line.settimeout(10)
        return False

    def go_on(self, body: bytes) -> int:
        self._line.sendall(body)
        return self.status()

    def close(self) -> None:
        self._line.close()


def head_of(stack: Stack, path: str, body: bytes, key: PrivateKey) -> dict[str, str]:
    url = f"http://{stack.address}:8080{path}"
    nonce = secrets.token_hex(16)
    return sign_request(method="POST", url=url, body=body, key=key, created_unix=int(time.time()), nonce=nonce)


def answer_to_head(stack: Stack, path: str, length: int, headers: Mapping[str, str]) -> int:
    request = HalfRequest(stack, path, length, headers)
    try:
        return request.status()
    finally:
        request.close()


@pytest.mark.parametrize("path", [VERDICTS, "/v1/logs", "/v1/leases"])
def test_of_an_unsigned_request_no_body_is_read(stack: Stack, path: str) -> None:
    assert answer_to_head(stack, path, 5000, {}) == 401


def test_a_validators_key_in_the_head_alone_opens_nothing(stack: Stack) -> None:
    headers = head_of(stack, VERDICTS, b"x" * 5000, PrivateKey.generate())
    own = stack.config.roster.document.keys["validator"]
    claimed = headers["Signature-Input"].split('keyid="')[1][:64]
    forged = headers | {"Signature-Input": headers["Signature-Input"].replace(claimed, own)}
    assert answer_to_head(stack, VERDICTS, 5000, forged) == 401


def test_of_a_verdict_by_somebody_else_no_body_is_read(stack: Stack) -> None:
    for key in (PrivateKey.generate(), stack.role_keys["trainer"]):
        assert answer_to_head(stack, VERDICTS, 5000, head_of(stack, VERDICTS, b"x" * 5000, key)) == 403


def test_a_validators_long_body_is_read_and_then_judged(stack: Stack) -> None:
    body = b'{"document": "' + b"x" * (3 << 20) + b'"}'
    request = HalfRequest(stack, VERDICTS, len(body), head_of(stack, VERDICTS, body, stack.role_keys["validator"]))
    try:
        assert request.is_read_on()
        assert request.go_on(body) == 422
    finally:
        request.close()


def test_a_body_that_the_head_did_not_sign_is_refused(stack: Stack) -> None:
    node = Node(stack)
    body = b'{"node": "' + node.id.encode() + b'"}'
    request = HalfRequest(stack, "/v1/leases", len(body), head_of(stack, "/v1/leases", body, node.key))
    try:
        assert request.is_read_on()
        assert request.go_on(body[:-1] + b" ") == 401
    finally:
        request.close()


def test_each_path_takes_what_it_needs_and_not_more(stack: Stack) -> None:
    node = Node(stack)
    for path in ("/v1/heartbeats", "/v1/leases", "/v1/submissions", "/v1/versions"):
        assert answer_to_head(stack, path, MAX_BODY_BYTES + 1, head_of(stack, path, b"", node.key)) == 413, path
    for path, most in BODY_BYTES.items():
        assert answer_to_head(stack, path, most + 1, {}) == 413, path
        assert answer_to_head(stack, path, most, {}) == 401, path


def test_full_logs_and_answers_fit_their_limits() -> None:
    from shoal.contracts.protocol import MAX_LOG_CHARACTERS, ChallengeAnswer, NodeLogs

    logs = NodeLogs(node="a" * 64, request="0" * 32, parts={f"part{n}": "\x01" * MAX_LOG_CHARACTERS for n in range(8)})
    assert len(logs.to_json()) <= BODY_BYTES["/v1/logs"]
    fields = ChallengeAnswer.model_fields["product"].metadata
    assert any(getattr(each, "max_length", 0) == 400_000 for each in fields)
    assert BODY_BYTES["/v1/challenge-answers"] > 400_000 + len(RUN) + 1000
