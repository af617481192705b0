"""Leases that are handed in in parts: who finishes them, what counts, and what a liar gains."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pydantic import ValidationError

from protocol_stack import GROUP_SIZE, GROUPS, NEEDED, ledger, sha, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import (
    HandedPart,
    Lease,
    LeaseRequest,
    LeaseReturn,
    SubmissionNotice,
    SubmissionReceipt,
    rest_of,
)
from shoal.contracts.recipe import Recipe
from shoal.contracts.settings import Rollouts
from shoal.contracts.steps import StepBatch
from shoal.contracts.validation import Validation
from shoal.contracts.work import FIRST_PART_NUMBER, LeasePart
from shoal.orchestrator.work import handout, uploads
from shoal.orchestrator.work.beacons import drawn_prompts
from shoal.orchestrator.work.lease_returns import take_back
from shoal.orchestrator.work.leases import LeaseBook
from shoal.orchestrator.work.load import UNJUDGED_CHECKS, accepted_groups, loads, under_way
from shoal.orchestrator.work.records import LeaseRecord
from shoal.orchestrator.work.standing import good_nodes, relied_on

PARTS: dict[str, object] = {
    "validation": Validation(claim_seconds=1, probation_files=0, slashing="Discard"),
    "rollouts": Rollouts(hand_in_every_seconds=60),
}


def orchestrator(folder: Path, redis_server: Redis, **changes: object) -> Orchestrator:
    run = Orchestrator(folder, redis_server.url, **(PARTS | changes))
    run.announce(0)
    return run


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return orchestrator(tmp_path, redis_server)


def hand_in(run: Orchestrator, lease: Lease, groups: list[int] | None = None, keep: bool = False) -> SubmissionReceipt:
    """A file of these groups of a lease; None: of all that it has."""
    data = run.upload(lease)
    count = len(groups) if groups is not None else GROUPS if lease.part is None else len(lease.part.groups)
    part = HandedPart(groups=groups, keep=keep) if groups is not None else None
    notice = SubmissionNotice(
        node=lease.node, lease=lease.lease, size=len(data), sha256=sha(data), groups=count, part=part
    )
    return uploads.submit(run.state, notice)


def continued(run: Orchestrator, node: str) -> Lease:
    return handout.lease_for(run.state, LeaseRequest(node=node, step=0, parts=True))


def give_back(run: Orchestrator, lease: Lease) -> None:
    take_back(run.state, LeaseReturn(node=lease.node, lease=lease.lease))


def dropped(run: Orchestrator, node: str) -> int:
    """Leases for which this node was charged."""
    record = run.state.nodes.get(node)
    assert record is not None
    return int(record.abandoned_leases)


def judge_all(run: Orchestrator) -> None:
    while (job := run.claim()) is not None:
        run.judge(verdict_on(job))


def accepted(run: Orchestrator) -> list[tuple[str, int, int]]:
    """Node, submission and groups of each entry that pays."""
    return [(entry.node, entry.submission, entry.groups) for entry in ledger(run.store) if entry.kind == "accepted"]


def refused(code: ProblemCode) -> AbstractContextManager[object]:
    return pytest.raises(Refusal, match=str(code))


def test_another_node_finishes_a_lease_as_the_first_would_have_drawn_it(run: Orchestrator) -> None:
    first, second = run.join(), run.join()
    lease = run.lease(first)
    assert hand_in(run, lease, [0]).rest is None
    rest = continued(run, second)
    assert rest.part == LeasePart(node=first, submission=lease.submission, groups=[1])
    hand_in(run, rest)
    hand_in(run, run.lease(second))
    judge_all(run)
    batch = StepBatch.from_json(run.store.get(keys.step_batch(0)))
    prompts = drawn_prompts(run.state, run.state.codec.step(0), first, lease.submission)
    parts = [file for file in batch.files if file.rows == GROUP_SIZE]
    assert sorted((file.node != first, file.rows, file.prompt_indices) for file in parts) == [
        (False, GROUP_SIZE, prompts[:1]),
        (True, GROUP_SIZE, prompts[1:]),
    ]
    assert sorted(groups for _, _, groups in accepted(run)) == [1, 1, 2], "each group is paid once"


def test_a_node_that_leaves_out_what_it_dislikes_keeps_what_it_likes_out_too(run: Orchestrator) -> None:
    liar, honest = run.join(), run.join()
    hand_in(run, run.lease(liar), [1])
    judge_all(run)
    assert accepted_groups(run.state, 0) == 0
    assert run.state.view.accepted_in_a_row[liar] == 0, "nor is it a file that shows anything"
    assert dropped(run, liar) == 1, "it pays as for a lease that it gave back"
    hand_in(run, continued(run, honest))
    judge_all(run)
    assert accepted_groups(run.state, 0) == 2


def test_a_step_does_not_wait_for_a_rest_that_nobody_works_on_and_gives_it_out_first(run: Orchestrator) -> None:
    first, second = run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    judge_all(run)
    assert loads(run.state, [0])[0].pending_groups == 0
    rest = continued(run, second)
    assert loads(run.state, [0])[0].pending_groups == 2, "with the rest under way the whole lease is expected"
    assert rest.part is not None


def test_a_node_that_goes_on_has_a_lease_for_the_rest_however_often_it_asks(run: Orchestrator) -> None:
    node = run.join()
    lease = run.lease(node)
    receipt = hand_in(run, lease, [0], keep=True)
    rest = receipt.rest
    assert rest is not None
    assert (rest.lease, rest.expires_unix) == (rest_of(lease.lease), lease.expires_unix)
    data = f"rollouts {lease.lease}".encode()
    notice = SubmissionNotice(
        node=node, lease=lease.lease, size=len(data), sha256=sha(data), groups=1, part=HandedPart(groups=[0], keep=True)
    )
    assert uploads.submit(run.state, notice) == receipt
    hand_in(run, rest)
    judge_all(run)
    assert sorted(accepted(run)) == [(node, 0, 1), (node, FIRST_PART_NUMBER, 1)]
    assert run.state.view.accepted_in_a_row[node] == 1, "a lease counts once, in however many parts"


def test_what_a_killed_worker_kept_is_finished_by_another_and_its_late_file_is_refused(run: Orchestrator) -> None:
    killed, other = run.join(), run.join()
    kept = hand_in(run, run.lease(killed), [0], keep=True).rest
    assert kept is not None
    give_back(run, kept)  # by the worker in its place
    rest = continued(run, other)
    assert rest.part == kept.part
    with refused(ProblemCode.LEASE_OVER):
        hand_in(run, kept)
    hand_in(run, rest)
    judge_all(run)
    assert {node for node, _, _ in accepted(run)} == {killed, other}


def test_a_rest_that_runs_out_goes_to_the_next_node(run: Orchestrator) -> None:
    first, second, third = run.join(), run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    silent = continued(run, second)
    run.clock.now = silent.expires_unix + 1
    assert continued(run, third).part == silent.part
    with refused(ProblemCode.LEASE_OVER):
        hand_in(run, silent)


def test_only_the_node_that_has_the_rest_hands_it_in(run: Orchestrator) -> None:
    first, second, stranger = run.join(), run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    rest = continued(run, second)
    with refused(ProblemCode.LEASE_OF_ANOTHER_NODE):
        hand_in(run, rest.model_copy(update={"node": stranger}))
    assert continued(run, stranger).part is None, "and there is one of it"


@pytest.mark.parametrize("first_is_whole", [True, False])
def test_a_lease_has_one_file_part_or_whole(run: Orchestrator, first_is_whole: bool) -> None:
    lease = run.lease(run.join())
    hand_in(run, lease, None if first_is_whole else [0])
    with refused(ProblemCode.ALREADY_SUBMITTED):
        hand_in(run, lease, [1] if first_is_whole else None)
    judge_all(run)
    assert len(accepted(run)) == 1


@pytest.mark.parametrize("groups", [[0, 1], [1, 2], [7]])
def test_a_part_is_some_of_its_lease_and_not_all(run: Orchestrator, groups: list[int]) -> None:
    lease = run.lease(run.join())
    with pytest.raises(Refusal, match=r"wrong-groups: groups \[.*\] are no part of this lease, which holds \[0, 1\]"):
        hand_in(run, lease, groups)


def test_a_node_passes_over_no_draw_of_its_own_by_finishing_others(run: Orchestrator) -> None:
    first, second = run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    assert continued(run, second).submission == FIRST_PART_NUMBER
    assert run.lease(second).submission == 0


def test_a_rejected_part_is_drawn_again_and_the_whole_counts_then(run: Orchestrator) -> None:
    liar, second, third = run.join(), run.join(), run.join()
    hand_in(run, run.lease(liar), [0])
    run.judge(verdict_on(run.claimed(), "reject", "format"))
    found = [continued(run, second), continued(run, third)]
    assert sorted(rest.part.groups for rest in found if rest.part is not None) == [[0], [1]]
    for rest in found:
        hand_in(run, rest)
    judge_all(run)
    assert accepted_groups(run.state, 0) == 2
    assert liar not in [node for node, _, _ in accepted(run)]


@pytest.mark.parametrize("taken", [False, True])
def test_parts_outlive_redis(run: Orchestrator, taken: bool) -> None:
    first, second, third = run.join(), run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    rest = continued(run, second) if taken else None
    run.lose_redis()
    for node in (first, second, third):
        run.beat(node, run.invite(node, sha(node.encode())[:32]))
    again = continued(run, third)
    assert (again.part is None) == taken, "it is free, or the second node's"
    hand_in(run, rest or again)
    judge_all(run)
    assert accepted_groups(run.state, 0) == 2


def test_a_rest_that_a_crash_left_unmade_is_made_by_recovery(run: Orchestrator) -> None:
    first, second = run.join(), run.join()
    lease = run.lease(first)
    hand_in(run, lease, [0])
    rest = run.state.leases.get(rest_of(lease.lease))
    assert rest is not None
    run.state.leases.forget(rest.lease)
    run.store.delete(keys.lease(0, first, FIRST_PART_NUMBER))
    run.restarted()
    assert continued(run, second).part == LeasePart(node=first, submission=0, groups=[1])


@pytest.mark.parametrize("rollouts", [None, Rollouts(versions="Several")])
def test_a_run_makes_no_parts_unless_its_spec_says_so(
    tmp_path: Path, redis_server: Redis, rollouts: Rollouts | None
) -> None:
    run = orchestrator(tmp_path, redis_server, rollouts=rollouts)
    lease = run.lease(run.join())
    info = handout.step_for(run.state, lease.node, in_parts=True)
    assert info is not None
    assert info.hand_in_every_seconds is None
    with pytest.raises(Refusal, match="wrong-groups: this run takes leases whole"):
        hand_in(run, lease, [0])


def test_a_node_is_told_how_often_to_hand_in(run: Orchestrator) -> None:
    info = handout.step_for(run.state, run.join(), in_parts=True)
    assert info is not None
    assert info.hand_in_every_seconds == 60


def test_a_rest_that_nobody_finishes_is_offered_twice_and_never_to_a_node_that_had_it(run: Orchestrator) -> None:
    first, *others = [run.join() for _ in range(4)]
    hand_in(run, run.lease(first), [0])
    run.clock.now += 60  # its wait
    assert continued(run, first).part is None, "it left this rest itself"
    rest = continued(run, others[0])
    assert rest.part is not None
    give_back(run, rest)
    assert continued(run, others[0]).part is None, "it had this rest"
    rest = continued(run, others[1])
    assert rest.part is not None
    give_back(run, rest)
    assert continued(run, others[2]).part is None, "two have tried it"
    assert [dropped(run, node) for node in (first, *others)] == [1, 0, 0, 0], "who drew it pays"


def test_a_node_that_lets_the_rest_of_another_run_out_pays_for_it(run: Orchestrator) -> None:
    first, second = run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    run.clock.now = continued(run, second).expires_unix + 1
    handout.end_overdue_leases(run.state)
    assert dropped(run, second) == 1


class Crash(Exception):
    """The process is gone."""


def test_a_crash_while_a_rest_is_given_leases_no_group_twice(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = run.join(), run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    written = LeaseBook.put

    def put(book: LeaseBook, record: LeaseRecord) -> None:
        if record.status == "passed":
            raise Crash
        written(book, record)

    with monkeypatch.context() as patched:
        patched.setattr(LeaseBook, "put", put)
        with pytest.raises(Crash):
            continued(run, second)
    assert continued(run, third).part is None, "the second node has it, though it does not know yet"
    run.restarted()
    assert {each.status for each in run.state.leases.all() if each.part is not None} == {"submitted", "passed", "open"}
    [given] = [each.lease for each in run.state.leases.all() if each.part is not None and each.status == "open"]
    assert given.node == second
    hand_in(run, given)
    judge_all(run)
    assert sorted(accepted(run)) == sorted([(first, 0, 1), (second, FIRST_PART_NUMBER, 1)]), "each group is paid once"


def test_a_crash_before_redis_knows_who_has_a_rest_leases_no_group_twice(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = run.join(), run.join(), run.join()
    hand_in(run, run.lease(first), [0])

    def put(book: LeaseBook, record: LeaseRecord) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(LeaseBook, "put", put)
        with pytest.raises(Crash):
            continued(run, second)
    run.restarted()
    assert continued(run, third).part is None
    [given] = [each for each in run.state.leases.all() if each.part is not None and each.status == "open"]
    assert given.lease.node == second
    assert [each.status for each in run.state.leases.all() if each.lease.lease == given.follows] == ["passed"]


def test_a_step_waits_for_a_rest_for_as_long_as_for_any_lease(run: Orchestrator) -> None:
    first, second = run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    judge_all(run)
    rest = continued(run, second)
    assert rest.part is not None
    assert under_way(run.state, good_nodes(run.state)).all[0] == 2
    run.clock.now += relied_on(run.state) + 1
    assert run.clock.now < rest.expires_unix
    assert under_way(run.state, good_nodes(run.state)).all[0] == 0, "neither for the rest nor for what waits for it"


def test_a_step_does_not_wait_for_a_rest_that_cannot_be_judged(run: Orchestrator) -> None:
    first, second = run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    judge_all(run)
    hand_in(run, continued(run, second))
    assert loads(run.state, [0])[0].pending_groups == 2
    [job] = run.state.queue.all()
    for _ in range(UNJUDGED_CHECKS):
        run.clock.now += 60
        run.judge(verdict_on(run.claimed(), "inconclusive"))
    assert job.record.node == second
    assert loads(run.state, [0])[0].pending_groups == 0


def test_the_rest_of_a_step_that_has_had_its_samples_is_still_finished(tmp_path: Path, redis_server: Redis) -> None:
    recipe = Recipe(prompts_per_step=NEEDED, group_size=GROUP_SIZE, max_sequence_length=128, sampling_cap=2)
    run = orchestrator(tmp_path, redis_server, recipe=recipe)
    first, second = run.join(), run.join()
    hand_in(run, run.lease(first), [0])
    judge_all(run)
    assert loads(run.state, [0])[0].judged_groups == 0, "what waits for a rest says nothing of the step"
    for _ in range(4):
        hand_in(run, run.lease(second))
        run.judge(verdict_on(run.claimed(), rewards=[0.0] * GROUPS * GROUP_SIZE))
    with refused(ProblemCode.STEP_STALLED):
        run.lease(second)
    assert continued(run, second).part is not None


@pytest.mark.parametrize("groups", [[1, 0], [0, 0], [-1]])
def test_groups_of_a_part_ascend(groups: list[int]) -> None:
    with pytest.raises(ValidationError, match="ascending"):
        HandedPart(groups=groups)
