"""Invites as the orchestrator's rounds give them: what a registration may change of a node that is inside already, and what it may not."""

from pathlib import Path

import pytest
from discovery_book import Book, known

from protocol_stack import verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.node_states import SILENT_SECONDS
from shoal.contracts.pools import SAMPLER, Admission, PoolTerms, Requirements
from shoal.contracts.problems import Refusal
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.nodes import membership, registry
from shoal.orchestrator.nodes.registry import NodeRecord

POOLS = [
    PoolTerms(name="pool", open=True, requirements=Requirements(gflops=500)),
    PoolTerms(name="easy", open=True),
    PoolTerms(name="own", sampler="none"),
    PoolTerms(name="closed"),
    PoolTerms(name="few", open=True, admission=Admission(nodes_per_address=2)),
]


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url, pools=POOLS)


def member(run: Orchestrator, book: Book, pool: str = "easy") -> str:
    node = PrivateKey.generate().public
    book.register(node, pool)
    assert book.round() == 1
    assert run.beat(node, book.invites[node]) == "Healthy"
    return node


def test_an_invited_node_is_asked_what_its_invites_pool_wants_whatever_it_registers_for_next(
    run: Orchestrator, book: Book
) -> None:
    node = PrivateKey.generate().public
    book.register(node, "pool")
    assert book.round() == 1
    book.register(node, "closed")
    assert book.round() == 0
    assert (known(run, node).pool, known(run, node).place) == ("", "pool")
    assert known(run, node).refused == "pool 'closed' is not open to strangers' machines"
    with pytest.raises(Refusal, match="challenge-not-passed"):
        run.beat(node, book.invites[node])


def test_a_refused_registration_leaves_a_member_in_its_pool(run: Orchestrator, book: Book) -> None:
    node = member(run, book)
    book.register(node, "closed")
    assert book.round() == 0
    assert (known(run, node).pool, known(run, node).state) == ("easy", "Healthy")


def test_a_refused_stranger_is_kept_with_the_pool_that_it_wanted(run: Orchestrator, book: Book) -> None:
    node = PrivateKey.generate().public
    book.register(node, "closed")
    assert book.round() == 0
    assert (known(run, node).place, known(run, node).state) == ("closed", "Discovered")


def test_a_member_changes_its_pool_only_when_it_has_left(run: Orchestrator, book: Book) -> None:
    node = member(run, book)
    book.register(node, "pool")
    assert book.round() == 0
    assert known(run, node).refused == "a member of another pool, 'easy'; it may change to 'pool' after it has left"
    assert known(run, node).pool == "easy"
    run.clock.now += 3600.0
    membership.reap(run.state)
    assert known(run, node).state == "Dead"
    assert book.round() == 1, "the same registration is answered as soon as it may be"
    assert (known(run, node).place, known(run, node).state, known(run, node).refused) == ("pool", "Invited", "")
    assert known(run, node).pool == "easy", "an invite alone moves nobody"


@pytest.mark.parametrize(("before", "after"), [("easy", "own"), ("own", "easy")])
def test_files_and_leases_are_judged_by_the_pool_in_which_they_were_given(
    run: Orchestrator, book: Book, before: str, after: str
) -> None:
    sampler = {"easy": SAMPLER, "own": None}
    node = member(run, book, before)
    run.announce(0)
    file, held = run.hand_in(node), run.lease(node)
    book.register(node, after)
    run.clock.now += SILENT_SECONDS
    membership.reap(run.state)
    assert book.round() == 1
    assert run.claimed().sampler == sampler[before], "an invite moves no file"
    assert run.beat(node, book.invites[node]) == "Healthy"
    run.clock.now += 61  # the claim runs out
    job = run.claimed()
    assert (job.sha256, job.sampler) == (file, sampler[before])
    run.judge(verdict_on(job))
    again = run.lease(node)
    assert again.lease == held.lease, "nor does it get other prompts"
    run.restarted().redis.flushall()
    run.restarted()
    file = run.confirm(again, run.upload(again)).sha256
    job = run.claimed()
    assert (job.sha256, job.sampler) == (file, sampler[after]), "what it made in the new pool is of the new pool"


