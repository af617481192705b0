"""Invites in the ledger: each member's is there before it joins, and free keys cannot fill the ledger with invites or by joining again."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from discovery_book import MACHINE, Book

from protocol_stack import ledger
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.pools import PoolTerms
from shoal.contracts.problems import ProblemDocument
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.ledger import view
from shoal.ledger.reading import read_ledger
from shoal.ledger.source import LedgerSource, Trust
from shoal.ledger.view import UNUSED_SECONDS
from shoal.orchestrator.nodes.inviting import INVITES_AT_ONCE, INVITES_PER_SECOND
from shoal.storage import StoreUnavailable
from shoal.transport import Refused


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url, pools=[PoolTerms(name="pool", open=True)])


def new_node() -> str:
    return PrivateKey.generate().public


def of(run: Orchestrator, *kinds: str, node: str | None = None) -> list[SimpleNamespace]:
    return [entry for entry in ledger(run.store) if entry.kind in kinds and node in (None, entry.node)]


def problems(run: Orchestrator) -> list[str]:
    trust = Trust(run.config.run_key, run.config.roster, "the test", given=True)
    return read_ledger(LedgerSource(run.store, trust), lambda _: None).report.problems


def test_an_invite_is_noted_with_what_the_node_registered_and_not_its_address(run: Orchestrator, book: Book) -> None:
    node = new_node()
    book.register(node, address="192.0.2.77")
    assert book.round() == 1
    (entry,) = of(run, "node-invited")
    assert entry.invited is not None
    assert (entry.node, entry.invited.pool, entry.invited.hardware) == (node, "pool", MACHINE)
    assert entry.detail == book.invites[node].document.nonce
    assert entry.digest == document_digest(book.rows[node].registration)
    assert entry.invited.registered_unix == book.rows[node].seen_unix
    assert b"192.0.2.77" not in run.store.get(keys.ledger_entry(entry.number))
    assert run.beat(node, book.invites[node]) == "Healthy"
    assert [each.kind for each in of(run, "node-invited", "node-joined")] == ["node-invited", "node-joined"]
    assert problems(run) == []


def test_a_key_that_registers_again_and_again_without_coming_is_noted_once_a_day(run: Orchestrator, book: Book) -> None:
    node = new_node()
    for _ in range(5):
        book.register(node)
        assert book.round() == 1
        run.restarted()
    assert len(of(run, "node-invited")) == 1
    assert run.beat(node, book.invites[node]) == "Healthy"
    assert [each.kind for each in of(run, "node-invited", "node-joined")] == [
        "node-invited",
        "node-invited",
        "node-joined",
    ]
    other = new_node()
    for _ in range(3):
        book.register(other)
        book.round()
        run.clock.now += UNUSED_SECONDS + 1
    assert len(of(run, "node-invited", node=other)) == 3
    assert problems(run) == []


def test_a_flood_of_keys_is_invited_and_noted_up_to_a_bound_and_keeps_nobody_out(
    run: Orchestrator, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "MOST_UNUSED", 20)
    for _ in range(60):
        book.register(new_node())
    assert book.round() == 60
    assert len(of(run, "node-invited")) == 20
    run.restarted()
    honest = new_node()
    book.register(honest)
    assert book.round() == 1
    assert len(of(run, "node-invited")) == 20, "a restart forgets nothing"
    assert run.beat(honest, book.invites[honest]) == "Healthy"
    (noted,) = of(run, "node-invited", node=honest)
    assert noted.invited is not None
    assert (noted.invited.pool, noted.invited.hardware, noted.digest) == ("pool", None, None)
    run.clock.now += UNUSED_SECONDS + 1
    for _ in range(60):
        book.register(new_node())
    assert book.round() == 60
    assert len(of(run, "node-invited")) == 41, "another day"
    assert problems(run) == []


def test_who_comes_makes_room_for_the_next(run: Orchestrator, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MOST_UNUSED", 2)
    for _ in range(6):
        node = new_node()
        book.register(node)
        assert book.round() == 1
        (entry,) = of(run, "node-invited", node=node)
        assert entry.invited is not None
        assert entry.invited.hardware == MACHINE
        assert run.beat(node, book.invites[node]) == "Healthy"


def test_two_orchestrators_note_an_invite_once(run: Orchestrator, book: Book) -> None:
    node = new_node()
    book.register(node)
    assert book.round() == 1
    second = run.new_state()
    second.ledger.load()
    invite = book.invites[node]
    assert run.beat(node, invite) == "Healthy"
    first, run.state = run.state, second  # which has not read of the joining
    assert run.beat(node, invite) == "Healthy"
    run.state = first
    assert Counter(each.kind for each in of(run, "node-invited", "node-joined")) == {
        "node-invited": 1,
        "node-joined": 1,
    }


def test_a_key_that_joins_without_end_is_held_back_and_then_let_in(run: Orchestrator, book: Book) -> None:
    now = [0.0]
    inviter = book.inviter(lambda: now[0])
    node, quiet = new_node(), new_node()

    def join_again(who: str) -> int:
        now[0] += 10.0
        book.register(who)
        invited = inviter.round()
        if invited:
            assert run.beat(who, book.invites[who]) == "Healthy"
        return invited

    hour = 3600.0
    joined = sum(join_again(node) for _ in range(int(hour) // 10))
    assert joined <= INVITES_AT_ONCE + hour * INVITES_PER_SECOND + 1
    assert len(of(run, "node-joined")) == joined
    assert join_again(quiet) >= 1
    assert quiet in book.invites, "another key is not held back"
    before, now[0] = book.invites[node], now[0] + 1.0
    book.register(node)
    asked = now[0]
    while book.invites[node] == before:
        now[0] += 10.0
        inviter.round()
    assert now[0] < asked + 1 / INVITES_PER_SECOND + 20.0, "the same registration, two minutes later at most"


def test_what_fails_on_our_side_costs_the_node_none_of_its_invites(
    run: Orchestrator, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    inviter = book.inviter(lambda: 0.0)
    node = new_node()
    book.register(node)

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as broken:
        broken.setattr(run.state.ledger.store, "create", away)
        for _ in range(3 * INVITES_AT_ONCE):
            with pytest.raises(StoreUnavailable):
                inviter.round()
    assert inviter.round() == 1


def test_an_invite_that_could_not_be_left_is_no_place_taken_twice(
    run: Orchestrator, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process, or discovery, is lost between the entry and the invite: the next invite is another, noted when it is used."""
    node = new_node()
    book.register(node)
    leave = book.call

    def refuse(method: str, *rest: object, **named: object) -> object:
        if method == "PUT":
            raise Refused(ProblemDocument(title="Not registered", status=404, detail="gone"))
        return leave(method, *rest, **named)  # whatever it was given

    with monkeypatch.context() as lost:
        lost.setattr(book, "call", refuse)
        assert book.round() == 0
    assert book.round() == 1
    assert run.beat(node, book.invites[node]) == "Healthy"
    nonces = [entry.detail for entry in of(run, "node-invited", node=node)]
    assert len(nonces) == 2
    assert nonces[1] == book.invites[node].document.nonce
    assert problems(run) == []


def test_a_registration_that_has_no_digest_costs_nobody_else_the_invite(run: Orchestrator, book: Book) -> None:
    """Its integer is beyond what RFC 8785 writes; no contract lets it through, so that this stands for what we have not thought of."""
    before, strange, after = new_node(), new_node(), new_node()
    for node in (before, strange, after):
        book.register(node)
    row = book.rows[strange]
    hardware = MACHINE.model_copy(update={"disk_free_bytes": 1 << 60})
    book.rows[strange] = row.model_copy(
        update={"registration": row.registration.model_copy(update={"hardware": hardware})}
    )
    assert book.round() == 2
    assert set(book.invites) == {before, after}
    assert [entry.node for entry in of(run, "node-invited")] == [before, after]
