"""A node's life against a real Redis: every edge, flapping, clocks that are minutes off, and two orchestrators at once."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import get_args

import httpx
import pytest

from protocol_stack import RUN, ledger, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.node_states import LATE_SECONDS, SILENT_SECONDS, Event
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import ClaimRequest, Invite, LeaseRequest, NodeState
from shoal.contracts.signed import sign
from shoal.crypto.http_signatures import BadRequestSignature, verify_request
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.nodes import membership
from shoal.orchestrator.nodes.registry import NodeRecord, NodeRegistry
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts import verdicts
from shoal.orchestrator.work import handout, uploads
from shoal.transport import Refused, SignedClient

STATES: tuple[NodeState, ...] = get_args(NodeState)
EVENTS: tuple[Event, ...] = get_args(Event)

# Rows: the state before; columns: EVENTS in their order.
# D Discovered, I Invited, H Healthy, U Unhealthy, X Dead, E Evicted, B Banned; a dot: it stays.
TABLE = """
              invited invite-expired joined heartbeat late silent evict ban unban
Discovered       I          .           .       .      .     .      E    B    .
Invited          .          D           H       .      .     .      E    B    .
Healthy          .          .           .       .      U     X      E    B    .
Unhealthy        .          .           H       H      .     X      E    B    .
Dead             I          .           H       .      .     .      E    B    .
Evicted          .          .           .       .      .     .      .    B    .
Banned           .          .           .       .      .     .      .    .    D
"""
LETTERS: dict[str, NodeState] = dict(zip("DIHUXEB", STATES, strict=True))


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    made = Orchestrator(tmp_path, redis_server.url)
    made.announce(0)
    return made


def test_every_event_in_every_state_leads_where_the_table_says(run: Orchestrator) -> None:
    header, *rows = [line.split() for line in TABLE.strip().splitlines()]
    assert tuple(header) == EVENTS
    assert tuple(row[0] for row in rows) == STATES
    registry = NodeRegistry(run.redis, "table", frozenset())
    for before, *cells in rows:
        for event, cell in zip(EVENTS, cells, strict=True):
            record = NodeRecord(node=PrivateKey.generate().public, state=before)
            registry.put(record)
            registry.change(record, event)
            found = registry.get(record.node)
            assert found is not None
            assert found.state == (before if cell == "." else LETTERS[cell]), (before, event)


def new_invite(run: Orchestrator, node: str, nonce: str) -> str:
    invite = Invite(
        run=RUN,
        pool="pool",
        node=node,
        orchestrator_url="http://127.0.0.1:2",
        nonce=nonce,
        expires_unix=int(run.clock()) + 60,
    )
    return run.beat(node, sign(invite, run.role_keys["orchestrator"]))


def test_a_node_that_is_late_again_and_again_keeps_its_work_and_writes_nothing_to_the_ledger(run: Orchestrator) -> None:
    node = run.join()
    lease = run.lease(node)
    entries = len(ledger(run.store))
    for _ in range(20):
        run.clock.now += LATE_SECONDS + 1
        membership.reap(run.state)
        record = run.state.nodes.get(node)
        assert record is not None
        assert record.state == "Unhealthy"
        assert run.beat(node) == "Healthy"
    assert len(ledger(run.store)) == entries
    assert [held.status for held in run.state.leases.all() if held.lease.lease == lease.lease] == ["open"]


def test_a_node_that_dies_and_returns_again_and_again_loses_each_lease_once_and_no_credit(run: Orchestrator) -> None:
    node = run.join()
    run.hand_in(node)
    run.judge(verdict_on(run.claimed()))
    for turn in range(5):
        run.lease_in_time(node)
        run.clock.now += SILENT_SECONDS + 1
        membership.reap(run.state)
        membership.reap(run.state)  # a second look, as of a second orchestrator
        with pytest.raises(Refusal, match="not-a-member"):
            run.lease(node)
        assert new_invite(run, node, f"{turn:032x}") == "Healthy"
    record = run.state.nodes.get(node)
    assert record is not None
    assert record.abandoned_leases == 5
    kinds = Counter(entry.kind for entry in ledger(run.store) if entry.node == node)
    assert kinds == {"node-invited": 6, "node-joined": 6, "node-dead": 5, "accepted": 1}


# Clocks


def test_a_node_whose_clock_is_five_minutes_off_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    for skew in (-300.0, 300.0):
        server = time.time()
        seen: list[float] = []

        def answer(request: httpx.Request, server: float = server, seen: list[float] = seen) -> httpx.Response:
            date = {"Date": formatdate(server, usegmt=True)}
            try:
                signed = verify_request(
                    method=request.method,
                    url=str(request.url),
                    headers=dict(request.headers),
                    body=request.content,
                    now_unix=server,
                )
            except BadRequestSignature as error:
                return httpx.Response(401, json={"title": "Not signed", "detail": str(error)}, headers=date)
            seen.append(signed.created_unix)
            return httpx.Response(204, headers=date)

        client = SignedClient("https://orchestrator.example", PrivateKey.generate())
        client._http = httpx.Client(transport=httpx.MockTransport(answer))
        monkeypatch.setattr("shoal.transport.client.time.time", lambda server=server, skew=skew: server + skew)
        client.call("GET", "/v1/step")
        client.call("GET", "/v1/step")
        assert len(seen) == 2
        assert all(abs(created - server) < 5 for created in seen)


@pytest.mark.parametrize(
    ("url", "skew"), [("http://orchestrator.example", 300.0), ("https://orchestrator.example", 86_400.0)]
)
def test_time_is_not_taken_from_just_anybody_nor_by_days(
    url: str, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def answer(_: httpx.Request) -> httpx.Response:
        tries.append(1)
        date = formatdate(time.time() + skew, usegmt=True)
        return httpx.Response(401, json={"title": "Not signed"}, headers={"Date": date})

    client = SignedClient(url, PrivateKey.generate())
    client._http = httpx.Client(transport=httpx.MockTransport(answer))
    with pytest.raises(Refused, match="401"):
        client.call("GET", "/v1/step")
    assert len(tries) == 1


# Two orchestrators over one Redis and one store


def both(*actions: Callable[[], object]) -> list[object]:
    """Run actions at the same time; what each gave, or the `Refusal` that it met."""
    gate = threading.Barrier(len(actions))

    def one(action: Callable[[], object]) -> object:
        gate.wait()
        try:
            return action()
        except Refusal as problem:
            return problem

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(one, actions))


def second(run: Orchestrator) -> RunState:
    state = run.new_state(run.open_store())
    state.ledger.load()
    return state


def test_two_orchestrators_never_give_one_number_twice(run: Orchestrator) -> None:
    nodes, other = [run.join() for _ in range(3)], second(run)
    for node in nodes:
        wanted = LeaseRequest(node=node, step=0)
        both(*[lambda s=state, w=wanted: handout.lease_for(s, w) for state in (run.state, other) * 2])
    found = [(lease.lease.node, lease.lease.step, lease.lease.submission) for lease in run.state.leases.all()]
    assert found
    assert len(found) == len(set(found))


def test_two_orchestrators_settle_each_file_once_whoever_hears_of_it(run: Orchestrator) -> None:
    node = run.join()
    files = [run.hand_in(node) for _ in range(2)]
    other = second(run)
    for _ in files:
        job = run.claimed()
        handout.claim(other, ClaimRequest(validator="validator-1"))
        signed = sign(verdict_on(job), run.role_keys["validator"])
        both(*[lambda s=state, v=signed: verdicts.receive(s, v) for state in (run.state, other) * 2])
        run.clock.now += 2  # what the other has claimed meanwhile comes free
    run.state.ledger.catch_up()
    settled = Counter(e.digest for e in ledger(run.store) if e.kind in ("accepted", "rejected"))
    assert set(settled.values()) == {1}
    assert run.state.view.files_accepted == len(settled)
    sealed = [entry for entry in ledger(run.store) if entry.kind == "batch-sealed"]
    assert len(sealed) <= 1


def test_two_orchestrators_that_confirm_one_upload_queue_it_once(run: Orchestrator) -> None:
    node, other = run.join(), second(run)
    lease = run.lease(node)
    data = run.upload(lease)
    both(lambda: run.confirm(lease, data), lambda: run.confirm(lease, data, other))
    assert run.state.queue.size() == 1
    record = uploads.find_record(run.state, node, run.confirm(lease, data).sha256)
    assert record is not None
    assert record.lease == lease.lease


def test_two_orchestrators_that_see_one_node_fall_silent_count_its_lease_once(run: Orchestrator) -> None:
    node, other = run.join(), second(run)
    run.lease(node)
    run.clock.now += SILENT_SECONDS + 1
    both(lambda: membership.reap(run.state), lambda: membership.reap(other))
    record = run.state.nodes.get(node)
    assert record is not None
    assert record.state == "Dead"
    assert record.abandoned_leases <= 1


def test_an_eviction_by_one_orchestrator_stands_against_heartbeats_at_the_other(run: Orchestrator) -> None:
    node, other = run.join(), second(run)
    run.state.nodes.get(node)
    both(lambda: verdicts.evict(run.state, node, "a test"), *[lambda: membership.reap(other)] * 3)
    assert isinstance(both(lambda: run.beat(node))[0], Refusal)
    record = other.nodes.get(node)
    assert record is not None
    assert record.state == "Evicted"


def test_files_that_wait_when_their_node_is_evicted_are_neither_checked_nor_paid(run: Orchestrator) -> None:
    node, honest = run.join(), run.join()
    files = {run.hand_in(node), run.hand_in(node)}
    job = run.claimed()
    (waiting,) = files - {job.sha256}
    run.judge(verdict_on(job, "reject", "bounds"))
    run.hand_in(honest)
    found = run.claimed()
    assert found.node == honest, "the evicted node's file is not given out"
    assert run.claim("validator-1") is None
    signed = uploads.find_verdict(run.state, node, waiting)
    assert signed is not None
    assert (signed.document.outcome, signed.document.evidence) == ("expired", verdicts.EVICTED)
    assert run.state.view.files_of[node].accepted == 0
