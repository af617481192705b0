"""Leases, claims, verdicts and silence over time, without HTTP: real Redis, real store, a clock moved by hand."""

from pathlib import Path

import pytest

from ledger_samples import fact
from protocol_stack import GROUP_SIZE, GROUPS, ledger, sha, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.node_states import LATE_SECONDS, SILENT_SECONDS
from shoal.contracts.pools import SAMPLER, PoolTerms
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Heartbeat
from shoal.contracts.signed import Signed
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import lease_seconds
from shoal.ledger.view import SEALED_STEPS
from shoal.orchestrator import background
from shoal.orchestrator.nodes import membership
from shoal.orchestrator.progress import run_progress
from shoal.orchestrator.verdicts.verdicts import over
from shoal.orchestrator.work import handout
from shoal.orchestrator.work.leases import MEMORY_SECONDS
from shoal.orchestrator.work.load import MOST_UNJUDGED_FILES, UNJUDGED_CHECKS, unjudged_files
from shoal.orchestrator.work.records import DrawnBy, SubmissionRecord
from shoal.orchestrator.work.sealing import seal_if_full
from shoal.orchestrator.work.uploads import find_record


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url, validation=Validation(claim_seconds=60))


@pytest.fixture
def node(run: Orchestrator) -> str:
    """A member of a run whose step 0 is open."""
    joined = run.join()
    run.announce(0)
    return joined


def pending(run: Orchestrator) -> int:
    return run_progress(run.state).pending_groups


def test_an_expired_lease_frees_its_groups_and_counts_against_the_node(run: Orchestrator, node: str) -> None:
    lease = run.lease(node)
    assert pending(run) == 2
    run.clock.now += lease_seconds(64) + 1
    assert pending(run) == 0
    assert handout.end_overdue_leases(run.state) == 1
    assert handout.end_overdue_leases(run.state) == 0
    record = run.state.nodes.get(node)
    assert record is not None
    assert record.abandoned_leases == 1
    with pytest.raises(Refusal, match="lease-over"):
        run.upload(lease)


def test_a_lease_is_refused_while_enough_is_under_way(run: Orchestrator, node: str) -> None:
    others = [run.join() for _ in range(5)]
    for other in others:  # all are admitted before the first lease reveals step 0
        run.lease(other)
    with pytest.raises(Refusal, match="enough-under-way: step 0 is probably full"):
        run.lease(node)


def test_work_ahead_is_given_when_what_is_pending_will_fill_the_step(run: Orchestrator, node: str) -> None:
    served = []
    for member in [node, *(run.join() for _ in range(9))]:
        step = handout.step_for(run.state, member)
        assert step is not None
        served.append(step.step)
        run.lease(member, step.step)
    # Before any verdict half of the groups are expected to carry signal: 4 files of 2 groups for the 4 needed. When
    # that is so of both steps that are open, each gets a file more.
    assert served == [0, 0, 0, 0, 1, 1, 1, 1, 0, 1]


def test_an_upload_grant_keeps_the_lease_open(run: Orchestrator, node: str) -> None:
    lease = run.lease(node)
    run.clock.now += lease_seconds(64) - 1
    data = run.upload(lease)
    run.clock.now += 30
    assert run.confirm(lease, data).status == "queued"


