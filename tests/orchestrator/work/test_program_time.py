"""What programs of a node's files cost validators is counted to the node: above its time it waits, and its programs do not run."""

from pathlib import Path

import pytest

from protocol_stack import verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import ClaimRenewal, ValidationJob
from shoal.contracts.recipe import Recipe
from shoal.contracts.validation import PROGRAM_SECONDS, Validation
from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import lease_seconds
from shoal.orchestrator.nodes.admin import one_node
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.verdicts import verdicts
from shoal.orchestrator.work import handout, program_time
from shoal.orchestrator.work.uploads import FILES_AN_HOUR

NODE = "ab" * 32
LARGE = Recipe(prompts_per_step=64, group_size=2, max_sequence_length=128)


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    """Steps of many files, and nobody on probation."""
    run = Orchestrator(
        tmp_path, redis_server.url, validation=Validation(claim_seconds=60, probation_files=0), recipe=LARGE
    )
    run.announce(0)
    return run


def took(run: Orchestrator, node: str) -> float:
    return one_node(run.state, node).program_seconds


def verdict_after(job: ValidationJob, seconds: float, validator: str = "validator-0") -> Verdict:
    return verdict_on(job).model_copy(update={"program_seconds": seconds, "validator": validator})


def after_accepted(record: NodeRecord, seconds: float, now: float) -> NodeRecord:
    used = program_time.used(record, now) + seconds - program_time.given_back(seconds, PROGRAM_SECONDS)
    return record.model_copy(update={"program_seconds": used, "program_seconds_unix": now})


def judged(run: Orchestrator, node: str, seconds: float) -> None:
    run.hand_in(node)
    run.judge(verdict_after(run.claimed(), seconds))


@pytest.mark.parametrize(
    ("files_an_hour", "seconds"),
    [
        (2 * 3600 / lease_seconds(32_768), PROGRAM_SECONDS),  # the paper's, if every program of every file never ended
        (45, 48 * 20 * 0.1),  # a machine that takes 80 s for a file of 48 rows, 20 tests each
        (180, 75.0),  # a fast machine, a file every 20 s
        (240, 75.0),  # every 15 s
        (FILES_AN_HOUR, 48 * 4 * 0.05),  # exercises
    ],
)
def test_honest_nodes_never_meet_it(files_an_hour: float, seconds: float) -> None:
    record, now = NodeRecord(node=NODE), 0.0
    for _ in range(int(24 * files_an_hour)):
        now += 3600 / files_an_hour
        program_time.require_left(record, PROGRAM_SECONDS, now)
        record = after_accepted(record, seconds, now)


