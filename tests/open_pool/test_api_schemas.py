"""Schemathesis over both OpenAPI documents: what fits a schema, whoever signed it, gets no 5xx, and every refusal is a problem that says why.

The services are the real ones over HTTP. Requests are signed by a member, a stranger and every trusted role, and a `node` in a body is mostly the
signer, so that they get behind the door; half of those to the admin's routes have the admin's token. Seeded: the same requests in each run.
"""

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from protocol_stack import ADMIN_TOKEN, Node, Stack
from servers import PLAIN, Loopback
from shoal.crypto.http_signatures import sign_request
from shoal.crypto.keys import PrivateKey
from shoal.transport import api_pages
from stack_fixtures import LARGE_STEPS, running_stack

EXAMPLES = 12
"""Requests for each operation; `make soak` sends more (below)."""
SOAK_EXAMPLES = 150

ADMIN = "/v1/admin/"
HARMLESS = {
    ("GET", "/v1/admin/nodes/{node}"),
    ("POST", "/v1/admin/nodes/{node}/restart"),
    ("POST", "/v1/admin/nodes/{node}/logs"),
}
"""What an admin may do to the member that signs other requests: it is still a member afterwards. The rest meets keys that nobody has."""
ANSWERED = {
    ("GET", "/v1/admin/nodes"),
    ("GET", "/v1/admin/nodes/{node}"),
    ("POST", "/v1/admin/nodes/{node}/ban"),
}
"""What an admin is always given. The others may be refused in the state that a key is in: silent for too long, banned, never asked."""
ADMIN_ROUTES = (
    HARMLESS
    | ANSWERED
    | {
        ("POST", "/v1/admin/nodes/{node}/invite"),
        ("POST", "/v1/admin/nodes/{node}/unban"),
        ("GET", "/v1/admin/nodes/{node}/logs/{question}"),
    }
)