def test_a_member_whose_pool_was_forgotten_with_redis_is_invited_to_what_it_names(
    run: Orchestrator, book: Book
) -> None:
    node = member(run, book)
    run.lose_redis()
    assert known(run, node).pool == ""
    book.register(node, "easy")
    assert book.round() == 1
    assert run.beat(node, book.invites[node]) == "Healthy"


def test_tokens_are_drawn_again_after_redis_was_lost_where_pools_differ(run: Orchestrator, book: Book) -> None:
    node = member(run, book)
    run.announce(0)
    held = run.lease(node)
    run.lose_redis()
    for refused in (lambda: run.beat(node), lambda: run.lease(node)):
        with pytest.raises(Refusal, match="pool-forgotten: the orchestrator lost this node's pool with Redis"):
            refused()
    assert [record.drawn_by.sampler for record in run.state.leases.all() if record.drawn_by] == [SAMPLER]
    book.register(node, "easy")
    assert book.round() == 1
    assert run.beat(node, book.invites[node]) == "Healthy"
    assert known(run, node).pool == "easy"
    assert run.confirm(held, run.upload(held)).status == "queued", "what it held stands"
    new = run.hand_in(node)
    assert {run.claimed().sampler for _ in range(2)} == {SAMPLER}
    run.restarted().redis.flushall()
    run.restarted()
    assert {job.sha256: job.sampler for job in (run.claimed(), run.claimed())}[new] == SAMPLER


def test_a_machine_counts_at_its_address_again_after_redis_was_lost(run: Orchestrator, book: Book) -> None:
    nodes = [member(run, book, "few") for _ in range(2)]
    run.lose_redis()
    for node in nodes:
        with pytest.raises(Refusal, match="pool-forgotten"):
            run.beat(node)
        book.register(node, "few")
    book.register(PrivateKey.generate().public, "few")
    assert book.round() == 2
    assert [run.beat(node, book.invites[node]) for node in nodes] == ["Healthy"] * 2


@pytest.mark.parametrize(
    ("pools", "again"),
    [
        ([PoolTerms(name="pool"), PoolTerms(name="gpus", gpus=1)], False),
        ([PoolTerms(name="pool"), PoolTerms(name="own", sampler="none")], True),
        ([PoolTerms(name="pool", admission=Admission(nodes_per_address=1))], True),
    ],
)
def test_nodes_register_anew_only_where_something_hangs_on_their_pool(
    tmp_path: Path, redis_server: Redis, pools: list[PoolTerms], again: bool
) -> None:
    run = Orchestrator(tmp_path, redis_server.url, pools=pools)
    node = run.join()
    run.lose_redis()
    if again:
        with pytest.raises(Refusal, match="pool-forgotten"):
            run.beat(node)
    else:
        assert run.beat(node) == "Healthy"


def test_only_the_newest_invite_admits_a_strangers_machine(run: Orchestrator, book: Book) -> None:
    node = PrivateKey.generate().public
    book.register(node, "easy")
    assert book.round() == 1
    easy = book.invites[node]
    book.register(node, "pool")
    assert book.round() == 1
    with pytest.raises(Refusal, match="invite-not-valid: a newer invite was given; register at discovery"):
        run.beat(node, easy)
    assert known(run, node).state == "Invited"
    with pytest.raises(Refusal, match="challenge-not-passed"):
        run.beat(node, book.invites[node])


def test_a_node_that_comes_at_once_is_known_by_its_new_invite(run: Orchestrator, book: Book) -> None:
    node = member(run, book)
    deliver, states = book.call, []

    def and_come(method: str, path: str, body: object = None, reply: type | None = None, **_: float) -> object:
        answer = deliver(method, path, body, reply)
        if method == "PUT":
            states.append(run.beat(node, book.invites[node]))
        return answer

    book.call = and_come
    book.register(node, "easy")
    assert book.round() == 1
    assert states == ["Healthy"]
    assert book.round() == 0, "the registration was answered"


# Machines of one address


