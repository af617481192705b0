"""`shoal node list`, `logs`, `ban` and the others against an orchestrator in this process: what is printed, and what is wrong input."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.concurrency import run_in_threadpool

from protocol_stack import ADMIN_TOKEN
from run_states import Orchestrator
from servers import Redis
from shoal.cli.node_admin import Admin, log_lines, node_lines, reason_of
from shoal.contracts.admin import NodeView
from shoal.contracts.protocol import NodeLogs
from shoal.errors import InputWrong, RunFailed
from shoal.orchestrator.http.admin_routes import add_admin_routes
from shoal.transport.problems import add_problem_answers


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    made = Orchestrator(tmp_path, redis_server.url)
    made.announce(0)
    return made


@pytest.fixture
def admin(run: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    app = FastAPI()
    add_problem_answers(app)
    add_admin_routes(app, run.state, ADMIN_TOKEN.encode(), run_in_threadpool)
    (tmp_path / "token").write_text(f"{ADMIN_TOKEN}\n")
    with TestClient(app) as served:
        made = Admin("http://orchestrator", tmp_path / "token", None)
        served.headers["Authorization"] = made._http.headers["Authorization"]
        monkeypatch.setattr(made, "_http", served)
        yield made


def test_nodes_are_found_by_the_beginning_of_their_key(run: Orchestrator, admin: Admin) -> None:
    nodes = [run.join() for _ in range(2)]
    assert {view.node for view in admin.nodes()} == set(nodes)
    assert admin.find(nodes[0][:20]) == nodes[0]
    assert admin.find("ab" * 32) == "ab" * 32
    for beginning in ("", "zz", "not hex"):
        with pytest.raises(InputWrong, match="0 nodes have a key that starts with"):
            admin.find(beginning)


def test_the_orchestrators_words_reach_the_admin(run: Orchestrator, admin: Admin) -> None:
    node = run.join()
    banned = admin.ask("POST", f"nodes/{node}/ban", NodeView, reason_of("a test"))
    assert banned is not None
    assert banned.state == "Banned"
    with pytest.raises(InputWrong, match="Not a member now"):
        admin.ask("POST", f"nodes/{node}/restart", NodeView)
    with pytest.raises(RunFailed, match="sent no logs"):
        admin.logs(run.join(), wait_seconds=0.0)


def test_what_nodes_wrote_is_printed_without_control_characters() -> None:
    view = NodeView(node="ab" * 32, state="Discovered", pool="p", refused="\x1b[2Jgone", leases_abandoned=2)
    text = "\n".join(node_lines([view], time.time()))
    assert "\x1b" not in text
    assert "2 leases abandoned" in text
    logs = NodeLogs(node="ab" * 32, request="0" * 32, parts={"worker": "\x1b]0;title\x07one\ntwo"})
    lines = log_lines(logs)
    assert lines[1] == "worker: two"
    assert not set("".join(lines)) & {"\x1b", "\x07"}


@pytest.mark.parametrize("reason", ["", "x", "two\nlines", "x" * 1001])
def test_a_reason_that_the_ledger_could_not_keep_is_wrong_input(reason: str) -> None:
    with pytest.raises(InputWrong, match="3 to 1000 characters in one line"):
        reason_of(reason)


def test_where_and_who_must_be_given(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with pytest.raises(InputWrong, match="--orchestrator URL"):
        Admin(None, token, None)
    with pytest.raises(InputWrong, match="--token-file FILE"):
        Admin("http://orchestrator", None, None)
    with pytest.raises(InputWrong, match="No such file"):
        Admin("http://orchestrator", token, None)
    token.write_text("t")
    with pytest.raises(InputWrong, match="--ca-file"):
        Admin("http://orchestrator", token, tmp_path / "none.pem")


def test_an_answer_that_is_no_orchestrators_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    made = Admin("http://orchestrator", tmp_path / "token", None)
    for answer in (httpx.Response(200, text="<html>"), httpx.Response(502, text="bad"), httpx.Response(500, json=[])):
        made._http = httpx.Client(base_url="http://x", transport=httpx.MockTransport(lambda _, answer=answer: answer))
        with pytest.raises(RunFailed, match="not an orchestrator's answer"):
            made.nodes()
    wrong = httpx.Response(500, content=json.dumps({"title": "Store away", "detail": "later"}).encode())
    made._http = httpx.Client(base_url="http://x", transport=httpx.MockTransport(lambda _: wrong))
    with pytest.raises(RunFailed, match="Store away: later"):
        made.nodes()
