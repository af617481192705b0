"""Leases handed back: the place is free at once; the node pays as for one that ran out, and gains nothing."""

from pathlib import Path

import pytest

from protocol_stack import sha, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Lease, LeaseRequest, LeaseReturn, UploadRequest
from shoal.contracts.validation import Validation
from shoal.contracts.work import lease_seconds
from shoal.orchestrator.progress import run_progress
from shoal.orchestrator.work import handout, uploads
from shoal.orchestrator.work.lease_returns import take_back
from shoal.orchestrator.work.leases import is_open


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    """No key is on probation, so that each may hold two leases."""
    return Orchestrator(tmp_path, redis_server.url, validation=Validation(claim_seconds=1, probation_files=0))


@pytest.fixture
def node(run: Orchestrator) -> str:
    joined = run.join()
    run.announce(0)
    return joined


def give_back(run: Orchestrator, lease: Lease, node: str | None = None) -> None:
    take_back(run.state, LeaseReturn(node=node or lease.node, lease=lease.lease))


def abandoned(run: Orchestrator, node: str) -> int:
    record = run.state.nodes.get(node)
    assert record is not None
    return record.abandoned_leases


def test_the_place_is_free_at_once_and_the_node_pays_as_for_one_that_ran_out(run: Orchestrator, node: str) -> None:
    others = [run.join() for _ in range(4)]
    late = run.join()
    held = run.lease(node)
    for other in others:
        run.lease(other)
    with pytest.raises(Refusal, match="enough-under-way"):
        run.lease(late)
    give_back(run, held)
    run.lease(late)
    run.clock.now += lease_seconds(64) + 1
    handout.end_overdue_leases(run.state)
    assert (abandoned(run, node), abandoned(run, late)) == (1, 1)
    rooms = {record.node: record.room for record in run.state.nodes.all()}
    assert rooms[node] == rooms[late] == 1.0


def test_a_node_cannot_choose_its_prompts_by_handing_back(run: Orchestrator, node: str) -> None:
    first = run.lease(node)
    second = run.lease(node)
    give_back(run, first)
    again = run.lease_in_time(node)
    assert (again.lease, again.submission) == (first.lease, first.submission)
    give_back(run, second)
    give_back(run, again)
    assert {run.lease_in_time(node).submission for _ in range(6)} == {0}, (
        "it may hold one now, and it is the same each time"
    )


def test_nor_by_letting_leases_run_out_or_asking_for_more(run: Orchestrator, node: str) -> None:
    first = run.lease(node)
    run.upload(first)  # a file that is named and never confirmed does not help either
    run.clock.now += 10 * lease_seconds(64)
    handout.end_overdue_leases(run.state)
    again = run.lease_in_time(node)
    assert (again.lease, abandoned(run, node)) == (first.lease, 1)
    assert {run.lease_in_time(node).submission for _ in range(12)} <= {0, 1, 2}
    last = run.lease_in_time(node)
    data = run.upload(last)
    assert run.confirm(last, data).status == "queued"


def test_the_oldest_lease_is_dropped_for_a_third(run: Orchestrator, node: str) -> None:
    leases = []
    for _ in range(2):
        run.clock.now += 1
        leases.append(run.lease(node))
    with pytest.raises(Refusal, match="lease-dropped: this node dropped a lease; it gets the next one in 10 s"):
        run.lease(node)
    with pytest.raises(Refusal, match="lease-over"):
        run.upload(leases[0])
    assert run.confirm(leases[1], run.upload(leases[1])).status == "queued"
    assert run.lease_in_time(node).lease == leases[0].lease


def test_no_lease_that_the_node_names_is_dropped_for_a_further_one(run: Orchestrator, node: str) -> None:
    leases = [run.lease(node) for _ in range(2)]
    names = [lease.lease for lease in leases]
    with pytest.raises(Refusal, match="enough-under-way: this node works on 2 leases and may have 2: hand one in"):
        handout.lease_for(run.state, LeaseRequest(node=node, step=0, held=names))
    assert abandoned(run, node) == 0
    run.clock.now += 0.6 * lease_seconds(64)
    with pytest.raises(Refusal, match="lease-dropped"):
        handout.lease_for(run.state, LeaseRequest(node=node, step=0, held=names[:1]))
    with pytest.raises(Refusal, match="lease-over"):
        run.upload(leases[1])
    run.upload(leases[0])