def test_so_many_machines_of_one_address_and_no_more_even_in_one_round(run: Orchestrator, book: Book) -> None:
    nodes = [PrivateKey.generate().public for _ in range(3)]
    for node in nodes:
        book.register(node, "few")
    elsewhere = PrivateKey.generate().public
    book.register(elsewhere, "few", "192.0.2.8")
    assert book.round() == 3
    assert [known(run, node).state for node in nodes] == ["Invited", "Invited", "Discovered"]
    assert known(run, nodes[2]).refused == "pool 'few' takes 2 machines from one address"
    assert known(run, elsewhere).state == "Invited"


def test_a_member_that_registers_again_is_no_further_machine(run: Orchestrator, book: Book) -> None:
    first = member(run, book, "few")
    member(run, book, "few")
    book.register(first, "few")
    assert book.round() == 1
    assert run.beat(first, book.invites[first]) == "Healthy"
    book.register(PrivateKey.generate().public, "few")
    assert book.round() == 0


def test_members_count_when_discovery_has_forgotten_them_or_has_rows_that_they_wrote_anew(
    run: Orchestrator, book: Book
) -> None:
    forgotten, rewritten = member(run, book, "few"), member(run, book, "few")
    del book.rows[forgotten]
    book.register(rewritten, "closed", "192.0.2.99")
    newcomer = PrivateKey.generate().public
    book.register(newcomer, "few")
    assert book.round() == 0
    assert known(run, newcomer).refused == "pool 'few' takes 2 machines from one address"


def test_a_machine_that_left_makes_room_for_another(run: Orchestrator, book: Book) -> None:
    member(run, book, "few")
    run.clock.now += 3600.0
    membership.reap(run.state)
    for _ in range(2):
        book.register(PrivateKey.generate().public, "few")
    assert book.round() == 2


def test_of_nodes_that_are_gone_the_newest_are_remembered(
    run: Orchestrator, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are free: who makes many shall not fill the orchestrator's memory."""
    monkeypatch.setattr(registry, "MOST_GONE", 2)
    lives = member(run, book)
    dead = []
    for _ in range(3):
        dead.append(member(run, book))
        run.clock.now += 1
    run.clock.now += SILENT_SECONDS
    run.beat(lives)
    welcome, refused = PrivateKey.generate().public, [PrivateKey.generate().public for _ in range(3)]
    run.state.nodes.put(NodeRecord(node=welcome, welcome=True))
    for node in refused:
        book.register(node, "closed")
        book.round()
        run.clock.now += 1
    for _ in range(2):
        membership.reap(run.state)
    left = {record.node: record.state for record in run.state.nodes.all()}
    waiting = dict.fromkeys([welcome, *refused[1:]], "Discovered")
    assert left == waiting | {lives: "Healthy", dead[1]: "Dead", dead[2]: "Dead"}
    book.round()
    assert run.state.nodes.get(refused[0]) is None  # nor is it written and forgotten in turn while it waits
    with pytest.raises(Refusal, match="not-admitted: register at discovery"):
        run.beat(dead[0])
    book.register(dead[0], "easy")  # and may come again
    book.round()
    assert run.beat(dead[0], book.invites[dead[0]]) == "Healthy"


def test_a_record_that_changes_while_it_is_forgotten_stays(
    run: Orchestrator, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MOST_GONE", 0)
    node = PrivateKey.generate().public
    book.register(node, "closed")
    book.round()
    old = run.state.nodes.all()
    run.redis.hset(f"{run.state.prefix}:nodes", node, NodeRecord(node=node, welcome=True).to_json())
    assert run.state.nodes.forget_oldest(old) == 0
    assert known(run, node).welcome


def test_a_pool_opened_after_prepare_left_the_proofs_uncalibrated_takes_no_stranger(
    run: Orchestrator, book: Book
) -> None:
    uncalibrated = run.state.prepared.model_copy(update={"proof_profile": None})
    run.state.store.put(keys.PREPARED, uncalibrated.to_json())
    del run.state.prepared
    node = PrivateKey.generate().public
    book.register(node, "easy")
    assert book.round() == 0
    assert "uncalibrated" in known(run, node).refused
