"""Leases that are handed in in parts: who finishes them, what counts, and what a liar gains."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from protocol_stack import GROUP_SIZE, GROUPS, ledger, sha, verdict_on
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
from shoal.contracts.recipe import Validation
from shoal.contracts.steps import StepBatch
from shoal.contracts.work import FIRST_PART_NUMBER, LeasePart
from shoal.orchestrator.work import handout, uploads
from shoal.orchestrator.work.beacons import drawn_prompts
from shoal.orchestrator.work.lease_returns import take_back
from shoal.orchestrator.work.load import accepted_groups, loads


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    run = Orchestrator(
        tmp_path, redis_server.url, validation=Validation(claim_seconds=1, probation_files=0, slashing="Discard")
    )
    run.announce(0)
    return run


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
    record = run.state.nodes.get(liar)
    assert record is not None
    assert record.abandoned_leases == 1, "it pays as for a lease that it gave back"
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
    take_back(run.state, LeaseReturn(node=killed, lease=kept.lease))  # by the worker in its place
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
    run.state.leases.forget(rest_of(lease.lease))
    run.store.delete(keys.lease(0, first, FIRST_PART_NUMBER))
    run.restarted()
    assert continued(run, second).part == LeasePart(node=first, submission=0, groups=[1])
