"""A validator that is still at work keeps its file, and is told when nobody waits for its verdict."""

from pathlib import Path

import pytest
from protocol_stack import verdict_on
from run_states import Orchestrator

from servers import Redis
from shoal.contracts.protocol import ClaimRenewal
from shoal.contracts.recipe import Validation
from shoal.protocol import verdicts, work
from shoal.transport.server import Problem


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
        work.renew(run.state, renewal)
        assert run.claim("second") is None
    run.clock.now += 61
    work.renew(run.state, renewal)  # nobody had taken it meanwhile
    assert run.claim("second") is None
    run.clock.now += 61
    assert run.claimed("second").sha256 == digest
    with pytest.raises(Problem, match="another validator has it"):
        work.renew(run.state, renewal)
    run.judge(verdict_on(job))
    with pytest.raises(Problem, match="it has its verdict"):
        work.renew(run.state, renewal)


def test_a_renewal_of_a_file_that_nobody_waits_for_says_why(run: Orchestrator, node: str) -> None:
    digest = run.hand_in(node)
    run.claimed("first")
    run.lose_redis()  # who had claimed it is forgotten with it
    work.renew(run.state, ClaimRenewal(validator="first", node=node, sha256=digest))
    assert run.claim("second") is None
    verdicts.evict(run.state, node, "of another file")
    with pytest.raises(Problem, match=r"409 Claim is over: .* its node was evicted"):
        work.renew(run.state, ClaimRenewal(validator="first", node=node, sha256=digest))
