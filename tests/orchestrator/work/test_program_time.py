"""What programs of a node's files cost validators is counted to the node: above its time it waits, and its programs do not run."""

from pathlib import Path

import pytest

from protocol_stack import verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import ClaimRenewal, ValidationJob
from shoal.contracts.recipe import PROGRAM_SECONDS, Recipe, Validation
from shoal.contracts.verdicts import Verdict
from shoal.orchestrator.nodes.admin import one_node
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.verdicts import verdicts
from shoal.orchestrator.work import handout, program_time
from shoal.orchestrator.work.leases import lease_seconds
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


def judged(run: Orchestrator, node: str, seconds: float) -> None:
    run.hand_in(node)
    run.judge(verdict_after(run.claimed(), seconds))


@pytest.mark.parametrize(
    ("files_an_hour", "seconds"),
    [
        (2 * 3600 / lease_seconds(32_768), PROGRAM_SECONDS),  # the paper's, if every program of every file never ended
        (45, 48 * 20 * 0.1),  # a machine that takes 80 s for a file of 48 rows, 20 tests each
        (FILES_AN_HOUR, 48 * 4 * 0.05),  # exercises
    ],
)
def test_honest_nodes_never_meet_it(files_an_hour: float, seconds: float) -> None:
    record, now = NodeRecord(node=NODE), 0.0
    for _ in range(int(24 * files_an_hour)):
        now += 3600 / files_an_hour
        program_time.require_left(record, PROGRAM_SECONDS, now)
        used = program_time.used(record, now) + seconds
        record = record.model_copy(update={"program_seconds": used, "program_seconds_unix": now})


def test_a_node_above_its_time_waits_for_its_next_lease_and_others_do_not(run: Orchestrator) -> None:
    node, other = run.join(), run.join()
    for _ in range(7):
        judged(run, node, PROGRAM_SECONDS)
    assert took(run, node) == 7 * PROGRAM_SECONDS
    judged(run, node, PROGRAM_SECONDS)
    run.restarted()
    with pytest.raises(
        Refusal, match=r"program-time-used: .* took 14400 s of CPU time of late; .* in 481 s"
    ) as refused:
        run.lease(node)
    run.hand_in(other)
    run.clock.now += 470
    with pytest.raises(Refusal, match="program-time-used"):
        run.lease(node)
    run.clock.now += (refused.value.retry_after_seconds or 0) - 470
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
    assert had == [None] * 8 + [14_400 - 8 * 1700, 0.0, 0.0]
    assert took(run, node) == 8 * PROGRAM_SECONDS


def test_a_claim_is_counted_once_however_often_it_is_told(run: Orchestrator) -> None:
    node = run.join()
    digest = run.hand_in(node)
    job = run.claimed("first")
    for seconds in (100.0, 250.0, 250.0, 180.0):
        handout.renew(run.state, ClaimRenewal(validator="first", node=node, sha256=digest, program_seconds=seconds))
    assert took(run, node) == 250.0
    for _ in range(2):
        run.judge(verdict_after(job, 300.0, "first"))
    assert took(run, node) == 300.0


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
    assert took(run, node) == pytest.approx(70.0, abs=1.0)


def test_an_evicted_node_has_no_account(run: Orchestrator) -> None:
    node = run.join()
    digest = run.hand_in(node)
    run.claimed()
    verdicts.evict(run.state, node, "of another file")
    with pytest.raises(Refusal, match="claim-over"):
        handout.renew(run.state, ClaimRenewal(validator="validator-0", node=node, sha256=digest, program_seconds=9.0))
    assert took(run, node) == 0.0