@pytest.mark.parametrize(("seconds", "cores"), [(PROGRAM_SECONDS, 4.3), (300.0, 6.4), (150.0, 16.0), (75.0, 16.0)])
def test_a_node_whose_files_are_all_accepted_is_bounded_too(seconds: float, cores: float) -> None:
    record, spent, day = NodeRecord(node=NODE), 0.0, 24 * 3600
    for now in range(0, 2 * day, 3600 // FILES_AN_HOUR):
        if program_time.used(record, now) <= (program_time.FILES - 1) * PROGRAM_SECONDS:
            record = after_accepted(record, seconds, now)
            spent += seconds if now >= day else 0.0
    assert cores * 0.8 < spent / day <= cores


def test_a_file_that_is_accepted_gives_most_of_its_time_back_and_another_does_not(run: Orchestrator) -> None:
    node = run.join()
    judged(run, node, 80.0)
    assert took(run, node) == 20.0
    run.hand_in(node)
    run.judge(verdict_after(run.claimed(), 80.0).model_copy(update={"outcome": "inconclusive", "rewards": []}))
    assert took(run, node) == 100.0


def test_pods_of_the_owner_are_counted_and_never_wait(run: Orchestrator) -> None:
    node = run.join()
    run.state.nodes.change(run.state.nodes.require_member(node), outside=False)
    for _ in range(9):
        judged(run, node, PROGRAM_SECONDS)
    run.hand_in(node)
    assert run.claimed().program_seconds is None
    assert took(run, node) > 8 * PROGRAM_SECONDS


def test_time_that_could_not_be_noted_is_noted_when_it_is_told_again(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = run.join()
    digest = run.hand_in(node)
    run.claimed()
    monkeypatch.setattr("shoal.orchestrator.nodes.registry.MOST_TRIES", 0)
    with pytest.raises(Refusal, match="record-busy"):
        program_time.charge(run.state, "validator-0", node, digest, 40.0)
    monkeypatch.undo()
    program_time.charge(run.state, "validator-0", node, digest, 40.0)
    assert took(run, node) == 40.0


def test_a_node_above_its_time_waits_for_its_next_lease_and_others_do_not(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = run.join(), run.join()
    for _ in range(7):
        judged(run, node, PROGRAM_SECONDS)
    assert took(run, node) == 7 * PROGRAM_SECONDS * 15 / 16
    judged(run, node, PROGRAM_SECONDS)
    run.restarted()
    with monkeypatch.context() as looked_at:
        looked_at.setattr(handout, "Look", lambda *_: pytest.fail("there is a look"))
        with pytest.raises(Refusal, match="program-time-used"):
            handout.step_for(run.state, node)
    with pytest.raises(
        Refusal, match=r"program-time-used: .* took 13500 s of CPU time of late; .* in 249 s"
    ) as refused:
        run.lease(node)
    run.hand_in(other)
    run.clock.now += 240
    with pytest.raises(Refusal, match="program-time-used"):
        run.lease(node)
    run.clock.now += (refused.value.retry_after_seconds or 0) - 240
    run.lease(node)


def test_files_that_wait_already_get_what_is_left_and_no_more(run: Orchestrator) -> None:
    node = run.join()
    for _ in range(11):
        run.hand_in(node)
    had = []
    for _ in range(11):
        job = run.claimed()
        had.append(job.program_seconds)
        run.judge(verdict_after(job, 1700 if job.program_seconds is None else min(1700, job.program_seconds)))
    given_back = PROGRAM_SECONDS / 16  # for an accepted file that took more than 150 s
    assert had == [None] * 8 + [14_400 - 8 * (1700 - given_back), given_back, given_back * 3 / 4]
    assert took(run, node) < 8 * PROGRAM_SECONDS


def test_a_claim_is_counted_once_however_often_it_is_told(run: Orchestrator) -> None:
    node = run.join()
    digest = run.hand_in(node)
    job = run.claimed("first")
    for seconds in (100.0, 250.0, 250.0, 180.0):
        handout.renew(run.state, ClaimRenewal(validator="first", node=node, sha256=digest, program_seconds=seconds))
    assert took(run, node) == 250.0
    for _ in range(2):
        run.judge(verdict_after(job, 300.0, "first"))
    assert took(run, node) == 300.0 - PROGRAM_SECONDS / 16


def test_a_check_that_nobody_waits_for_any_more_counts_and_so_does_the_next(run: Orchestrator) -> None:
    node = run.join()
    digest = run.hand_in(node)
    run.claimed("first")
    run.clock.now += 61
    run.claimed("second")
    with pytest.raises(Refusal, match="another validator checks it"):
        handout.renew(run.state, ClaimRenewal(validator="first", node=node, sha256=digest, program_seconds=40.0))
    run.clock.now += 61
    job = run.claimed("first")
    run.judge(verdict_after(job, 30.0, "first"))
    assert took(run, node) == pytest.approx(40.0 + 30.0 / 4, abs=1.0)


def test_an_evicted_node_has_no_account(run: Orchestrator) -> None:
    node = run.join()
    digest = run.hand_in(node)
    run.claimed()
    verdicts.evict(run.state, node, "of another file")
    with pytest.raises(Refusal, match="claim-over"):
        handout.renew(run.state, ClaimRenewal(validator="validator-0", node=node, sha256=digest, program_seconds=9.0))
    assert took(run, node) == 0.0