def test_a_lease_whose_answer_was_lost_is_given_once_more_with_the_end_that_it_has(
    run: Orchestrator, node: str
) -> None:
    held, lost = run.lease(node), run.lease(node)

    def asked() -> Lease:
        return handout.lease_for(run.state, LeaseRequest(node=node, step=0, held=[held.lease]))

    assert asked() == lost
    run.clock.now += 0.4 * lease_seconds(64)
    assert asked() == lost
    assert abandoned(run, node) == 0
    run.clock.now += 0.2 * lease_seconds(64)
    with pytest.raises(Refusal, match="lease-dropped"):
        asked()
    run.upload(held)


def test_leases_that_a_process_held_together_cost_at_its_end_what_one_does(run: Orchestrator, node: str) -> None:
    first = run.lease(node)
    run.clock.now += 1
    second = run.lease(node)
    for lease in (first, second):
        run.clock.now += 1
        give_back(run, lease)
    assert abandoned(run, node) == 1
    give_back(run, run.lease_in_time(node))
    assert abandoned(run, node) == 2, "it was given after the first were charged"


def test_a_key_on_probation_holds_one_lease_and_gains_nothing_by_asking_for_more(
    tmp_path: Path, redis_server: Redis
) -> None:
    run = Orchestrator(tmp_path, redis_server.url, validation=Validation(probation_files=1, slashing="Discard"))
    node = run.join()
    run.announce(0)

    def held(times: int) -> set[tuple[str, int]]:
        for _ in range(times):
            run.clock.now += 1
            run.lease_in_time(node)
        return {(r.lease.lease, r.lease.submission) for r in run.state.leases.all() if is_open(r, run.clock.now)}

    first = held(1)
    assert (held(3), [number for _, number in first]) == (first, [0])
    for _ in range(8):  # accepted, without signal: the step needs more
        lease = run.lease_in_time(node)
        run.confirm(lease, run.upload(lease))
        run.judge(verdict_on(run.claimed(), rewards=[1.0] * 4))
    assert len(held(2)) == 2, "no probation, and what was dropped is made good"
    lease = run.lease_in_time(node)
    run.confirm(lease, run.upload(lease))
    run.judge(verdict_on(run.claimed(), "reject", "reward", evidence="row 0: 1.0 claimed, 0.0 found"))
    assert len(held(1)) == 1, "a rejected file starts probation anew"


def test_a_lease_given_again_lives_as_long_as_a_new_one(run: Orchestrator, node: str) -> None:
    first = run.lease(node)
    run.clock.now += 50
    give_back(run, first)
    run.clock.now += 50
    again = run.lease(node)
    assert again.expires_unix == run.clock.now + lease_seconds(64)
    assert run.confirm(again, run.upload(again)).status == "queued"


def test_a_file_that_was_begun_before_the_return_does_not_bind_the_lease(run: Orchestrator, node: str) -> None:
    lease = run.lease(node)
    run.state.leases.name_file(run.state.leases.require(lease.lease, node), "ab" * 32, 10, lease.expires_unix)
    give_back(run, lease)
    with pytest.raises(Refusal, match="lease-over"):
        run.upload(lease)
    again = run.lease_in_time(node)
    assert run.confirm(again, run.upload(again)).status == "queued"