def test_a_file_without_a_verdict_in_time_goes_to_another_validator(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    first = run.claimed("validator-0")
    assert run.claim("validator-1") is None
    run.clock.now += 61
    second = run.claimed("validator-1")
    assert (second.sha256, second.claim != first.claim) == (first.sha256, True)
    run.judge(verdict_on(first))  # the slow validator's finding is as good as another
    run.judge(verdict_on(second))
    assert run_progress(run.state).files_accepted == 1


def test_files_are_claimed_in_the_order_received(run: Orchestrator, node: str) -> None:
    files = []
    for _ in range(3):
        files.append(run.hand_in(node))
        run.clock.now += 1
    assert [run.claimed().sha256 for _ in range(3)] == files


def test_a_statistical_reject_is_checked_again_by_another_and_only_then_slashes(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    run.judge(verdict_on(run.claimed("validator-0"), "reject", "computation", evidence="chunk 3"))
    assert run.beat(node) == "Healthy"
    assert run_progress(run.state).files_rejected == 0
    assert run.claim("validator-0") is None, "another validator has the first chance"
    run.judge(verdict_on(run.claimed("validator-1"), "reject", "computation", evidence="chunk 5"))
    with pytest.raises(Refusal, match="evicted"):
        run.beat(node)
    kinds = [entry.kind for entry in ledger(run.store)]
    assert kinds[-2:] == ["rejected", "node-evicted"]
    assert run_progress(run.state).reject_reasons == {"computation": 1}


def test_with_one_validator_the_second_opinion_is_a_fresh_check(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    found = verdict_on(run.claimed(), "reject", "token_sampling", evidence="first check")
    run.judge(found)
    run.judge(found)  # the answer was lost and the validator repeats itself: no second finding
    assert run.claim() is None
    run.clock.now += 61
    run.judge(verdict_on(run.claimed(), "accept"))
    assert run_progress(run.state).files_accepted == 1
    assert run.beat(node) == "Healthy"


def test_a_late_finding_of_the_same_validator_is_no_second_one_while_others_have_their_time(
    run: Orchestrator, node: str
) -> None:
    run.hand_in(node)
    job = run.claimed("validator-0")
    named = {"validator": "validator-0"}
    run.judge(verdict_on(job, "reject", "computation", evidence="first").model_copy(update=named))
    run.claimed("validator-1")  # busy with it when the slower of two checks by validator-0 comes in
    run.judge(verdict_on(job, "reject", "computation", evidence="second").model_copy(update=named))
    assert run.beat(node) == "Healthy"
    run.judge(verdict_on(job, "reject", "computation").model_copy(update={"validator": "validator-1"}))
    with pytest.raises(Refusal, match="evicted"):
        run.beat(node)


def test_a_job_says_what_its_node_has_earned(run: Orchestrator, node: str) -> None:
    validation = run.state.config.validation.model_copy(update={"probation_files": 2, "slashing": "Discard"})
    run.config = run.state.config = run.state.config.model_copy(update={"validation": validation})

    def standing() -> tuple[int, bool]:
        job = run.claimed()
        return job.accepted_files, job.on_probation

    found, equal = [], [1.0] * (GROUPS * GROUP_SIZE)
    for outcome in ("accept", "accept", "reject", "accept"):
        run.hand_in(node)
        found.append(standing())
        run.clock.now += 61  # the claim runs out: the next one is of the same file
        reason = "reward" if outcome == "reject" else None
        run.judge(verdict_on(run.claimed(), outcome, reason, rewards=equal))  # without signal the step stays open
        run.clock.now += 20  # a rejected file costs as much as a dropped lease
    assert found == [(0, True), (1, True), (2, False), (0, True)]
    run.restarted()
    run.hand_in(node)
    assert standing() == (1, True), "the ledger knows, whoever reads it"
    assert run.state.view.accepted_in_a_row[run.join()] == 0


def test_a_job_after_a_statistical_reject_asks_for_every_row(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    first = run.claimed("validator-0")
    run.judge(verdict_on(first, "reject", "redraw", evidence="row 1"))
    assert (first.second_opinion, run.claimed("validator-1").second_opinion) == (False, True)


def test_a_job_says_what_draws_tokens_by_the_terms_of_the_nodes_pool(run: Orchestrator, node: str) -> None:
    file = run.hand_in(node)
    assert run.claimed().sampler == SAMPLER
    record = find_record(run.state, node, file)
    assert record is not None
    noted, before_it_was_noted = record, record.model_copy(update={"drawn_by": None})

    def sampler(record: SubmissionRecord = before_it_was_noted, **changes: object) -> str | None:
        state = run.new_state()
        state.config = run.config.model_copy(update=changes)
        return handout.sampler_of(state, record)

    cpu, gpu, other = PoolTerms(name="pool"), PoolTerms(name="pool", gpus=1), PoolTerms(name="other", sampler="none")
    unchecked = PoolTerms(name="pool", sampler="none")
    assert (sampler(pools=[cpu, other]), sampler(pools=[gpu]), sampler(pools=[unchecked])) == (SAMPLER, SAMPLER, None)
    assert sampler(noted, pools=[unchecked]) == SAMPLER, "as it was drawn"
    assert sampler(pools=[other]) == SAMPLER, (
        "whose pool was removed draws by the rule: no pool of its own says otherwise"
    )
    run.lose_redis()  # and with it, which pool the node is in
    assert (sampler(pools=[cpu]), sampler(pools=[cpu, other]), sampler(pools=[])) == (SAMPLER, None, None)


def test_a_file_that_an_earlier_release_drew_by_its_own_rule_expires_by_name(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    job = run.claimed()
    record = find_record(run.state, job.node, job.sha256)
    assert record is not None
    old = record.model_copy(update={"drawn_by": DrawnBy(pool="pool", sampler="vllm-cpu")})
    assert over(run.state, record) == ""
    assert over(run.state, old).startswith("its tokens were drawn by rule vllm-cpu of an earlier release")


def test_a_deterministic_reject_evicts_at_once_and_frees_the_nodes_leases(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    run.lease(node)
    assert pending(run) == 4
    run.judge(verdict_on(run.claimed(), "reject", "reward", evidence="row 0: 1.0 claimed, 0.0 found"))
    assert pending(run) == 0
    for action in (lambda: handout.step_for(run.state, node), lambda: run.lease(node), lambda: run.beat(node)):
        with pytest.raises(Refusal, match="evicted"):
            action()
    assert ledger(run.store)[-2].detail == "reward: row 0: 1.0 claimed, 0.0 found"


def test_where_slashing_is_off_a_rejected_file_costs_its_node_that_file_only(run: Orchestrator, node: str) -> None:
    validation = run.state.config.validation.model_copy(update={"slashing": "Discard"})
    run.state.config = run.state.config.model_copy(update={"validation": validation})
    run.hand_in(node)
    run.judge(verdict_on(run.claimed(), "reject", "reward", evidence="row 0: 1.0 claimed, 0.0 found"))
    assert run.beat(node) == "Healthy"
    assert run_progress(run.state).files_rejected == 1
    assert [entry.kind for entry in ledger(run.store)][-1] == "rejected"


def nobody_can_judge(run: Orchestrator, files: int) -> None:
    """Every file in the queue has been checked as often as is waited for, without a result."""
    for _ in range(UNJUDGED_CHECKS):
        for _ in range(files):
            run.judge(verdict_on(run.claimed(), "inconclusive"))
        run.clock.now += 61


def test_files_that_nobody_can_judge_do_not_keep_a_step_from_its_files(run: Orchestrator, node: str) -> None:
    other, files = run.join(), 5
    for _ in range(files):
        run.hand_in(node)
    with pytest.raises(Refusal, match="enough-under-way"):
        run.lease(other)
    nobody_can_judge(run, files)
    assert run_progress(run.state).files_pending == files
    assert pending(run) == 0
    run.hand_in(other)
    assert pending(run) == 2


def test_a_node_whose_files_nobody_can_judge_gets_no_more_leases_until_they_are_settled(
    run: Orchestrator, node: str
) -> None:
    other, handed_in = run.join(), 0
    while handed_in < MOST_UNJUDGED_FILES:
        assert unjudged_files(run.state, node) == handed_in
        run.hand_in(node)
        handed_in += 1
        nobody_can_judge(run, handed_in)
    with pytest.raises(Refusal, match="files-not-judged: 8 or more files of this node had checks"):
        run.lease(node)
    run.lease(other)
    job = run.claimed()
    run.judge(verdict_on(job))
    run.lease(node)


def test_an_inconclusive_check_neither_pays_nor_slashes_and_is_made_again_later(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    run.judge(verdict_on(run.claimed(), "inconclusive"))
    progress = run_progress(run.state)
    assert (progress.files_inconclusive, progress.files_pending, progress.files_accepted) == (1, 1, 0)
    assert run.claim() is None
    run.clock.now += 3
    run.judge(verdict_on(run.claimed(), "inconclusive"))
    run.clock.now += 3
    assert run.claim() is None, "the second pause is longer"
    run.clock.now += 3
    run.judge(verdict_on(run.claimed()))
    assert run_progress(run.state).files_accepted == 1


def test_unvalidated_work_is_never_trained_on(run: Orchestrator, node: str) -> None:
    for _ in range(3):
        run.hand_in(node)
    run.clock.now += 86_400
    background.settle_late(run.state)
    assert seal_if_full(run.state, 0) is None
    assert not run.store.exists(keys.step_batch(0))
    assert run_progress(run.state).files_pending == 3


def test_files_of_a_sealed_step_expire_without_pay_or_slash(run: Orchestrator, node: str) -> None:
    for _ in range(4):
        run.hand_in(node)
    slow = run.claimed("validator-slow")
    for _ in range(2):
        run.judge(verdict_on(run.claimed()))
    run.judge(verdict_on(slow))
    background.settle_late(run.state)
    progress = run_progress(run.state)
    assert (progress.files_accepted, progress.files_expired, progress.files_pending) == (2, 2, 0)
    recorded = Signed[Verdict].from_json(run.store.get(keys.verdict(node, slow.sha256)))
    assert recorded.verified(run.role_keys["orchestrator"].public).outcome == "expired"
    assert recorded.document.evidence == "step 0 was sealed before this file was accepted"
    assert run.beat(node) == "Healthy"


def test_a_lease_of_a_sealed_step_ends_in_an_expired_receipt(run: Orchestrator, node: str) -> None:
    other = run.join()
    held = run.lease(other)
    data = run.upload(held)
    for _ in range(2):
        run.hand_in(node)
        run.judge(verdict_on(run.claimed()))
    assert run.confirm(held, data).status == "expired"
    assert run.store.list(keys.STAGING) == []


def test_redis_forgets_leases_and_their_numbers_a_while_after_a_step_is_sealed(run: Orchestrator, node: str) -> None:
    numbers = f"{run.state.prefix}:submission-numbers"
    for _ in range(2):
        run.hand_in(node)
        run.judge(verdict_on(run.claimed()))
    ahead = run.lease(node, 1)
    background.settle_late(run.state)
    assert {*run.redis.hkeys(numbers)} == {f"0/{node}", f"1/{node}"}
    run.clock.now += lease_seconds(64) + MEMORY_SECONDS + 1
    background.settle_late(run.state)
    assert {*run.redis.hkeys(numbers)} == {f"1/{node}"}, "one for each node and step, for ever"
    assert [record.lease.lease for record in run.state.leases.all()] == [ahead.lease]


def test_groups_without_signal_do_not_fill_a_step(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    run.judge(verdict_on(run.claimed(), rewards=[1.0, 1.0, 0.0, 1.0]))
    progress = run_progress(run.state)
    assert (progress.accepted_groups, progress.groups_accepted_total, progress.groups_dropped_total) == (1, 1, 1)
    for _ in range(2):
        run.hand_in(node)
        run.judge(verdict_on(run.claimed()))
    assert list(run.state.view.sealed) == [0]


def test_a_policy_version_too_old_for_the_step_expires(tmp_path: Path, redis_server: Redis) -> None:
    run = Orchestrator(tmp_path, redis_server.url, async_level=0)
    node = run.join()
    run.announce(0)
    run.hand_in(node)
    run.judge(verdict_on(run.claimed(), version=7))
    progress = run_progress(run.state)
    assert (progress.files_accepted, progress.files_expired) == (0, 1)


def test_a_silent_node_becomes_unhealthy_then_dead_and_its_leases_are_given_up(run: Orchestrator, node: str) -> None:
    run.lease(node)
    run.clock.now += LATE_SECONDS
    membership.reap(run.state)
    assert run_progress(run.state).nodes == {"Unhealthy": 1}
    assert run.beat(node) == "Healthy"
    run.clock.now += SILENT_SECONDS
    membership.reap(run.state)
    assert run_progress(run.state).nodes == {"Dead": 1}
    assert pending(run) == 0
    assert ledger(run.store)[-1].kind == "node-dead"
    assert run.beat(node) == "Dead"
    with pytest.raises(Refusal, match="not-a-member"):
        run.lease(node)


def test_a_dead_node_gets_no_relay_token(run: Orchestrator, node: str) -> None:
    run.clock.now += SILENT_SECONDS
    membership.reap(run.state)
    reply = membership.heartbeat(run.state, Heartbeat(node=node))
    assert (reply.state, reply.relay_token) == ("Dead", None)


def test_waiting_for_says_what_is_missing(run: Orchestrator) -> None:
    assert run_progress(run.state).waiting_for == "version 0, the base model, to be announced"
    run.announce(0)
    assert run_progress(run.state).waiting_for == "a healthy node to work on step 0"


def test_staged_files_that_nobody_confirmed_are_swept(run: Orchestrator, node: str) -> None:
    run.upload(run.lease(node))
    staged = run.store.list(keys.STAGING)[0]
    run.clock.now = staged.modified_unix + 60
    assert background.sweep_staging(run.state) == 0
    run.clock.now = staged.modified_unix + background.STAGED_SECONDS + 1
    assert background.sweep_staging(run.state) == 1
    assert run.store.list(keys.STAGING) == []


def test_a_heartbeat_that_was_read_before_an_eviction_does_not_undo_it(run: Orchestrator, node: str) -> None:
    stale = run.state.nodes.get(node)
    assert stale is not None
    run.hand_in(node)
    run.judge(verdict_on(run.claimed(), "reject", "format"))
    run.state.nodes.put(stale)
    assert run_progress(run.state).nodes == {"Evicted": 1}
    with pytest.raises(Refusal, match="evicted"):
        run.beat(node)


def test_files_of_steps_long_sealed_are_no_longer_held_in_memory(run: Orchestrator, node: str) -> None:
    """Slices of a run of mode Generate are sealed in any order: the last ones are kept by when, not by number."""
    order = [*range(20, 0, -2), *range(1, 20, 2)]
    for step in order:
        run.state.ledger.append(
            fact("accepted", node=node, step=step, submission=0, digest=sha(b"%d" % step), tokens=1, groups=4)
        )
        run.state.ledger.append(fact("batch-sealed", step=step, digest=sha(b"batch"), groups=4))
    view = run.state.view
    assert list(view.accepted) == order[-SEALED_STEPS:]
    run.state.ledger.append(fact("accepted", node=node, step=20, submission=1, digest=sha(b"late"), tokens=1, groups=4))
    assert list(view.accepted) == order[-SEALED_STEPS:]
    assert (view.files_accepted, view.groups_judged, len(view.sealed)) == (21, 84, 20)
