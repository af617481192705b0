"""Many nodes ask for the open step: what is read for them, how old it may be, and when each is told to ask again."""

from pathlib import Path
from unittest.mock import patch

import pytest

from run_states import Clock, Orchestrator
from servers import Redis
from shoal.contracts.problems import Refusal
from shoal.contracts.recipe import Recipe
from shoal.orchestrator.work import handout
from shoal.orchestrator.work.handout import ANSWERS_A_SECOND, FEW_MEMBERS, SURVEY_SECONDS, Surveys, pace


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    made = Orchestrator(tmp_path, redis_server.url, recipe=Recipe(prompts_per_step=2000, group_size=2))
    made.announce(0)
    return made


def test_few_nodes_each_see_what_is_now(run: Orchestrator) -> None:
    node, other = run.join(), run.join()
    surveys = Surveys(run.state, Clock())
    before = handout.step_for(run.state, node, surveys=surveys)
    run.lease(other)
    after = handout.step_for(run.state, node, surveys=surveys)
    assert before is not None
    assert after is not None
    assert after.pending_groups > before.pending_groups
    assert handout.step_for(run.state, node, paced=True, surveys=surveys) == after, "nobody is told to wait"


def test_many_nodes_share_what_is_read_for_a_moment_and_no_longer(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(FEW_MEMBERS + 1)]
    clock = Clock()
    surveys = Surveys(run.state, clock)
    with patch.object(handout, "survey_of", wraps=handout.survey_of) as read:
        first = [handout.step_for(run.state, node, surveys=surveys) for node in nodes]
        assert read.call_count == 1
        run.lease(nodes[0])
        read.reset_mock()
        assert handout.step_for(run.state, nodes[1], surveys=surveys) == first[1]
        assert read.call_count == 0
        clock.now += SURVEY_SECONDS
        later = handout.step_for(run.state, nodes[1], surveys=surveys)
    assert first[1] is not None
    assert later is not None
    assert later.pending_groups > first[1].pending_groups


def test_a_lease_is_given_by_a_new_look(tmp_path: Path, redis_server: Redis) -> None:
    run = Orchestrator(tmp_path, redis_server.url, recipe=Recipe(prompts_per_step=2, group_size=2))
    run.announce(0)
    nodes = [run.join() for _ in range(FEW_MEMBERS + 1)]
    surveys = Surveys(run.state, Clock())
    shown = handout.step_for(run.state, nodes[0], surveys=surveys)
    assert shown is not None
    for node in nodes[1:]:
        now = handout.step_for(run.state, node)
        if now is None or now.step != shown.step:
            break
        run.lease(node)
    old = handout.step_for(run.state, nodes[0], surveys=surveys)
    assert old is not None
    assert old.pending_groups == shown.pending_groups, "it is of before"
    with pytest.raises(Refusal, match="ask GET /v1/step again"):
        run.lease(nodes[0], shown.step)


def test_together_the_nodes_ask_as_often_as_the_orchestrator_answers() -> None:
    assert [pace(members) for members in (0, 1, ANSWERS_A_SECOND)] == [None, None, None]
    assert [pace(members) for members in (ANSWERS_A_SECOND + 1, 300, 3000, 10**6)] == [2, 6, 10, 10]


def test_a_node_that_does_not_ask_for_the_pace_is_not_told(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(ANSWERS_A_SECOND + 1)]
    surveys = Surveys(run.state, Clock())
    told = handout.step_for(run.state, nodes[0], paced=True, surveys=surveys)
    silent = handout.step_for(run.state, nodes[0], surveys=surveys)
    assert told is not None
    assert silent is not None
    assert (told.again_seconds, silent.again_seconds) == (2, None)
    assert b"again_seconds" not in silent.to_json(), (
        "an agent of an earlier release refuses a field that it does not know"
    )
