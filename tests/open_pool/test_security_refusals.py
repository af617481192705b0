"""What strangers try at the real services and what they are told: pace, quotas, odd paths, markup and control codes, certificates.

Replay, tampering, impersonation, wrong audience, bad invites, foreign upload keys and oversized bodies are in
`tests/orchestrator/http/test_refusals.py`; the table of all of them is in `docs/open-pool.md`.
"""

import asyncio
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from broadcast_certificates import Authority
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol_stack import RUN, Node, Stack, post
from servers import PLAIN, Loopback, wait_until
from shoal.contracts.protocol import LeaseRequest, UploadRequest
from shoal.contracts.roster import Roster
from shoal.crypto.http_signatures import sign_request
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.http import heartbeats
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.work import uploads
from shoal.transport import SignedClient, Unavailable, service
from shoal.transport.authorities import authorities
from shoal.transport.pace import Pace
from shoal.transport.patience import PatientProtocol
from shoal.transport.problems import add_problem_answers
from shoal.transport.server import SignatureGate
from stack_fixtures import LARGE_STEPS, running_stack

SCRIPT = "<script>alert(1)</script>"
HOSTILE = ["\x1b[2J\x1b[31mred", "a\nb", "\u202eevil", "nul\x00", "caf\u00e9", "x" * 201]
"""Control codes, line breaks, text that runs backwards, what is no ASCII, too much."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Iterator[Stack]:
    with running_stack(tmp_path_factory, loopback.address(), recipe=LARGE_STEPS) as running:
        yield running


@pytest.fixture(scope="module")
def member(stack: Stack) -> Node:
    node = Node(stack).join()
    stack.announce(0)
    return node


def once(node: Node, method: str, url: str, path: str, body: bytes = b"") -> httpx.Response:
    """One signed request without a second try."""
    headers = sign_request(
        method=method,
        url=url + path,
        body=body,
        key=node.key,
        created_unix=int(time.time()),
        nonce=secrets.token_hex(16),
    )
    return httpx.request(method, url + path, content=body, headers=headers, **PLAIN, timeout=30)


def is_problem(answer: httpx.Response, status: int, code: str) -> bool:
    document = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, document["type"]) == (status, f"urn:shoal:problem:{code}"), answer.text
    return bool(document["detail"])


# Pace and quotas


URL = "http://service.test"


class AnyNonce:
    async def first_use(self, key: str, nonce: str, seconds: int) -> bool:
        return True


def ask(
    app: ASGIApp, path: str, key: PrivateKey, *, sent: str | None = None, host: str = "service.test"
) -> httpx.Response:
    """One signed request to an application in this process; `sent`: what is asked for in place of the path that was signed."""
    headers = sign_request(
        method="POST", url=URL + path, body=b"{}", key=key, created_unix=int(time.time()), nonce=secrets.token_hex(16)
    )

    async def inside() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=URL) as http:
            return await http.post(sent or path, content=b"{}", headers={**headers, "Host": host})

    return asyncio.run(inside())


def test_a_key_that_asks_without_end_is_told_when_to_come_again() -> None:
    hurried, calm, validator = (PrivateKey.generate() for _ in range(3))
    roster = Roster(run=RUN, keys={"validator": validator.public})
    gate = service.Gate(SignatureGate(URL, AnyNonce()), roster, Pace(0.01, 3))
    app = FastAPI()
    add_problem_answers(app)

    @app.post("/v1/anything")
    async def anything(request: Request) -> str:
        return await gate.node(request)

    answers = [ask(app, "/v1/anything", hurried) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert is_problem(answers[-1], 429, "too-many-requests")
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 100
    assert ask(app, "/v1/anything", calm).status_code == 200, "another key is not held back"
    assert {ask(app, "/v1/anything", validator).status_code for _ in range(5)} == {200}, (
        "replicas of a role share a key"
    )


@pytest.mark.parametrize("host", ["service.test/v1/signed?", "service.test#", "service.test/v1/signed", "\\v1", ""])
def test_a_path_in_the_host_header_is_not_the_one_that_was_signed(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older releases of Starlette put such a Host into `request.url`: here whoever asks that gets the path of it."""
    monkeypatch.setattr(Request, "url", property(lambda self: httpx.URL(f"{URL}/v1/signed?x=1")))
    gate = service.Gate(SignatureGate(URL, AnyNonce()), Roster(run=RUN, keys={}))
    app = FastAPI()
    add_problem_answers(app)

    @app.post("/v1/{name:path}")
    async def named(request: Request, name: str) -> str:
        return await gate.role(request, "trainer") if name == "of-a-role" else await gate.node(request)

    node = PrivateKey.generate()
    assert ask(app, "/v1/signed?x=1", node, sent="/v1/other", host=host).status_code == 401
    assert ask(app, "/v1/other", node, host=host).json() == node.public
    told = ask(app, "/v1/of-a-role", node, host=host)
    assert is_problem(told, 403, "wrong-role")
    assert "POST /v1/of-a-role is for the trainer" in told.json()["detail"]


