"""What an admin may do about nodes, and who is none: in process over a real Redis, and once through the service."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.concurrency import run_in_threadpool

from protocol_stack import ADMIN_TOKEN, RUN, ledger, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.pools import Admission, PoolTerms
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Hardware, Heartbeat, NodeLogs, Registration
from shoal.crypto.keys import PrivateKey
from shoal.ledger.audit import NodeTotals
from shoal.orchestrator.http.admin_routes import add_admin_routes, read_token
from shoal.orchestrator.nodes import admin, membership
from shoal.orchestrator.nodes.invites import why_not
from shoal.transport.problems import add_problem_answers

STRANGER = PrivateKey.generate().public


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    made = Orchestrator(tmp_path, redis_server.url)
    made.announce(0)
    return made


def problem(action: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as found:
        action()
    return found.value


def beat(run: Orchestrator, node: str) -> membership.HeartbeatReply:
    return membership.heartbeat(run.state, Heartbeat(node=node))


def test_nodes_are_listed_with_what_they_do_and_did(run: Orchestrator) -> None:
    nodes = sorted(run.join() for _ in range(3))
    run.hand_in(nodes[0])
    run.lease(nodes[1])
    found = admin.list_nodes(run.state)
    assert [view.node for view in found.nodes] == nodes
    assert found.next is None
    assert [view.leases_open for view in found.nodes] == [0, 1, 0]
    assert admin.list_nodes(run.state, node_state="Dead").nodes == []
    assert [view.node for view in admin.list_nodes(run.state, after=nodes[0]).nodes] == nodes[1:]
    assert problem(lambda: admin.one_node(run.state, STRANGER)).code == "no-such-node"


def test_long_lists_come_in_pages(run: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "PAGE", 2)
    nodes, seen, after = sorted(run.join() for _ in range(5)), [], ""
    while True:
        page = admin.list_nodes(run.state, after=after)
        seen += [view.node for view in page.nodes]
        if page.next is None:
            break
        after = page.next
    assert seen == nodes


def test_a_restart_reaches_the_node_with_its_heartbeat_and_grows(run: Orchestrator) -> None:
    node = run.join()
    before = beat(run, node).assignment
    assert before is not None
    admin.restart(run.state, node)
    first = beat(run, node).assignment
    admin.restart(run.state, node)
    second = beat(run, node).assignment
    assert first is not None
    assert second is not None
    assert before.restarts < first.restarts < second.restarts
    run.clock.now += 1000
    membership.reap(run.state)
    assert problem(lambda: admin.restart(run.state, node)).code == "node-not-a-member"


def test_logs_are_asked_for_sent_once_and_kept_from_others(run: Orchestrator) -> None:
    node, other = run.join(), run.join()
    ticket = admin.ask_logs(run.state, node)
    assert beat(run, node).logs_wanted == ticket.request
    assert beat(run, other).logs_wanted is None
    assert admin.logs(run.state, node, ticket.request) is None
    sent = NodeLogs(node=node, request=ticket.request, parts={"worker": "\x1b[31mred"})
    forged = sent.model_copy(update={"node": other})
    assert problem(lambda: admin.take_logs(run.state, forged)).code == "logs-not-wanted"
    admin.take_logs(run.state, sent)
    assert admin.logs(run.state, node, ticket.request) == sent
    assert beat(run, node).logs_wanted is None
    assert problem(lambda: admin.take_logs(run.state, sent)).code == "logs-not-wanted"
    assert problem(lambda: admin.logs(run.state, other, ticket.request)).code == "no-such-question"
    assert problem(lambda: admin.logs(run.state, node, "0" * 32)).code == "no-such-question"


def test_a_banned_node_is_out_its_reason_is_kept_and_only_the_admin_takes_it_back(run: Orchestrator) -> None:
    node = run.join()
    run.lease(node)
    assert admin.ban(run.state, node, "ten keys, one machine").state == "Banned"
    assert admin.ban(run.state, node, "again").state == "Banned"
    entries = [entry for entry in ledger(run.store) if entry.kind == "node-banned"]
    assert [(entry.node, entry.detail) for entry in entries] == [(node, "ten keys, one machine")]
    assert problem(lambda: beat(run, node)).code == "banned"
    assert node in membership.exclusions(run.state).nodes
    assert [record.status for record in run.state.leases.all()] == ["abandoned"]

    run.lose_redis()
    assert problem(lambda: beat(run, node)).code == "banned"
    admin.unban(run.state, node, "it was another machine")
    assert node not in membership.exclusions(run.state).nodes
    assert run.restarted().nodes.get(node) is not None
    assert problem(lambda: beat(run, node)).code == "not-admitted"
    assert problem(lambda: admin.unban(run.state, node, "twice")).code == "not-banned"


def test_a_node_may_be_banned_before_it_was_ever_seen(run: Orchestrator) -> None:
    admin.ban(run.state, STRANGER, "known from another run")
    assert problem(lambda: run.beat(STRANGER, run.invite(STRANGER))).code == "evicted"


def test_an_eviction_for_a_rejected_file_is_never_taken_back(run: Orchestrator) -> None:
    node = run.join()
    run.hand_in(node)
    run.judge(verdict_on(run.claimed(), "reject", "sampling"))
    admin.ban(run.state, node, "and banned besides")
    assert problem(lambda: admin.unban(run.state, node, "please")).code == "node-excluded"
    assert node in membership.exclusions(run.state).nodes


def test_the_ledgers_reader_counts_no_credit_while_a_ban_stands() -> None:
    totals = NodeTotals(joined=True, files_accepted=3, tokens=300)
    assert (totals.credit(0), NodeTotals(tokens=300, evicted=True).credit(0)) == (300, 0)


def test_an_admin_lets_a_machine_in_past_the_list_but_not_past_the_requirements(run: Orchestrator) -> None:
    listed = PoolTerms(name="pool", open=True, admission=Admission(nodes=["ab" * 32]))
    registration = Registration(
        node=STRANGER,
        run=RUN,
        pool="pool",
        software_version="test",
        hardware=Hardware(cpus=1, memory_bytes=1, disk_free_bytes=1),
    )
    admin.invite(run.state, STRANGER)
    record = run.state.nodes.get(STRANGER)
    assert record is not None
    assert record.welcome
    assert why_not(registration, [listed], own_pod=False) != ""
    assert why_not(registration, [listed], own_pod=False, welcome=record.welcome) == ""
    wanting = listed.model_copy(update={"requirements": listed.requirements.model_copy(update={"gpus": 1})})
    assert "requires 1 GPUs" in why_not(registration, [wanting], own_pod=False, welcome=True)
    admin.ban(run.state, STRANGER, "no more")
    assert problem(lambda: admin.invite(run.state, STRANGER)).code == "node-excluded"


def test_a_token_that_could_be_guessed_is_refused_and_none_means_no_admin(tmp_path: Path) -> None:
    assert read_token(tmp_path / "none") is None
    (tmp_path / "short").write_text("hunter2\n")
    with pytest.raises(SystemExit, match="fewer than 32 characters"):
        read_token(tmp_path / "short")


def test_through_http_only_the_token_is_the_admin(run: Orchestrator) -> None:
    app = FastAPI()
    add_problem_answers(app)

    async def call(function: Callable[..., object], *args: object, **named: object) -> object:
        return await run_in_threadpool(function, *args, **named)

    add_admin_routes(app, run.state, ADMIN_TOKEN.encode(), call)
    node, token = run.join(), {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    with TestClient(app) as http:
        for headers in ({}, {"Authorization": f"Basic {ADMIN_TOKEN}"}, {"Authorization": "Bearer wrong"}):
            answer = http.get("/v1/admin/nodes", headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
        views = http.get("/v1/admin/nodes", params={"state": "Healthy"}, headers=token).json()["nodes"]
        assert [view["node"] for view in views] == [node]
        assert http.get(f"/v1/admin/nodes/{'zz' * 32}", headers=token).status_code == 422
        for body in ({"reason": ""}, {"reason": "line\nbreak"}, {"reason": "x" * 1001}, {}):
            assert http.post(f"/v1/admin/nodes/{node}/ban", json=body, headers=token).status_code == 422
        assert http.post(f"/v1/admin/nodes/{node}/ban", json={"reason": "a test"}).status_code == 401
        asked = http.post(f"/v1/admin/nodes/{node}/logs", headers=token).json()["request"]
        assert http.get(f"/v1/admin/nodes/{node}/logs/{asked}", headers=token).status_code == 204
        assert http.post(f"/v1/admin/nodes/{node}/restart", headers=token).json()["assignment"]["restarts"] > 0
        assert http.post(f"/v1/admin/nodes/{node}/invite", headers=token).status_code == 200
        banned = http.post(f"/v1/admin/nodes/{node}/ban", json={"reason": "a test"}, headers=token)
        assert banned.json()["state"] == "Banned"
        back = http.post(f"/v1/admin/nodes/{node}/unban", json={"reason": "a test"}, headers=token)
        assert back.json()["state"] == "Discovered"
        paths = http.get("/openapi.json").json()["paths"]
    assert len(paths) == 8
    for methods in paths.values():
        for route in methods.values():
            assert "example" in json.dumps(route["responses"]["200"])
            assert {"401", "409"} <= set(route["responses"])


def test_without_a_token_nobody_is_admin(run: Orchestrator) -> None:
    app = FastAPI()
    add_problem_answers(app)
    add_admin_routes(app, run.state, None, run_in_threadpool)
    with TestClient(app) as http:
        answer = http.get("/v1/admin/nodes", headers={"Authorization": "Bearer "})
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:shoal:problem:no-admin")