Answers = Counter[tuple[str, str, int]]
"""How often each status came, by method and path."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Iterator[Stack]:
    with running_stack(tmp_path_factory, loopback.address(), recipe=LARGE_STEPS) as running:
        yield running


@pytest.fixture(scope="module")
def signers(stack: Stack) -> list[PrivateKey | None]:
    """Who sends: a member with work to do, a stranger, every role, nobody."""
    member = Node(stack).join()
    stack.announce(0)
    member.step()
    return [member.key, member.key, PrivateKey.generate(), *stack.role_keys.values(), None]


def operations(url: str) -> list[schemathesis.APIOperation]:
    schema = schemathesis.openapi.from_dict(httpx.get(f"{url}/openapi.json", **PLAIN).json())
    return [found.ok() for found in schema.get_all_operations()]


def send(
    http: httpx.Client, url: str, case: schemathesis.Case, key: PrivateKey | None, own: bool, as_admin: bool
) -> httpx.Response:
    """One case as a signed request; with the admin's token where it goes to the admin's routes and `as_admin` says so."""
    if own and key is not None and (not case.path.startswith(ADMIN) or (case.method, case.path) in HARMLESS):
        if isinstance(case.body, dict) and "node" in case.body:
            case.body["node"] = key.public
        if "node" in (case.path_parameters or {}):
            case.path_parameters["node"] = key.public
    if isinstance(case.query, dict) and "wait_seconds" in case.query:
        case.query["wait_seconds"] = 0  # a long poll that finds nothing is no failure, but it takes its time
    given = case.as_transport_kwargs(base_url=url)
    parts = {name: given[name] for name in ("method", "url", "params", "json", "data", "files") if given.get(name)}
    headers = {name: value for name, value in (given.get("headers") or {}).items() if value is not None}
    made = requests.Request(**parts, headers=headers).prepare()
    body = made.body.encode() if isinstance(made.body, str) else made.body or b""
    assert made.method is not None
    assert made.url is not None
    request = httpx.Request(made.method, made.url, content=body, headers=dict(made.headers))
    if as_admin and case.path.startswith(ADMIN):
        request.headers["Authorization"] = f"Bearer {ADMIN_TOKEN}"
    if key is not None:
        request.headers.update(
            sign_request(
                method=request.method,
                url=str(request.url),
                body=body,
                key=key,
                created_unix=int(time.time()),
                nonce=secrets.token_hex(16),
            )
        )
    return http.send(request)


def fuzz(url: str, signers: list[PrivateKey | None], examples: int, only: str = "") -> Answers:
    """Send `examples` requests to each operation; the first of `signers` is a member."""
    answers: Answers = Counter()
    with httpx.Client(**PLAIN, timeout=30.0) as http:
        for operation in (each for each in operations(url) if each.path.startswith(only)):

            @seed(8)
            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(
                case=operation.as_strategy(),
                signer=st.sampled_from(signers),
                own=st.sampled_from([True, True, False]),
                as_admin=st.booleans(),
            )
            def check(case: schemathesis.Case, signer: PrivateKey | None, own: bool, as_admin: bool) -> None:
                speaker = signers[0] if case.path.startswith(ADMIN) else signer
                answer = send(http, url, case, speaker, own, as_admin)
                where = f"{case.method} {case.path} {case.body!r}"[:500]
                answers[case.method, case.path, answer.status_code] += 1
                assert answer.status_code < 500, f"{where}: {answer.status_code} {answer.text[:300]}"
                if answer.status_code >= 400:
                    assert answer.headers["content-type"] == "application/problem+json", where
                    problem = answer.json()
                    assert problem["title"], where
                    assert problem["detail"], where
                    assert problem["status"] == answer.status_code, where

            check()
    return answers


def test_discovery_answers_whatever_fits_its_schema(stack: Stack, signers: list[PrivateKey | None]) -> None:
    answers = fuzz(stack.addresses.discovery, signers, EXAMPLES)
    assert {200, 401, 403} <= {status for _, _, status in answers}, answers


def test_the_orchestrator_answers_whatever_fits_its_schema(stack: Stack, signers: list[PrivateKey | None]) -> None:
    answers = fuzz(stack.addresses.orchestrator, signers, EXAMPLES)
    assert {200, 401, 403, 404} <= {status for _, _, status in answers}, answers


def test_the_admins_routes_are_reached_with_the_token_and_not_without(
    stack: Stack, signers: list[PrivateKey | None]
) -> None:
    answers = fuzz(stack.addresses.orchestrator, signers, EXAMPLES, only=ADMIN)
    found: dict[tuple[str, str], set[int]] = {}
    for method, path, status in answers:
        found.setdefault((method, path), set()).add(status)
    assert set(found) == ADMIN_ROUTES
    for route, statuses in found.items():
        assert 401 in statuses, f"{route}: without the token {statuses}"
        behind = {200} if route in ANSWERED else {200, 404, 409}
        assert statuses & behind, f"{route}: nobody came behind the door {statuses}"


@pytest.mark.soak
def test_many_more_requests(stack: Stack, signers: list[PrivateKey | None]) -> None:
    for url in (stack.addresses.discovery, stack.addresses.orchestrator):
        fuzz(url, signers, SOAK_EXAMPLES)


def test_every_route_is_described_and_every_example_fits(stack: Stack) -> None:
    for url, pages in (
        (stack.addresses.discovery, api_pages.DISCOVERY),
        (stack.addresses.orchestrator, api_pages.ORCHESTRATOR),
    ):
        document = httpx.get(f"{url}/openapi.json", **PLAIN).json()
        routes = {(method, path) for path, found in document["paths"].items() for method in found}
        described = {(page.method, page.path) for page in pages}
        assert described <= routes, urlsplit(url).port
        assert {each for each in routes - described if not each[1].startswith("/v1/admin/")} == set()
        for page in pages:
            if page.example is not None:
                assert page.body is not None
                page.body.from_json(json.dumps(page.example))