def test_a_return_while_a_file_is_confirmed_does_not_make_two_files_of_one_lease(
    run: Orchestrator, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = run.lease(node)
    data = run.upload(lease)
    hashing = run.state.store.sha256

    def slow(key: str) -> tuple[str, int]:
        """The node asks for more while its first file is hashed. Here it is told to wait; another orchestrator would take the second one."""
        monkeypatch.undo()
        elsewhere = run.new_state()
        elsewhere.ledger.load()
        give_back(run, lease)
        again = run.lease_in_time(node)
        assert again.lease == lease.lease
        other = b"other rollouts of the same prompts"
        request = UploadRequest(node=node, lease=lease.lease, size=len(other), sha256=sha(other))
        uploads.grant_upload(run.state, request)
        run.store.put(keys.staging(node, lease.lease), other)
        with pytest.raises(Refusal, match="record-busy"):
            run.confirm(again, other)
        assert run.confirm(again, other, elsewhere).status == "queued"
        return hashing(key)

    monkeypatch.setattr(run.state.store, "sha256", slow)
    with pytest.raises(Refusal, match=r"lease-over: .* was given back before its file was confirmed"):
        run.confirm(lease, data)
    assert run.state.queue.size() == 1
    kept = [info.key for info in run.store.list(keys.UPLOADS)]
    assert kept == [keys.upload(node, sha(b"other rollouts of the same prompts"))], "bytes that count for nothing go"
    assert len(run.store.list(keys.WAITING)) == 1


def test_a_return_of_what_is_over_changes_nothing(run: Orchestrator, node: str) -> None:
    lease = run.lease(node)
    data = run.upload(lease)
    run.confirm(lease, data)
    give_back(run, lease)
    assert run.confirm(lease, data).status == "queued"
    expired = run.lease(node)
    run.clock.now += lease_seconds(64) + 1
    give_back(run, expired)
    handout.end_overdue_leases(run.state)
    assert abandoned(run, node) == 1


def test_only_the_holder_hands_back(run: Orchestrator, node: str) -> None:
    lease = run.lease(node)
    with pytest.raises(Refusal, match="lease-of-another-node"):
        give_back(run, lease, run.join())
    with pytest.raises(Refusal, match="no-such-lease"):
        take_back(run.state, LeaseReturn(node=node, lease="0f" * 16))


def test_a_return_outlives_a_restart_of_the_orchestrator(run: Orchestrator, node: str) -> None:
    lease = run.lease(node)
    give_back(run, lease)
    run.restarted()
    assert run_progress(run.state).pending_groups == 0
    with pytest.raises(Refusal, match="lease-dropped"):
        run.lease(node)
    assert run.lease_in_time(node).lease == lease.lease


def test_the_step_says_below_which_files_expire(run: Orchestrator, node: str) -> None:
    for _ in range(2):
        shown = handout.step_for(run.state, node)
        assert shown is not None
        assert shown.first_unsealed_step == 0
        run.hand_in(node)
        run.judge(verdict_on(run.claimed()))
    shown = handout.step_for(run.state, node)
    assert shown is not None
    assert (shown.step, shown.first_unsealed_step) == (1, 1)


def test_a_step_that_is_sealed_while_it_is_shown_breaks_nothing(
    run: Orchestrator, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one: between the first look and the last nothing is open any more."""
    answers = [[0], []]
    monkeypatch.setattr(handout, "openable_steps", lambda _: answers.pop(0))
    shown = handout.step_for(run.state, node)
    assert shown is not None
    assert (shown.step, shown.first_unsealed_step) == (0, 0)


def test_no_lease_is_given_for_a_file_that_would_be_over_the_hours_number(
    run: Orchestrator, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "FILES_AN_HOUR", 3)
    run.hand_in(node)
    for lease in [run.lease(node) for _ in range(2)]:
        assert run.confirm(lease, run.upload(lease)).status == "queued"
    with pytest.raises(Refusal, match="quota-leased: a node hands in 3 files an hour at most: wait 3600 s"):
        run.lease(node)
    run.judge(verdict_on(run.claimed(), rewards=[1.0] * 4))  # without signal: the step needs more
    run.clock.now += uploads.HOUR_SECONDS
    run.lease(node)


def test_leases_whose_files_are_to_come_count_towards_the_hours_number(
    run: Orchestrator, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "FILES_AN_HOUR", 1)
    lease = run.lease(node)
    with pytest.raises(Refusal, match="quota-leased"):
        run.lease(node)
    assert run.confirm(lease, run.upload(lease)).status == "queued"
