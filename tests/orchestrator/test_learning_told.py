"""What the orchestrator tells of answers: from accepted verdicts, the same after kill -9 and after Redis lost its memory, kept from strangers."""

from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from protocol_stack import GROUP_SIZE, GROUPS, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.answers import AnswerSample, FileAnswers
from shoal.orchestrator import metrics
from shoal.orchestrator.progress import learning, run_progress
from shoal.orchestrator.verdicts.learning import fewest_groups

ROWS = GROUPS * GROUP_SIZE
SAMPLE = AnswerSample(problem_id="p", prompt="1+1=", answer="<", tokens=2, cut=True, task_reward=0.0)
CUT = FileAnswers(
    rows=ROWS, right=0, cut=ROWS, unscorable=0, unanswered=ROWS, groups=GROUPS, groups_right=0, groups_wrong=GROUPS,
    samples=[SAMPLE],
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    made = Orchestrator(tmp_path, redis_server.url)
    made.announce(0)
    return made


def needed(run: Orchestrator) -> int:
    """Files that hold as many groups as are needed to tell."""
    return -(-fewest_groups(run.config.recipe) // GROUPS)


def cut_files(run: Orchestrator, files: int) -> None:
    """Accepted files of one node, in which every answer was cut off and none is right."""
    node = next(iter(run.state.view.joined), None) or run.join()
    for _ in range(files):
        run.hand_in(node)
        run.judge(verdict_on(run.claimed(), rewards=[0.0] * ROWS).model_copy(update={"answers": CUT}))


def test_a_run_of_answers_that_are_cut_off_is_told_after_so_many_groups_and_again_after_a_restart(
    run: Orchestrator,
) -> None:
    cut_files(run, needed(run) - 1)
    found = learning(run.state)
    assert found is not None
    assert (found.decided, found.reason) == (False, None)
    cut_files(run, 1)
    before = run_progress(run.state).learning
    assert before is not None
    assert (before.decided, before.reason, before.cut, before.unanswered) == (True, "AnswersCutOff", 1.0, 1.0)
    run.restarted()
    assert run_progress(run.state).learning == before
    run.lose_redis()
    assert run_progress(run.state).learning == before


def test_metrics_say_the_same(run: Orchestrator) -> None:
    cut_files(run, needed(run))
    metrics.report(run.state)
    assert REGISTRY.get_sample_value("shoal_learning") == 0
    assert REGISTRY.get_sample_value("shoal_answers_ratio", {"outcome": "cut"}) == 1.0
    assert REGISTRY.get_sample_value("shoal_groups_alike_ratio", {"outcome": "wrong"}) == 1.0


def test_answers_to_tasks_of_a_closed_pool_are_not_told_outside(run: Orchestrator) -> None:
    cut_files(run, 1)
    inside = learning(run.state)
    assert inside is not None
    assert inside.samples == [SAMPLE]
    addresses = run.config.addresses.model_copy(update={"public_orchestrator": "https://runs.example.org"})
    closed = [pool.model_copy(update={"open": False}) for pool in run.config.pools]
    run.state.config = run.config.model_copy(update={"addresses": addresses, "pools": closed})
    told = learning(run.state)
    assert told is not None
    assert (told.samples, told.cut) == ([], 1.0)