def test_what_is_signed_is_the_path_as_it_was_written() -> None:
    gate = service.Gate(SignatureGate(URL, AnyNonce()), Roster(run=RUN, keys={}))
    app = FastAPI()
    add_problem_answers(app)
    app.post("/v1/{name:path}")(gate.node)
    node = PrivateKey.generate()
    assert ask(app, "/v1/caf%C3%A9%3Fx=1", node).status_code == 200
    assert ask(app, "/v1/signed?x=1", node, sent="/v1/signed%3Fx=1").status_code == 401


def test_heartbeats_without_end_are_refused_before_redis_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "BEATS_PER_SECOND", 0.01)
    monkeypatch.setattr(heartbeats, "BEATS_AT_ONCE", 2)

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("the long way")(scope, receive, send)

    state = SimpleNamespace(prefix="unused")
    app = heartbeats.QuickHeartbeats(behind, state, SignatureGate(URL, AnyNonce()), None)
    node = PrivateKey.generate()
    # A body that is no heartbeat is for the long way to refuse; the third is not even looked at.
    answers = [ask(app, heartbeats.PATH, node) for _ in range(3)]
    assert [answer.text for answer in answers[:2]] == ["the long way"] * 2
    assert is_problem(answers[2], 429, "too-many-heartbeats")
    assert 1 <= int(answers[2].headers["retry-after"]) <= 100


def test_a_node_hands_in_so_many_files_an_hour_and_no_more(stack: Stack, member: Node) -> None:
    step = member.step()
    assert step is not None
    lease = member.lease(step.step)
    first = member.grant(lease, b"data")
    client = stack.client()
    (counter,) = client.keys(f"*:files:*:{member.id}")
    assert client.get(counter) == "1"
    assert client.ttl(counter) > 0
    again = member.grant(lease, b"data")
    assert again.fields["key"] == first.fields["key"]
    assert client.get(counter) == "1", "the same file again is not another one"
    assert post(again, b"data").status_code == 204
    assert member.confirm(lease, b"data").status == "queued"
    later = member.lease(step.step)
    client.set(counter, str(uploads.FILES_AN_HOUR))
    request = UploadRequest(node=member.id, lease=later.lease, size=4, sha256="0" * 64)
    answer = once(member, "POST", stack.addresses.orchestrator, "/v1/uploads", request.to_json())
    assert is_problem(answer, 429, "quota-used")
    assert 0 < int(answer.headers["retry-after"]) <= uploads.HOUR_SECONDS
    wanted = LeaseRequest(node=member.id, step=step.step)
    answer = once(member, "POST", stack.addresses.orchestrator, "/v1/leases", wanted.to_json())
    assert is_problem(answer, 409, "lease-dropped"), "on probation it may hold one"
    hashes = [key for key in client.keys("*:nodes") if client.type(key) == "hash"]
    (records,) = [key for key in hashes if "waits_until_unix" in (client.hget(key, member.id) or "")]
    waits = NodeRecord.from_json((client.hget(records, member.id) or "").encode())
    client.hset(records, member.id, waits.model_copy(update={"waits_until_unix": 0.0}).to_json())
    answer = once(member, "POST", stack.addresses.orchestrator, "/v1/leases", wanted.to_json())
    assert is_problem(answer, 409, "quota-leased"), "nothing is generated in vain"
    assert 0 < int(answer.headers["retry-after"]) <= uploads.HOUR_SECONDS
    counted = httpx.get(f"{stack.addresses.orchestrator}/metrics", **PLAIN, timeout=30).text
    assert re.search(r'^shoal_leases_total\{outcome="quota"\} [1-9]', counted, re.M)
    assert re.search(r'^shoal_upload_grants_total\{outcome="quota"\} [1-9]', counted, re.M)
    client.delete(counter)


# Paths


