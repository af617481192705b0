"""A validator that is still at work keeps its file, and is told when nobody waits for its verdict."""

from pathlib import Path
from typing import Any

import pytest

from protocol_stack import verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import ClaimRenewal, ValidationJob
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.orchestrator.verdicts import verdicts
from shoal.orchestrator.work import handout


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url, validation=Validation(claim_seconds=60))


@pytest.fixture
def node(run: Orchestrator) -> str:
    joined = run.join()
    run.announce(0)
    return joined


def test_a_validator_that_renews_its_claim_keeps_the_file(run: Orchestrator, node: str) -> None:
    digest = run.hand_in(node)
    job = run.claimed("first")
    renewal = ClaimRenewal(validator="first", node=node, sha256=digest)
    for _ in range(4):
        run.clock.now += 50
        handout.renew(run.state, renewal)
        assert run.claim("second") is None
    run.clock.now += 61
    handout.renew(run.state, renewal)  # nobody had taken it meanwhile
    assert run.claim("second") is None
    run.clock.now += 61
    assert run.claimed("second").sha256 == digest
    with pytest.raises(Refusal, match="another validator checks it"):
        handout.renew(run.state, renewal)
    run.judge(verdict_on(job))
    with pytest.raises(Refusal, match="it already has a verdict"):
        handout.renew(run.state, renewal)


def test_a_renewal_of_a_file_that_nobody_waits_for_says_why(run: Orchestrator, node: str) -> None:
    digest = run.hand_in(node)
    run.claimed("first")
    run.lose_redis()  # who had claimed it is forgotten with it
    handout.renew(run.state, ClaimRenewal(validator="first", node=node, sha256=digest))
    assert run.claim("second") is None
    verdicts.evict(run.state, node, "of another file")
    with pytest.raises(Refusal, match=r"claim-over: .* its node was evicted"):
        handout.renew(run.state, ClaimRenewal(validator="first", node=node, sha256=digest))


def rejected_by(job: ValidationJob, validator: str) -> Verdict:
    """A statistical reject, which another check must find too."""
    verdict = verdict_on(job, outcome="reject", reason="computation")
    return verdict.model_copy(update={"validator": validator})


def test_a_renewal_that_arrives_after_its_own_verdict_keeps_the_file_from_nobody(run: Orchestrator, node: str) -> None:
    digest = run.hand_in(node)
    run.judge(rejected_by(run.claimed("first"), "first"))
    with pytest.raises(Refusal, match="or will"):
        handout.renew(run.state, ClaimRenewal(validator="first", node=node, sha256=digest))
    assert run.claimed("second").second_opinion


def test_a_late_reject_ends_the_check_of_few_rows_that_another_has_begun(run: Orchestrator, node: str) -> None:
    digest = run.hand_in(node)
    late = run.claimed("first")
    run.clock.now += 61
    assert not run.claimed("second").second_opinion
    run.judge(rejected_by(late, "first"))
    with pytest.raises(Refusal, match="or will"):
        handout.renew(run.state, ClaimRenewal(validator="second", node=node, sha256=digest))
    assert run.claimed("third").second_opinion


def test_an_inconclusive_check_is_followed_by_a_claim_and_not_by_a_renewal(run: Orchestrator, node: str) -> None:
    digest = run.hand_in(node)
    job = run.claimed("first")
    run.judge(verdict_on(job, outcome="inconclusive").model_copy(update={"validator": "first"}))
    with pytest.raises(Refusal, match="or will"):
        handout.renew(run.state, ClaimRenewal(validator="first", node=node, sha256=digest))


def test_a_renewal_that_read_the_job_before_a_reject_does_not_write_it_back(run: Orchestrator, node: str) -> None:
    digest = run.hand_in(node)
    job = run.claimed("first")
    read = run.state.redis.hget
    between: list[Any] = []

    def then_rejected(*arguments: Any) -> Any:
        found = read(*arguments)
        if not between:
            between.append(found)
            run.judge(rejected_by(job, "first"))
        return found

    queue = run.state.queue
    queue._redis.hget = then_rejected
    assert not queue.renew("first", node, digest, run.clock.now + 60)
    waiting = queue.get(node, digest)
    assert waiting is not None
    assert len(waiting.opinions) == 1
