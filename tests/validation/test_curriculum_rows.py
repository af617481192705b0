"""Prompts of a run with a curriculum at a validator: those of the draw pass, chosen ones are rejected, and forged pools are nobody's fault."""

from dataclasses import replace

import pytest
import tiny_policy
from court import JOB, METADATA, VERSION, Court

from shoal.contracts.work import TrainingStep, draw
from shoal.environments.prompts import prompt_tokens
from shoal.inference.rollouts import assemble, plan_submission
from shoal.sampling.curriculum import Pools
from shoal.validation.checks import sampling
from shoal.validation.facts import Facts, File, Finding

HARD = range(3)
COUNT = tiny_policy.PUBLIC.task_count
POOLS = Pools((range(3, COUNT), HARD, (), ()), (1, 3, 0, 0), (None, 0.1, None, None))


class Fixed:
    def of(self, step: int) -> Pools:
        return POOLS


@pytest.fixture
def facts(court: Court) -> Facts:
    own: Facts = court.facts
    return replace(own, curriculum=Fixed())


def found(court: Court, facts: Facts, prompts: list[int] | None, pools: str = POOLS.digest) -> Finding | None:
    """What the validator says of a worker that was told these prompts; None: of one that draws as if there were no pools."""
    lease = tiny_policy.LEASE.model_copy(update={"prompts": prompts})
    planned = plan_submission(
        tiny_policy.WORK,
        tiny_policy.STEP,
        lease,
        tiny_policy.PUBLIC,
        tiny_policy.TASKS,
        lambda task, target: prompt_tokens(facts.tokenizer, facts.environment, task, target, None),
    )
    rows = assemble(planned, court.made.old, lease, tiny_policy.PUBLIC, VERSION, lambda *_: 0.0)
    return sampling.check(File(JOB.model_copy(update={"pools": pools}), rows, METADATA), facts)


def drawn(facts: Facts) -> list[int]:
    work = facts.work(JOB)
    assert isinstance(work, TrainingStep)
    groups = draw(work, beacon=tiny_policy.BEACON, run=JOB.run, node=JOB.node, submission=JOB.submission)
    return [group.prompt_index for group in groups]


def test_what_the_pools_draw_passes_and_chosen_prompts_are_rejected(court: Court, facts: Facts) -> None:
    wanted = drawn(facts)
    assert found(court, facts, wanted) is None
    others = [row for row in range(COUNT) if row not in wanted]
    for chosen in ([others[0], *wanted[1:]], wanted[::-1], None):
        finding = found(court, facts, chosen)
        assert finding is not None
        assert chosen is None or "prompt_index is" in finding.evidence
        assert (finding.outcome, finding.reason) == ("reject", "sampling")


def test_pools_that_do_not_follow_from_the_batches_are_not_the_nodes_fault(court: Court, facts: Facts) -> None:
    finding = found(court, facts, drawn(facts), pools="f" * 64)
    assert finding is not None
    assert (finding.outcome, finding.reason) == ("inconclusive", None)
    assert "have digest" in finding.evidence
    assert "the orchestrator says ffffffffffff" in finding.evidence
