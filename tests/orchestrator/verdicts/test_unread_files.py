"""Files that a validator could not read: one that is short of memory or time harms no honest node, and a hostile file still ends."""

from pathlib import Path

import pytest

from protocol_stack import verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.problems import Refusal
from shoal.contracts.validation import Validation
from shoal.orchestrator import background
from shoal.orchestrator.progress import run_progress
from shoal.orchestrator.verdicts.queue import LOOK_AHEAD, MOST_READINGS, Job, OpinionNote
from shoal.orchestrator.work.load import UNJUDGED_CHECKS, unjudged_files
from shoal.orchestrator.work.records import SubmissionRecord

CLAIM_SECONDS = 60
DAY_SECONDS = 86_400


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url, validation=Validation(claim_seconds=CLAIM_SECONDS))


@pytest.fixture
def node(run: Orchestrator) -> str:
    joined = run.join()
    run.announce(0)
    return joined


def cannot_read(run: Orchestrator, validator: str, evidence: str = "reading the file took more than 60 s") -> None:
    """This validator claims the next file, and its readers die."""
    found = verdict_on(run.claimed(validator), "reject", "unread", evidence=evidence)
    run.judge(found.model_copy(update={"validator": validator}))


def give_up(run: Orchestrator, validator: str) -> None:
    """The same as often as it may try, with time for others in between."""
    for reading in range(MOST_READINGS):
        cannot_read(run, validator, f"reading {reading}")
        run.clock.now += CLAIM_SECONDS + 1


def test_a_file_that_two_validators_cannot_read_is_rejected_after_one_check_of_each(
    run: Orchestrator, node: str
) -> None:
    run.hand_in(node)
    cannot_read(run, "validator-0")
    assert run.beat(node) == "Healthy"
    assert run.claim("validator-0") is None, "another validator has the first chance"
    cannot_read(run, "validator-1")
    with pytest.raises(Refusal, match="evicted"):
        run.beat(node)
    assert run_progress(run.state).reject_reasons == {"unread": 1}


def test_one_validator_that_cannot_read_costs_an_honest_node_nothing(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    give_up(run, "validator-0")
    assert run.beat(node) == "Healthy"
    assert run_progress(run.state).files_rejected == 0
    run.judge(verdict_on(run.claimed("validator-1")))
    assert run_progress(run.state).files_accepted == 1


def test_the_same_validator_may_read_once_more_what_it_could_not(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    cannot_read(run, "validator-0")
    run.clock.now += CLAIM_SECONDS + 1
    run.judge(verdict_on(run.claimed("validator-0")))
    assert run_progress(run.state).files_accepted == 1


def test_a_validator_is_never_given_again_what_it_could_not_read_twice(run: Orchestrator, node: str) -> None:
    run.hand_in(node)
    give_up(run, "validator-0")
    for _ in range(2):
        run.clock.now += DAY_SECONDS
        assert run.claim("validator-0") is None
        run.lose_redis()  # its findings are in the store
    cannot_read(run, "validator-1")
    assert run_progress(run.state).reject_reasons == {"unread": 1}


def test_a_step_does_not_wait_for_a_file_that_its_one_validator_gave_up_and_ends_it_unslashed(
    run: Orchestrator, node: str
) -> None:
    other = run.join()
    run.hand_in(node)
    give_up(run, "validator-0")
    assert (run_progress(run.state).pending_groups, unjudged_files(run.state, node)) == (0, 1)
    while not run.store.exists(keys.step_batch(0)):
        run.hand_in(other)
        run.judge(verdict_on(run.claimed("validator-0")))
    background.settle_late(run.state)
    progress = run_progress(run.state)
    assert (progress.files_expired, progress.files_rejected, progress.files_pending) == (1, 0, 0)
    assert run.beat(node) in ("Healthy", "Unhealthy")


def test_a_file_that_ends_its_validators_is_waited_for_no_longer_than_one_without_a_result(
    run: Orchestrator, node: str
) -> None:
    run.hand_in(node)
    for _ in range(UNJUDGED_CHECKS):
        run.claimed("validator-0")  # and never heard of again
        run.clock.now += CLAIM_SECONDS + 1
        assert (run_progress(run.state).pending_groups > 0, unjudged_files(run.state, node)) == (True, 0)
    job = run.claimed("validator-0")
    assert (run_progress(run.state).pending_groups, unjudged_files(run.state, node)) == (0, 1)
    run.judge(verdict_on(job))  # whoever can check it still does
    assert run_progress(run.state).files_accepted == 1


def test_a_file_whose_short_claim_ran_out_pauses_as_after_a_check_without_a_result(
    run: Orchestrator, node: str
) -> None:
    digest = run.hand_in(node)

    def claimed() -> str | None:
        job = run.state.queue.claim("validator-0", run.clock(), claim_seconds=1)
        return job.record.sha256 if job is not None else None

    for pause in (2, 4, 8):
        assert claimed() == digest
        run.clock.now += 1
        assert claimed() is None
        run.clock.now += pause - 1.5
        assert claimed() is None
        run.clock.now += 1


def test_files_that_a_validator_gave_up_hide_no_other_from_it(run: Orchestrator, node: str) -> None:
    note = OpinionNote(validator="validator-0", reason="unread", digest="d" * 64)
    for number in range(2 * LOOK_AHEAD):
        record = SubmissionRecord(
            run=run.config.run,
            node=node,
            lease="0" * 32,
            step=0,
            submission=number,
            sha256=f"{number:064x}",
            size=1,
            groups=1,
            received_unix=run.clock(),
        )
        run.state.queue.add(Job(record=record, opinions=[note] * MOST_READINGS), run.clock())
    assert run.claim("validator-0") is None
    run.clock.now += 1
    digest = run.hand_in(run.join())
    assert run.claimed("validator-0").sha256 == digest
