"""The codes of refusals: each has a status and a place in the docs, the domain knows nothing of HTTP, and no client decides by a title."""

import ast
import json
import re
from pathlib import Path

import httpx
import pytest

from shoal.contracts.problems import TYPE_PREFIX, ProblemCode, Refusal
from shoal.transport import Refused
from shoal.transport.client import _problem
from shoal.transport.problems import KINDS, refused

ROOT = Path(__file__).resolve().parents[3]
SHOAL = ROOT / "workloads" / "shoal"
DOMAIN = [
    path
    for folder in ("orchestrator", "ledger")
    for path in (SHOAL / folder).rglob("*.py")
    if "http" not in path.relative_to(SHOAL).parts and path.name != "__main__.py"
]
OF_HTTP = ("fastapi", "starlette", "shoal.transport.server", "shoal.transport.problems", "shoal.transport.service")


def test_each_code_has_a_status_and_a_line_in_the_docs() -> None:
    assert list(KINDS) == list(ProblemCode), "the table has the codes in their order"
    documented = set(re.findall(r"^\| `([a-z-]+)` \| \d{3} \|", (ROOT / "docs" / "http.md").read_text(), re.M))
    assert documented == set(ProblemCode)
    assert all(400 <= kind.status < 600 and kind.title for kind in KINDS.values())


@pytest.mark.parametrize("path", DOMAIN, ids=lambda path: path.relative_to(SHOAL).as_posix())
def test_the_domain_knows_nothing_of_http(path: Path) -> None:
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {f"{node.module}.{each.name}" for node in found if isinstance(node, ast.ImportFrom) for each in node.names}
    names |= {each.name for node in found if isinstance(node, ast.Import) for each in node.names}
    assert not [name for name in names if f"{name}.".startswith(tuple(f"{part}." for part in OF_HTTP))]


def test_no_client_compares_a_title_or_a_status_of_a_refusal() -> None:
    compares = re.compile(
        r"(refused|refusal|error|problem)\.(problem\.)?(title|status) (==|!=|in|not in) |\[\"title\"\] (==|!=|in) "
    )
    assert not [path.name for path in SHOAL.rglob("*.py") if compares.search(path.read_text())]


def test_a_refusal_comes_back_as_its_code() -> None:
    answer = refused(Refusal(ProblemCode.RECORD_BUSY, "try again", retry_after_seconds=0.5))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "0.5")
    assert json.loads(bytes(answer.body)) == {
        "type": f"{TYPE_PREFIX}record-busy",
        "title": "Record is busy",
        "status": 503,
        "detail": "try again",
    }
    read = Refused(_problem(httpx.Response(503, content=bytes(answer.body))))
    assert (read.code, read.detail, str(read)) == ("record-busy", "try again", "503 Record is busy: try again")


@pytest.mark.parametrize(
    ("body", "code", "title", "detail"),
    [
        (b'{"type": "urn:shoal:problem:of-2031", "title": "New", "more": 1}', "of-2031", "New", ""),
        (b'{"title": "No type"}', "", "No type", ""),
        (b'{"type": "https://example.org/evicted", "title": "Not ours"}', "", "Not ours", ""),
        (b'{"type": "urn:shoal:problem:evicted"}', "", "Not Found", '{"type": "urn:shoal:problem:evicted"}'),
        (b"<html>", "", "Not Found", "<html>"),
        (b"\xff", "", "Not Found", "\ufffd"),
    ],
)
def test_answers_of_newer_services_and_of_proxies_are_read(body: bytes, code: str, title: str, detail: str) -> None:
    read = _problem(httpx.Response(404, content=body))
    assert (read.code, read.title, read.status, read.detail) == (code, title, 404, detail)