def test_odd_paths_lead_nowhere(stack: Stack, member: Node) -> None:
    for base in (stack.addresses.orchestrator, stack.addresses.discovery):
        for path in (
            "//v1/heartbeats", "/v1/../v1/heartbeats", "/v1/heartbeats/", "/V1/heartbeats", "/v1/heartbeats%00", "/%2e%2e/etc/passwd",
            "/v1/nodes/..%2f..%2fetc%2fpasswd/invite", "/v1/staging/../../run_secret", "/v1/nodes/a%0d%0aX-Evil:%201/invite",
        ):  # fmt: skip
            for method in ("GET", "POST"):
                answer = once(member, method, base, path, b"{}" if method == "POST" else b"")
                assert 300 <= answer.status_code < 500, (method, path)
                assert "x-evil" not in answer.headers
                assert "root:" not in answer.text


# Markup and control codes


def registration(node: Node, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "node": node.id,
        "run": RUN,
        "pool": "pool",
        "software_version": "test",
        "hardware": {"cpus": 1, "memory_bytes": 1, "disk_free_bytes": 1},
    }
    return json.dumps({**fields, **changes}).encode()


def test_text_that_a_terminal_or_page_would_obey_does_not_get_in(stack: Stack) -> None:
    node = Node(stack)
    for text in HOSTILE:
        for changes in (
            {"software_version": text},
            {"hardware": {"cpus": 1, "memory_bytes": 1, "disk_free_bytes": 1, "gpu_type": text}},
            {"pool": text},
            {"run": text},
        ):
            answer = once(node, "POST", stack.addresses.discovery, "/v1/nodes", registration(node, **changes))
            assert is_problem(answer, 422, "not-valid"), changes
    for name in (SCRIPT, "a b", "x\x1b[0m", "A", ""):
        body = json.dumps({"node": node.id, "metrics": {name: 1.0}}).encode()
        answer = once(node, "POST", stack.addresses.orchestrator, "/v1/heartbeats", body)
        assert is_problem(answer, 422, "not-valid"), name


def test_markup_that_is_plain_text_comes_back_as_json_and_nothing_else(stack: Stack, member: Node) -> None:
    answer = once(member, "GET", stack.addresses.discovery, f"/v1/nodes/{member.id}/invite?wait_seconds=%3Cscript%3E")
    assert is_problem(answer, 422, "not-valid")
    odd = once(member, "GET", stack.addresses.discovery, "/v1/%3Cscript%3E")
    assert odd.headers["content-type"] == "application/problem+json"
    assert "<script>" not in odd.text


def test_a_strangers_words_stay_inside_their_log_line(stack: Stack) -> None:
    node = Node(stack)
    version = 'x", "event": "forged", "y": "' + SCRIPT
    answer = once(node, "POST", stack.addresses.discovery, "/v1/nodes", registration(node, software_version=version))
    assert answer.status_code == 200, "it is printable, and shown as text"
    once(node, "POST", stack.addresses.discovery, "/v1/nodes", registration(node, run="other\n{}"))
    node.invite()
    for service_name in ("discovery", "orchestrator"):
        for line in (stack.folder / service_name / "log").read_text().splitlines():
            document = json.loads(line)
            assert document["event"] != "forged"
            assert "\x1b" not in line


# Certificates


@pytest.fixture
def secured(tmp_path: Path, loopback: Loopback) -> Iterator[tuple[str, Path]]:
    """A service over HTTPS with certificate files; its URL and its authority's PEM."""
    address = loopback.address()
    authority = Authority("ours")
    authority.issue(tmp_path, address)
    (tmp_path / "authority.pem").write_bytes(authority.pem)
    app = FastAPI()
    app.state.asked = 0

    @app.get("/v1/run")
    async def run() -> dict[str, str]:
        return {"run": RUN}

    config = uvicorn.Config(
        app, http=PatientProtocol, ws="none", host=address, port=8443, log_level="critical",
        ssl_certfile=str(tmp_path / "tls.crt"), ssl_keyfile=str(tmp_path / "tls.key"),
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until("the service", lambda: server.started)
    yield f"https://{address}:8443", tmp_path / "authority.pem"
    server.should_exit = True
    thread.join(10)


def test_a_client_talks_to_whom_its_authority_vouches_for_and_to_nobody_else(
    secured: tuple[str, Path], tmp_path: Path
) -> None:
    url, authority = secured
    answer = SignedClient(url, tls=authorities(authority)).request("GET", "/v1/run", deadline_seconds=10)
    assert answer.json() == {"run": RUN}
    (tmp_path / "other.pem").write_bytes(Authority("another").pem)
    for tls in (authorities(tmp_path / "other.pem"), None):
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            SignedClient(url, tls=tls).request("GET", "/v1/run", deadline_seconds=0.0)


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    with pytest.raises(ValueError, match=r"bad\.pem has no readable certificate"):
        authorities(tmp_path / "bad.pem")
